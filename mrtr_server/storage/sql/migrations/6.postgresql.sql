-- A row of what all together have stored is locked until the commit of whoever changed it. There were 16, one for the last
-- digit of each state or task, so all replicas together committed at most 16 such transactions at a time. Now each connection
-- uses one of 256. Who removes a row may have another connection than who stored it, so a single row may be negative; their
-- sum is exact. The rows of a caller stay as they were, since each of them must go back to 0. Of both functions, which are
-- those of version 3 otherwise, the end is new. It looks for the row before it inserts one: ON CONFLICT locks the row first,
-- which is written to the log as well.

-- Count rows that have come or gone. The argument is 1 for tasks, and 0 for states and reports. Everybody takes the locks in
-- the same order: those of callers in their order, and then the one of all.
CREATE OR REPLACE FUNCTION mrtr_count() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE
    sign BIGINT := CASE TG_OP WHEN 'DELETE' THEN -1 ELSE 1 END;
    is_task BIGINT := TG_ARGV[0];
    more_rows BIGINT;
    more_blocks BIGINT;
    BEGIN
    INSERT INTO mrtr_usage AS u (caller, shard, tasks, states, blocks)
    SELECT caller, shard, sign * is_task * count(*), sign * (1 - is_task) * count(*), sign * sum(blocks)
    FROM counted WHERE caller <> '' GROUP BY caller, shard ORDER BY caller, shard
    ON CONFLICT (caller, shard) DO UPDATE
    SET tasks = u.tasks + excluded.tasks, states = u.states + excluded.states, blocks = u.blocks + excluded.blocks;
    IF sign < 0 THEN
        DELETE FROM mrtr_usage
        WHERE (caller, shard) IN (SELECT caller, shard FROM counted WHERE caller <> '')
            AND tasks = 0 AND states = 0 AND blocks = 0;
    END IF;
    SELECT sign * count(*), sign * sum(counted.blocks) INTO more_rows, more_blocks FROM counted;
    IF more_rows = 0 THEN
        RETURN NULL;
    END IF;
    UPDATE mrtr_usage AS u
    SET tasks = u.tasks + is_task * more_rows, states = u.states + (1 - is_task) * more_rows, blocks = u.blocks + more_blocks
    WHERE caller = '*' AND shard = pg_backend_pid() % 256;
    IF NOT FOUND THEN
        INSERT INTO mrtr_usage AS u (caller, shard, tasks, states, blocks)
        VALUES ('*', pg_backend_pid() % 256, is_task * more_rows, (1 - is_task) * more_rows, more_blocks)
        ON CONFLICT (caller, shard) DO UPDATE
        SET tasks = u.tasks + excluded.tasks, states = u.states + excluded.states, blocks = u.blocks + excluded.blocks;
    END IF;
    RETURN NULL; END $$;

-- Count a row again whose size or caller has changed.
CREATE OR REPLACE FUNCTION mrtr_recount() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE
    is_task BIGINT := TG_ARGV[0];
    BEGIN
    INSERT INTO mrtr_usage AS u (caller, shard, tasks, states, blocks)
    SELECT caller, NEW.shard, sum(rows) * is_task, sum(rows) * (1 - is_task), sum(more)
    FROM (VALUES (OLD.caller, -1, -OLD.blocks), (NEW.caller, 1, NEW.blocks)) AS counted (caller, rows, more)
    WHERE caller <> '' GROUP BY caller ORDER BY caller
    ON CONFLICT (caller, shard) DO UPDATE
    SET tasks = u.tasks + excluded.tasks, states = u.states + excluded.states, blocks = u.blocks + excluded.blocks;
    UPDATE mrtr_usage SET blocks = blocks + NEW.blocks - OLD.blocks WHERE caller = '*' AND shard = pg_backend_pid() % 256;
    IF NOT FOUND THEN
        INSERT INTO mrtr_usage AS u (caller, shard, tasks, states, blocks)
        VALUES ('*', pg_backend_pid() % 256, 0, 0, NEW.blocks - OLD.blocks)
        ON CONFLICT (caller, shard) DO UPDATE SET blocks = u.blocks + excluded.blocks;
    END IF;
    RETURN NULL; END $$;

-- The order of a caller's tasks of one moment needs no index: ids are long.
DROP INDEX IF EXISTS ix_mrtr_tasks_owned;
CREATE INDEX CONCURRENTLY ix_mrtr_tasks_owned ON mrtr_tasks (owner, created) WHERE owner <> '';

-- Of a row's next version, PostgreSQL writes to its log what is between the bytes that both begin with and those that both end
-- with, if both are in one page. So the columns that nearly each change sets now follow the request, which stays until the end;
-- a third of each page is left for next versions; and what fits into one page twice is not moved out of it. For that the table
-- is written anew, while whoever uses it waits.
ALTER TABLE mrtr_tasks SET (fillfactor = 70, toast_tuple_target = 4080);
ALTER TABLE mrtr_tasks
    ADD COLUMN moved_status TEXT NOT NULL GENERATED ALWAYS AS (status) STORED,
    ADD COLUMN moved_message TEXT NOT NULL GENERATED ALWAYS AS (message) STORED,
    ADD COLUMN moved_updated DOUBLE PRECISION NOT NULL GENERATED ALWAYS AS (updated) STORED,
    ADD COLUMN moved_deadline DOUBLE PRECISION NOT NULL GENERATED ALWAYS AS (deadline) STORED;
ALTER TABLE mrtr_tasks
    ALTER COLUMN moved_status DROP EXPRESSION,
    ALTER COLUMN moved_message DROP EXPRESSION,
    ALTER COLUMN moved_updated DROP EXPRESSION,
    ALTER COLUMN moved_deadline DROP EXPRESSION;
ALTER TABLE mrtr_tasks DROP COLUMN status, DROP COLUMN message, DROP COLUMN updated, DROP COLUMN deadline;
ALTER TABLE mrtr_tasks RENAME COLUMN moved_status TO status;
ALTER TABLE mrtr_tasks RENAME COLUMN moved_message TO message;
ALTER TABLE mrtr_tasks RENAME COLUMN moved_updated TO updated;
ALTER TABLE mrtr_tasks RENAME COLUMN moved_deadline TO deadline;
-- The indexes went with their columns. Nobody writes meanwhile, so they are made with the table.
CREATE INDEX ix_mrtr_tasks_open ON mrtr_tasks (deadline) WHERE status IN ('working', 'input_required');
CREATE INDEX ix_mrtr_tasks_waiting ON mrtr_tasks (name, caller, updated) WHERE status = 'working' AND lease = '';

-- Operators list tasks by tool and status, the last changed first.
CREATE INDEX CONCURRENTLY ix_mrtr_tasks_listed ON mrtr_tasks ((name || ''), status, updated);

-- And logins, the last used first. Of the other values, none is in the index.
CREATE INDEX CONCURRENTLY ix_mrtr_kept_logins ON mrtr_kept ((expires + 0), (key COLLATE "C")) WHERE starts_with(key, 'login-');

-- Who was forgotten by `mrtr-server forget`, by keyed digest: what began before that moment counts no more. A row is kept for
-- as long as a flow may last.
CREATE TABLE mrtr_forgotten (
    caller TEXT NOT NULL,
    moment DOUBLE PRECISION NOT NULL,
    expires DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (caller)
);

-- The tenant that each row counts for, by keyed digest, as its caller is named beside it; empty for none. What a tenant has
-- stored is in `mrtr_usage`, too: a digest is either that of a caller or that of a tenant. Rows without one cost nothing here.
-- As with the rows of all, each connection has one of 256, so that many callers of one tenant seldom wait for each other.
ALTER TABLE mrtr_redemptions ADD COLUMN tenant TEXT NOT NULL DEFAULT '';
ALTER TABLE mrtr_kept ADD COLUMN tenant TEXT NOT NULL DEFAULT '';
ALTER TABLE mrtr_tasks ADD COLUMN tenant TEXT NOT NULL DEFAULT '';

-- Count a row that has come, or whose size or tenant has changed. The argument is as above.
CREATE FUNCTION mrtr_count_of_tenant() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE
    is_task BIGINT := TG_ARGV[0];
    BEGIN
    INSERT INTO mrtr_usage AS u (caller, shard, tasks, states, blocks)
    SELECT tenant, pg_backend_pid() % 256, sum(rows) * is_task, sum(rows) * (1 - is_task), sum(more)
    FROM (VALUES (OLD.tenant, -1, -OLD.blocks), (NEW.tenant, 1, NEW.blocks)) AS counted (tenant, rows, more)
    WHERE tenant <> '' GROUP BY tenant ORDER BY tenant
    ON CONFLICT (caller, shard) DO UPDATE
    SET tasks = u.tasks + excluded.tasks, states = u.states + excluded.states, blocks = u.blocks + excluded.blocks;
    RETURN NULL; END $$;

-- Count rows that have gone. A tenant that has nothing stored any more loses its rows, of which some are negative: those that
-- nobody else holds, if their sum is 0 as well. So the sum of all is exact, whatever is removed.
CREATE FUNCTION mrtr_count_off_tenants() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE
    is_task BIGINT := TG_ARGV[0];
    BEGIN
    IF NOT EXISTS (SELECT 1 FROM counted WHERE tenant <> '') THEN
        RETURN NULL;
    END IF;
    INSERT INTO mrtr_usage AS u (caller, shard, tasks, states, blocks)
    SELECT tenant, pg_backend_pid() % 256, -is_task * count(*), -(1 - is_task) * count(*), -sum(blocks)
    FROM counted WHERE tenant <> '' GROUP BY tenant ORDER BY tenant
    ON CONFLICT (caller, shard) DO UPDATE
    SET tasks = u.tasks + excluded.tasks, states = u.states + excluded.states, blocks = u.blocks + excluded.blocks;
    WITH held AS MATERIALIZED (
        SELECT caller, shard, tasks, states, blocks FROM mrtr_usage
        WHERE caller IN (
            SELECT caller FROM mrtr_usage WHERE caller IN (SELECT tenant FROM counted WHERE tenant <> '')
            GROUP BY caller HAVING sum(tasks) = 0 AND sum(states) = 0 AND sum(blocks) = 0
        )
        FOR UPDATE SKIP LOCKED
    )
    DELETE FROM mrtr_usage
    WHERE (caller, shard) IN (SELECT caller, shard FROM held) AND caller IN (
        SELECT caller FROM held GROUP BY caller HAVING sum(tasks) = 0 AND sum(states) = 0 AND sum(blocks) = 0
    );
    RETURN NULL; END $$;

-- Triggers run in the order of their names, and those of rows before those of statements. So everybody takes the locks in the
-- same order: those of tenants, of callers, and of all.
CREATE TRIGGER mrtr_tasks_by_tenant_added AFTER INSERT ON mrtr_tasks FOR EACH ROW
    WHEN (NEW.tenant <> '') EXECUTE FUNCTION mrtr_count_of_tenant(1);
CREATE TRIGGER mrtr_tasks_by_tenant_changed AFTER UPDATE OF tenant, blocks ON mrtr_tasks FOR EACH ROW
    WHEN (OLD.tenant <> NEW.tenant OR NEW.tenant <> '' AND OLD.blocks <> NEW.blocks) EXECUTE FUNCTION mrtr_count_of_tenant(1);
CREATE TRIGGER mrtr_tasks_by_tenant_removed AFTER DELETE ON mrtr_tasks REFERENCING OLD TABLE AS counted
    FOR EACH STATEMENT EXECUTE FUNCTION mrtr_count_off_tenants(1);

CREATE TRIGGER mrtr_redemptions_by_tenant_added AFTER INSERT ON mrtr_redemptions FOR EACH ROW
    WHEN (NEW.tenant <> '') EXECUTE FUNCTION mrtr_count_of_tenant(0);
CREATE TRIGGER mrtr_redemptions_by_tenant_changed AFTER UPDATE OF tenant, blocks ON mrtr_redemptions FOR EACH ROW
    WHEN (OLD.tenant <> NEW.tenant OR NEW.tenant <> '' AND OLD.blocks <> NEW.blocks) EXECUTE FUNCTION mrtr_count_of_tenant(0);
CREATE TRIGGER mrtr_redemptions_by_tenant_removed AFTER DELETE ON mrtr_redemptions REFERENCING OLD TABLE AS counted
    FOR EACH STATEMENT EXECUTE FUNCTION mrtr_count_off_tenants(0);

CREATE TRIGGER mrtr_kept_by_tenant_added AFTER INSERT ON mrtr_kept FOR EACH ROW
    WHEN (NEW.tenant <> '') EXECUTE FUNCTION mrtr_count_of_tenant(0);
CREATE TRIGGER mrtr_kept_by_tenant_changed AFTER UPDATE OF tenant, blocks ON mrtr_kept FOR EACH ROW
    WHEN (OLD.tenant <> NEW.tenant OR NEW.tenant <> '' AND OLD.blocks <> NEW.blocks) EXECUTE FUNCTION mrtr_count_of_tenant(0);
CREATE TRIGGER mrtr_kept_by_tenant_removed AFTER DELETE ON mrtr_kept REFERENCING OLD TABLE AS counted
    FOR EACH STATEMENT EXECUTE FUNCTION mrtr_count_off_tenants(0);

-- What flows wait for that somebody else answers, so that whoever may answer finds it. `who` is a keyed digest where it is one
-- person, and else empty.
CREATE TABLE mrtr_waits (
    id TEXT NOT NULL,
    task TEXT NOT NULL,
    name TEXT NOT NULL,
    who TEXT NOT NULL,
    created DOUBLE PRECISION NOT NULL,
    expires DOUBLE PRECISION NOT NULL,
    caller TEXT NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX ix_mrtr_waits_listed ON mrtr_waits (name, who, created, id);
CREATE INDEX CONCURRENTLY ix_mrtr_waits_paged ON mrtr_waits (name, created, (id COLLATE "C"));
CREATE INDEX ix_mrtr_waits_expires ON mrtr_waits (expires);

-- While a transaction stays open, such as that of `pg_dump`, PostgreSQL keeps the index entries of tasks that have ended
-- since, and a claim walked through them. Now a claim begins at the transaction by which the first task that is left came
-- to wait or to run. A later one has a higher number, whenever it commits.
ALTER TABLE mrtr_tasks ADD COLUMN queued BIGINT NOT NULL DEFAULT 0;
ALTER TABLE mrtr_tasks ALTER COLUMN queued SET DEFAULT CAST(pg_current_xact_id()::text AS bigint);
-- Older releases do not say so. Before a change, this would cost each one a lock of the row, which is written to the log.
CREATE FUNCTION mrtr_queue() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
    UPDATE mrtr_tasks SET queued = CAST(pg_current_xact_id()::text AS bigint) WHERE id = NEW.id;
    RETURN NULL; END $$;
CREATE TRIGGER mrtr_tasks_queued AFTER UPDATE OF status, lease ON mrtr_tasks FOR EACH ROW
    WHEN (NEW.queued = OLD.queued AND NEW.status = 'working' AND (OLD.status <> 'working' OR NEW.lease = '' AND OLD.lease <> ''))
    EXECUTE FUNCTION mrtr_queue();
DROP INDEX IF EXISTS ix_mrtr_tasks_running;
-- Of expressions, so that what looks for the callers of a tool does not choose it.
CREATE INDEX CONCURRENTLY ix_mrtr_tasks_queued ON mrtr_tasks ((name || ''), (lease <> ''), queued) WHERE status || '' = 'working';

-- Events. `xid` is the transaction that stored one: with its number, that is its position. Numbers are not in the order of
-- commits, so nobody reads a position from the oldest transaction on that still runs. What was stored before the database
-- was restored or replaced has 0. Whoever inserts with SQL of their own gives neither. Of an identity, unlike of a sequence,
-- no right is needed.
CREATE TABLE mrtr_events (
    xid BIGINT NOT NULL DEFAULT CAST(pg_current_xact_id()::text AS bigint),
    number BIGINT NOT NULL GENERATED BY DEFAULT AS IDENTITY,
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    audience TEXT NOT NULL,
    body BYTEA NOT NULL,
    created DOUBLE PRECISION NOT NULL,
    expires DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (xid, number)
);
CREATE UNIQUE INDEX ix_mrtr_events_once ON mrtr_events (id, name);
CREATE INDEX ix_mrtr_events_read ON mrtr_events (name, xid, number);
CREATE INDEX ix_mrtr_events_expires ON mrtr_events (expires);

-- The last position of each name that was removed: whoever has read up to one before it lacks something.
CREATE TABLE mrtr_event_floors (
    name TEXT NOT NULL,
    xid BIGINT NOT NULL,
    number BIGINT NOT NULL,
    PRIMARY KEY (name)
);
CREATE FUNCTION mrtr_raise_floors() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
    INSERT INTO mrtr_event_floors AS f (name, xid, number)
    SELECT DISTINCT ON (name) name, xid, number FROM removed ORDER BY name, xid DESC, number DESC
    ON CONFLICT (name) DO UPDATE SET xid = excluded.xid, number = excluded.number
    WHERE (f.xid, f.number) < (excluded.xid, excluded.number);
    RETURN NULL; END $$;
CREATE TRIGGER mrtr_events_removed AFTER DELETE ON mrtr_events REFERENCING OLD TABLE AS removed
    FOR EACH STATEMENT EXECUTE FUNCTION mrtr_raise_floors();
-- One that has expired, and whose id comes again, becomes the new one: it was removed from where it was.
CREATE FUNCTION mrtr_raise_floor() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
    INSERT INTO mrtr_event_floors AS f (name, xid, number) VALUES (OLD.name, OLD.xid, OLD.number)
    ON CONFLICT (name) DO UPDATE SET xid = excluded.xid, number = excluded.number
    WHERE (f.xid, f.number) < (excluded.xid, excluded.number);
    RETURN NULL; END $$;
CREATE TRIGGER mrtr_events_replaced AFTER UPDATE ON mrtr_events
    FOR EACH ROW WHEN (OLD.number <> NEW.number) EXECUTE FUNCTION mrtr_raise_floor();

-- Who is told of events. The ids are in the order of their bytes, whatever the language of the database.
CREATE TABLE mrtr_subscriptions (
    id TEXT COLLATE "C" NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    caller TEXT NOT NULL,
    body BYTEA NOT NULL,
    progress TEXT NOT NULL,
    created DOUBLE PRECISION NOT NULL,
    updated DOUBLE PRECISION NOT NULL,
    expires DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX ix_mrtr_subscriptions_counted ON mrtr_subscriptions (kind, caller, expires);
CREATE INDEX ix_mrtr_subscriptions_updated ON mrtr_subscriptions (updated);
CREATE INDEX ix_mrtr_subscriptions_expires ON mrtr_subscriptions (expires);

-- Which process does what one of them does at a time.
CREATE TABLE mrtr_leases (
    name TEXT NOT NULL,
    holder TEXT NOT NULL,
    until DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (name)
);

UPDATE mrtr_schema SET compatible_from = '5';
-- No older release has ever worked with tables that are made now, and have this number from the beginning. So what is sealed of
-- tasks can be kept there in a form that it does not read.
UPDATE mrtr_schema SET compatible_from = '6' WHERE version_num = '6';

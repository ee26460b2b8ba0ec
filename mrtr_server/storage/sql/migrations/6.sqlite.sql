-- PostgreSQL counts what all together have stored in more rows from here on. A file has one writer at a time, so here that stays.

-- Operators list tasks by tool and status, the last changed first.
CREATE INDEX ix_mrtr_tasks_listed ON mrtr_tasks ((name || ''), status, updated, id);

-- And logins, the last used first. Of the other values, none is in the index.
CREATE INDEX ix_mrtr_kept_logins ON mrtr_kept ((expires + 0), "key") WHERE substr("key", 1, 6) = 'login-';

-- Who was forgotten by `mrtr-server forget`, by keyed digest: what began before that moment counts no more. A row is kept for
-- as long as a flow may last.
CREATE TABLE mrtr_forgotten (
    caller TEXT NOT NULL,
    moment DOUBLE NOT NULL,
    expires DOUBLE NOT NULL,
    PRIMARY KEY (caller)
);

-- The tenant that each row counts for, by keyed digest, as its caller is named beside it; empty for none. What a tenant has
-- stored is in `mrtr_usage`, too: a digest is either that of a caller or that of a tenant. Rows without one cost nothing here.
ALTER TABLE mrtr_redemptions ADD COLUMN tenant TEXT NOT NULL DEFAULT '';
ALTER TABLE mrtr_kept ADD COLUMN tenant TEXT NOT NULL DEFAULT '';
ALTER TABLE mrtr_tasks ADD COLUMN tenant TEXT NOT NULL DEFAULT '';

-- To insert into this view is to count what has come for a tenant, or with negative numbers what has gone.
CREATE VIEW mrtr_counted_of_tenants AS SELECT caller AS tenant, tasks, states, blocks FROM mrtr_usage;
CREATE TRIGGER mrtr_count_of_tenant INSTEAD OF INSERT ON mrtr_counted_of_tenants WHEN NEW.tenant <> '' BEGIN
    INSERT INTO mrtr_usage (caller, shard, tasks, states, blocks)
    VALUES (NEW.tenant, 0, NEW.tasks, NEW.states, NEW.blocks)
    ON CONFLICT (caller, shard) DO UPDATE
    SET tasks = tasks + NEW.tasks, states = states + NEW.states, blocks = blocks + NEW.blocks;
    DELETE FROM mrtr_usage WHERE caller = NEW.tenant AND tasks = 0 AND states = 0 AND blocks = 0; END;

CREATE TRIGGER mrtr_tasks_by_tenant_added AFTER INSERT ON mrtr_tasks WHEN NEW.tenant <> '' BEGIN
    INSERT INTO mrtr_counted_of_tenants VALUES (NEW.tenant, 1, 0, NEW.blocks); END;
CREATE TRIGGER mrtr_tasks_by_tenant_changed AFTER UPDATE OF tenant, call, journal, questions, outcome ON mrtr_tasks
    WHEN OLD.tenant <> NEW.tenant OR NEW.tenant <> '' AND OLD.blocks <> NEW.blocks BEGIN
    INSERT INTO mrtr_counted_of_tenants VALUES (OLD.tenant, -1, 0, -OLD.blocks), (NEW.tenant, 1, 0, NEW.blocks); END;
CREATE TRIGGER mrtr_tasks_by_tenant_removed AFTER DELETE ON mrtr_tasks WHEN OLD.tenant <> '' BEGIN
    INSERT INTO mrtr_counted_of_tenants VALUES (OLD.tenant, -1, 0, -OLD.blocks); END;

CREATE TRIGGER mrtr_redemptions_by_tenant_added AFTER INSERT ON mrtr_redemptions WHEN NEW.tenant <> '' BEGIN
    INSERT INTO mrtr_counted_of_tenants VALUES (NEW.tenant, 0, 1, NEW.blocks); END;
CREATE TRIGGER mrtr_redemptions_by_tenant_changed AFTER UPDATE OF tenant, outcome ON mrtr_redemptions
    WHEN OLD.tenant <> NEW.tenant OR NEW.tenant <> '' AND OLD.blocks <> NEW.blocks BEGIN
    INSERT INTO mrtr_counted_of_tenants VALUES (OLD.tenant, 0, -1, -OLD.blocks), (NEW.tenant, 0, 1, NEW.blocks); END;
CREATE TRIGGER mrtr_redemptions_by_tenant_removed AFTER DELETE ON mrtr_redemptions WHEN OLD.tenant <> '' BEGIN
    INSERT INTO mrtr_counted_of_tenants VALUES (OLD.tenant, 0, -1, -OLD.blocks); END;

CREATE TRIGGER mrtr_kept_by_tenant_added AFTER INSERT ON mrtr_kept WHEN NEW.tenant <> '' BEGIN
    INSERT INTO mrtr_counted_of_tenants VALUES (NEW.tenant, 0, 1, NEW.blocks); END;
CREATE TRIGGER mrtr_kept_by_tenant_changed AFTER UPDATE OF tenant, value ON mrtr_kept
    WHEN OLD.tenant <> NEW.tenant OR NEW.tenant <> '' AND OLD.blocks <> NEW.blocks BEGIN
    INSERT INTO mrtr_counted_of_tenants VALUES (OLD.tenant, 0, -1, -OLD.blocks), (NEW.tenant, 0, 1, NEW.blocks); END;
CREATE TRIGGER mrtr_kept_by_tenant_removed AFTER DELETE ON mrtr_kept WHEN OLD.tenant <> '' BEGIN
    INSERT INTO mrtr_counted_of_tenants VALUES (OLD.tenant, 0, -1, -OLD.blocks); END;

-- What flows wait for that somebody else answers, so that whoever may answer finds it. `who` is a keyed digest where it is one
-- person, and else empty.
CREATE TABLE mrtr_waits (
    id TEXT NOT NULL,
    task TEXT NOT NULL,
    name TEXT NOT NULL,
    who TEXT NOT NULL,
    created DOUBLE NOT NULL,
    expires DOUBLE NOT NULL,
    caller TEXT NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX ix_mrtr_waits_listed ON mrtr_waits (name, who, created, id);
CREATE INDEX ix_mrtr_waits_paged ON mrtr_waits (name, created, id);
CREATE INDEX ix_mrtr_waits_expires ON mrtr_waits (expires);

-- Events. A file has one writer at a time, so numbers are in the order of commits. None is used again, not even that of the
-- last one.
CREATE TABLE mrtr_events (
    number INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    audience TEXT NOT NULL,
    body BLOB NOT NULL,
    created DOUBLE NOT NULL,
    expires DOUBLE NOT NULL
);
CREATE UNIQUE INDEX ix_mrtr_events_once ON mrtr_events (id, name);
CREATE INDEX ix_mrtr_events_read ON mrtr_events (name, number);
CREATE INDEX ix_mrtr_events_expires ON mrtr_events (expires);

-- One that has expired makes room for another one of its id.
CREATE TRIGGER mrtr_events_renewed BEFORE INSERT ON mrtr_events BEGIN
    DELETE FROM mrtr_events WHERE id = NEW.id AND name = NEW.name AND expires <= NEW.created; END;

-- The last position of each name that was removed: whoever has read up to one before it lacks something.
CREATE TABLE mrtr_event_floors (
    name TEXT NOT NULL,
    number BIGINT NOT NULL,
    PRIMARY KEY (name)
);
CREATE TRIGGER mrtr_events_removed AFTER DELETE ON mrtr_events BEGIN
    INSERT INTO mrtr_event_floors (name, number) VALUES (OLD.name, OLD.number)
    ON CONFLICT (name) DO UPDATE SET number = max(number, excluded.number); END;

-- Who is told of events.
CREATE TABLE mrtr_subscriptions (
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    caller TEXT NOT NULL,
    body BLOB NOT NULL,
    progress TEXT NOT NULL,
    created DOUBLE NOT NULL,
    updated DOUBLE NOT NULL,
    expires DOUBLE NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX ix_mrtr_subscriptions_counted ON mrtr_subscriptions (kind, caller, expires);
CREATE INDEX ix_mrtr_subscriptions_updated ON mrtr_subscriptions (updated);
CREATE INDEX ix_mrtr_subscriptions_expires ON mrtr_subscriptions (expires);

-- Which process does what one of them does at a time.
CREATE TABLE mrtr_leases (
    name TEXT NOT NULL,
    holder TEXT NOT NULL,
    until DOUBLE NOT NULL,
    PRIMARY KEY (name)
);

UPDATE mrtr_schema SET compatible_from = '5';
-- No older release has ever worked with tables that are made now, and have this number from the beginning. So what is sealed of
-- tasks can be kept there in a form that it does not read.
UPDATE mrtr_schema SET compatible_from = '6' WHERE version_num = '6';

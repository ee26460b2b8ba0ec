-- A row of what all together have stored is locked until the commit of whoever changed it. There were 16, one for the last
-- digit of each state or task, so all replicas together committed at most 16 such transactions at a time. Now each connection
-- uses one of 256. Who removes a row may have another connection than who stored it, so a single row may be negative; their
-- sum is exact. The rows of a caller stay as they were, since each of them must go back to 0. Of both functions, which are
-- those of version 3 otherwise, the last statement is new.

-- Count rows that have come or gone. The argument is 1 for tasks, and 0 for states and reports. Everybody takes the locks in
-- the same order: those of callers in their order, and then the one of all.
CREATE OR REPLACE FUNCTION mrtr_count() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE
    sign BIGINT := CASE TG_OP WHEN 'DELETE' THEN -1 ELSE 1 END;
    is_task BIGINT := TG_ARGV[0];
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
    INSERT INTO mrtr_usage AS u (caller, shard, tasks, states, blocks)
    SELECT '*', pg_backend_pid() % 256, sign * is_task * count(*), sign * (1 - is_task) * count(*), sign * sum(blocks)
    FROM counted HAVING count(*) > 0
    ON CONFLICT (caller, shard) DO UPDATE
    SET tasks = u.tasks + excluded.tasks, states = u.states + excluded.states, blocks = u.blocks + excluded.blocks;
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
    INSERT INTO mrtr_usage AS u (caller, shard, tasks, states, blocks)
    VALUES ('*', pg_backend_pid() % 256, 0, 0, NEW.blocks - OLD.blocks)
    ON CONFLICT (caller, shard) DO UPDATE SET blocks = u.blocks + excluded.blocks;
    RETURN NULL; END $$;

-- Operators list tasks by tool and status, the last changed first.
CREATE INDEX CONCURRENTLY ix_mrtr_tasks_listed ON mrtr_tasks ((name || ''), status, updated);

-- Who was forgotten by `mrtr-server forget`, by keyed digest: what began before that moment counts no more. A row is kept for
-- as long as a flow may last.
CREATE TABLE mrtr_forgotten (
    caller TEXT NOT NULL,
    moment DOUBLE PRECISION NOT NULL,
    expires DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (caller)
);

UPDATE mrtr_schema SET compatible_from = '5';

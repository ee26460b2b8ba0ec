-- Who each row counts for, and how much each caller and all together have stored. The database counts in the transaction
-- that changes a row, so the count is right whatever writes the row and whoever removes it. Bytes are counted in blocks of
-- 4 KiB, each row rounded, so that few changes change the count.

ALTER TABLE mrtr_redemptions ADD COLUMN caller TEXT NOT NULL DEFAULT '';
ALTER TABLE mrtr_redemptions ADD COLUMN shard INTEGER GENERATED ALWAYS AS (strpos('0123456789abcdef', right(state, 1))) STORED;
ALTER TABLE mrtr_redemptions ADD COLUMN blocks INTEGER GENERATED ALWAYS AS ((coalesce(octet_length(outcome), 0) + 2048) / 4096) STORED;
ALTER TABLE mrtr_kept ADD COLUMN caller TEXT NOT NULL DEFAULT '';
ALTER TABLE mrtr_kept ADD COLUMN shard INTEGER GENERATED ALWAYS AS (strpos('0123456789abcdef', right(key, 1))) STORED;
ALTER TABLE mrtr_kept ADD COLUMN blocks INTEGER GENERATED ALWAYS AS ((octet_length(value) + 2048) / 4096) STORED;
ALTER TABLE mrtr_tasks ADD COLUMN caller TEXT NOT NULL DEFAULT '';
ALTER TABLE mrtr_tasks ADD COLUMN shard INTEGER GENERATED ALWAYS AS (strpos('0123456789abcdef', right(id, 1))) STORED;
ALTER TABLE mrtr_tasks ADD COLUMN blocks INTEGER GENERATED ALWAYS AS (
    (octet_length(call) + octet_length(journal) + octet_length(questions) + octet_length(outcome) + 2048) / 4096
) STORED;

-- A claim looks at the tasks that wait by tool and caller, so it never walks through those of one caller; and at those that
-- run, which are few.
DROP INDEX ix_mrtr_tasks_working;
CREATE INDEX CONCURRENTLY ix_mrtr_tasks_waiting ON mrtr_tasks (name, caller, updated) WHERE status = 'working' AND lease = '';
CREATE INDEX CONCURRENTLY ix_mrtr_tasks_running ON mrtr_tasks (name) WHERE status = 'working' AND lease <> '';

-- The caller '*' stands for all. Each caller has a row for each shard, so that transactions at once seldom wait for each
-- other. A row that is removed is counted in the shard that it was counted in when it came, so each shard goes back to 0.
CREATE TABLE mrtr_usage (
    caller TEXT NOT NULL,
    shard INTEGER NOT NULL,
    tasks BIGINT NOT NULL,
    states BIGINT NOT NULL,
    blocks BIGINT NOT NULL,
    PRIMARY KEY (caller, shard)
);
INSERT INTO mrtr_usage (caller, shard, tasks, states, blocks)
SELECT '*', shard, sum(tasks), sum(states), sum(blocks)
FROM (
    SELECT shard, 1 AS tasks, 0 AS states, blocks FROM mrtr_tasks
    UNION ALL SELECT shard, 0, 1, blocks FROM mrtr_redemptions
    UNION ALL SELECT shard, 0, 1, blocks FROM mrtr_kept
) AS stored
GROUP BY shard;

-- Count rows that have come or gone. The argument is 1 for tasks, and 0 for states and reports. Everybody takes the locks in
-- the same order: those of callers in their order, and then those of all.
CREATE FUNCTION mrtr_count() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE
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
    SELECT '*', shard, sign * is_task * count(*), sign * (1 - is_task) * count(*), sign * sum(blocks)
    FROM counted GROUP BY shard ORDER BY shard
    ON CONFLICT (caller, shard) DO UPDATE
    SET tasks = u.tasks + excluded.tasks, states = u.states + excluded.states, blocks = u.blocks + excluded.blocks;
    RETURN NULL; END $$;

-- Count a row again whose size or caller has changed.
CREATE FUNCTION mrtr_recount() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE
    is_task BIGINT := TG_ARGV[0];
    BEGIN
    INSERT INTO mrtr_usage AS u (caller, shard, tasks, states, blocks)
    SELECT caller, NEW.shard, sum(rows) * is_task, sum(rows) * (1 - is_task), sum(more)
    FROM (VALUES (OLD.caller, -1, -OLD.blocks), (NEW.caller, 1, NEW.blocks)) AS counted (caller, rows, more)
    WHERE caller <> '' GROUP BY caller ORDER BY caller
    ON CONFLICT (caller, shard) DO UPDATE
    SET tasks = u.tasks + excluded.tasks, states = u.states + excluded.states, blocks = u.blocks + excluded.blocks;
    INSERT INTO mrtr_usage AS u (caller, shard, tasks, states, blocks)
    VALUES ('*', NEW.shard, 0, 0, NEW.blocks - OLD.blocks)
    ON CONFLICT (caller, shard) DO UPDATE SET blocks = u.blocks + excluded.blocks;
    RETURN NULL; END $$;

CREATE TRIGGER mrtr_tasks_added AFTER INSERT ON mrtr_tasks REFERENCING NEW TABLE AS counted
    FOR EACH STATEMENT EXECUTE FUNCTION mrtr_count(1);
CREATE TRIGGER mrtr_tasks_removed AFTER DELETE ON mrtr_tasks REFERENCING OLD TABLE AS counted
    FOR EACH STATEMENT EXECUTE FUNCTION mrtr_count(1);
CREATE TRIGGER mrtr_tasks_changed AFTER UPDATE OF caller, blocks ON mrtr_tasks FOR EACH ROW
    WHEN (OLD.caller <> NEW.caller OR OLD.blocks <> NEW.blocks) EXECUTE FUNCTION mrtr_recount(1);

CREATE TRIGGER mrtr_redemptions_added AFTER INSERT ON mrtr_redemptions REFERENCING NEW TABLE AS counted
    FOR EACH STATEMENT EXECUTE FUNCTION mrtr_count(0);
CREATE TRIGGER mrtr_redemptions_removed AFTER DELETE ON mrtr_redemptions REFERENCING OLD TABLE AS counted
    FOR EACH STATEMENT EXECUTE FUNCTION mrtr_count(0);
CREATE TRIGGER mrtr_redemptions_changed AFTER UPDATE OF caller, blocks ON mrtr_redemptions FOR EACH ROW
    WHEN (OLD.caller <> NEW.caller OR OLD.blocks <> NEW.blocks) EXECUTE FUNCTION mrtr_recount(0);

CREATE TRIGGER mrtr_kept_added AFTER INSERT ON mrtr_kept REFERENCING NEW TABLE AS counted
    FOR EACH STATEMENT EXECUTE FUNCTION mrtr_count(0);
CREATE TRIGGER mrtr_kept_removed AFTER DELETE ON mrtr_kept REFERENCING OLD TABLE AS counted
    FOR EACH STATEMENT EXECUTE FUNCTION mrtr_count(0);
CREATE TRIGGER mrtr_kept_changed AFTER UPDATE OF caller, blocks ON mrtr_kept FOR EACH ROW
    WHEN (OLD.caller <> NEW.caller OR OLD.blocks <> NEW.blocks) EXECUTE FUNCTION mrtr_recount(0);

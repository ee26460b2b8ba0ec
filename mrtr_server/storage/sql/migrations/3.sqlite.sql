-- Who each row counts for, and how much each caller and all together have stored. The database counts in the transaction
-- that changes a row, so the count is right whatever writes the row and whoever removes it. Bytes are counted in blocks of
-- 4 KiB, each row rounded, so that few changes change the count.

ALTER TABLE mrtr_redemptions ADD COLUMN caller TEXT NOT NULL DEFAULT '';
ALTER TABLE mrtr_redemptions ADD COLUMN blocks INTEGER GENERATED ALWAYS AS ((coalesce(length(outcome), 0) + 2048) / 4096) VIRTUAL;
ALTER TABLE mrtr_kept ADD COLUMN caller TEXT NOT NULL DEFAULT '';
ALTER TABLE mrtr_kept ADD COLUMN blocks INTEGER GENERATED ALWAYS AS ((length(value) + 2048) / 4096) VIRTUAL;
ALTER TABLE mrtr_tasks ADD COLUMN caller TEXT NOT NULL DEFAULT '';
ALTER TABLE mrtr_tasks ADD COLUMN blocks INTEGER GENERATED ALWAYS AS (
    (length(call) + length(journal) + length(questions) + length(outcome) + 2048) / 4096
) VIRTUAL;

-- A claim looks at the tasks that wait by tool and caller, so it never walks through those of one caller; and at those that
-- run, which are few.
DROP INDEX ix_mrtr_tasks_working;
CREATE INDEX ix_mrtr_tasks_waiting ON mrtr_tasks (name, caller, updated) WHERE status = 'working' AND lease = '';
CREATE INDEX ix_mrtr_tasks_running ON mrtr_tasks (name) WHERE status = 'working' AND lease <> '';

-- The caller '*' stands for all. PostgreSQL has several rows of it, by shards.
CREATE TABLE mrtr_usage (
    caller TEXT NOT NULL,
    shard INTEGER NOT NULL,
    tasks INTEGER NOT NULL,
    states INTEGER NOT NULL,
    blocks INTEGER NOT NULL,
    PRIMARY KEY (caller, shard)
) WITHOUT ROWID;
INSERT INTO mrtr_usage (caller, shard, tasks, states, blocks)
SELECT '*', 0, coalesce(sum(tasks), 0), coalesce(sum(states), 0), coalesce(sum(blocks), 0)
FROM (
    SELECT 1 AS tasks, 0 AS states, blocks FROM mrtr_tasks
    UNION ALL SELECT 0, 1, blocks FROM mrtr_redemptions
    UNION ALL SELECT 0, 1, blocks FROM mrtr_kept
) AS stored;

-- To insert into this view is to count what has come, or with negative numbers what has gone.
CREATE VIEW mrtr_counted AS SELECT caller, tasks, states, blocks FROM mrtr_usage;
CREATE TRIGGER mrtr_count INSTEAD OF INSERT ON mrtr_counted BEGIN
    UPDATE mrtr_usage
    SET tasks = tasks + NEW.tasks, states = states + NEW.states, blocks = blocks + NEW.blocks
    WHERE caller = '*';
    INSERT INTO mrtr_usage (caller, shard, tasks, states, blocks)
    SELECT NEW.caller, 0, NEW.tasks, NEW.states, NEW.blocks WHERE NEW.caller <> ''
    ON CONFLICT (caller, shard) DO UPDATE
    SET tasks = tasks + NEW.tasks, states = states + NEW.states, blocks = blocks + NEW.blocks;
    DELETE FROM mrtr_usage WHERE caller = NEW.caller AND tasks = 0 AND states = 0 AND blocks = 0; END;

CREATE TRIGGER mrtr_tasks_added AFTER INSERT ON mrtr_tasks BEGIN
    INSERT INTO mrtr_counted VALUES (NEW.caller, 1, 0, NEW.blocks); END;
CREATE TRIGGER mrtr_tasks_changed AFTER UPDATE OF caller, call, journal, questions, outcome ON mrtr_tasks
    WHEN OLD.caller <> NEW.caller OR OLD.blocks <> NEW.blocks BEGIN
    INSERT INTO mrtr_counted VALUES (OLD.caller, -1, 0, -OLD.blocks), (NEW.caller, 1, 0, NEW.blocks); END;
CREATE TRIGGER mrtr_tasks_removed AFTER DELETE ON mrtr_tasks BEGIN
    INSERT INTO mrtr_counted VALUES (OLD.caller, -1, 0, -OLD.blocks); END;

CREATE TRIGGER mrtr_redemptions_added AFTER INSERT ON mrtr_redemptions BEGIN
    INSERT INTO mrtr_counted VALUES (NEW.caller, 0, 1, NEW.blocks); END;
CREATE TRIGGER mrtr_redemptions_changed AFTER UPDATE OF caller, outcome ON mrtr_redemptions
    WHEN OLD.caller <> NEW.caller OR OLD.blocks <> NEW.blocks BEGIN
    INSERT INTO mrtr_counted VALUES (OLD.caller, 0, -1, -OLD.blocks), (NEW.caller, 0, 1, NEW.blocks); END;
CREATE TRIGGER mrtr_redemptions_removed AFTER DELETE ON mrtr_redemptions BEGIN
    INSERT INTO mrtr_counted VALUES (OLD.caller, 0, -1, -OLD.blocks); END;

CREATE TRIGGER mrtr_kept_added AFTER INSERT ON mrtr_kept BEGIN
    INSERT INTO mrtr_counted VALUES (NEW.caller, 0, 1, NEW.blocks); END;
CREATE TRIGGER mrtr_kept_changed AFTER UPDATE OF caller, value ON mrtr_kept
    WHEN OLD.caller <> NEW.caller OR OLD.blocks <> NEW.blocks BEGIN
    INSERT INTO mrtr_counted VALUES (OLD.caller, 0, -1, -OLD.blocks), (NEW.caller, 0, 1, NEW.blocks); END;
CREATE TRIGGER mrtr_kept_removed AFTER DELETE ON mrtr_kept BEGIN
    INSERT INTO mrtr_counted VALUES (OLD.caller, 0, -1, -OLD.blocks); END;

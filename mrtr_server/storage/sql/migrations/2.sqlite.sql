-- Tasks, and what processes that share a SQLite file tell each other.

-- The fields of a `TaskRow`, in their order, and who made this version of it.
CREATE TABLE mrtr_tasks (
    id TEXT NOT NULL,
    owner TEXT NOT NULL,
    name TEXT NOT NULL,
    status TEXT NOT NULL,
    message TEXT NOT NULL,
    created DOUBLE NOT NULL,
    updated DOUBLE NOT NULL,
    ttl DOUBLE NOT NULL,
    poll DOUBLE NOT NULL,
    deadline DOUBLE NOT NULL,
    expires DOUBLE NOT NULL,
    call BLOB NOT NULL,
    journal BLOB NOT NULL,
    questions BLOB NOT NULL,
    outcome BLOB NOT NULL,
    version INTEGER NOT NULL,
    lease TEXT NOT NULL,
    leased_until DOUBLE NOT NULL,
    attempts INTEGER NOT NULL,
    writer TEXT NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX ix_mrtr_tasks_expires ON mrtr_tasks (expires);
-- The databases use an index on a part only where a query says that part in the same words.
CREATE INDEX ix_mrtr_tasks_working ON mrtr_tasks (updated, name) WHERE status = 'working';
CREATE INDEX ix_mrtr_tasks_open ON mrtr_tasks (deadline) WHERE status IN ('working', 'input_required');

-- A number is never used again, not even that of the last one.
CREATE TABLE mrtr_changes (
    number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    writer TEXT NOT NULL,
    said TEXT NOT NULL,
    written DOUBLE NOT NULL,
    expires DOUBLE NOT NULL
);
CREATE INDEX ix_mrtr_changes_expires ON mrtr_changes (expires);

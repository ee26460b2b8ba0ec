-- Tasks, and what processes tell each other.

-- The fields of a `TaskRow`, in their order, and who made this version of it.
CREATE TABLE mrtr_tasks (
    id TEXT NOT NULL,
    owner TEXT NOT NULL,
    name TEXT NOT NULL,
    status TEXT NOT NULL,
    message TEXT NOT NULL,
    created DOUBLE PRECISION NOT NULL,
    updated DOUBLE PRECISION NOT NULL,
    ttl DOUBLE PRECISION NOT NULL,
    poll DOUBLE PRECISION NOT NULL,
    deadline DOUBLE PRECISION NOT NULL,
    expires DOUBLE PRECISION NOT NULL,
    call BYTEA NOT NULL,
    journal BYTEA NOT NULL,
    questions BYTEA NOT NULL,
    outcome BYTEA NOT NULL,
    version INTEGER NOT NULL,
    lease TEXT NOT NULL,
    leased_until DOUBLE PRECISION NOT NULL,
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
    number SERIAL NOT NULL PRIMARY KEY,
    writer TEXT NOT NULL,
    said TEXT NOT NULL,
    written DOUBLE PRECISION NOT NULL,
    expires DOUBLE PRECISION NOT NULL
);
CREATE INDEX ix_mrtr_changes_expires ON mrtr_changes (expires);

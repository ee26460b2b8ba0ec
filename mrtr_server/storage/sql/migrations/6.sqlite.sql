-- PostgreSQL counts what is stored in more rows from here on. A file has one writer at a time, so nothing changes in it.

-- Operators list tasks by tool and status, the last changed first.
CREATE INDEX ix_mrtr_tasks_listed ON mrtr_tasks ((name || ''), status, updated);

-- Who was forgotten by `mrtr-server forget`, by keyed digest: what began before that moment counts no more. A row is kept for
-- as long as a flow may last.
CREATE TABLE mrtr_forgotten (
    caller TEXT NOT NULL,
    moment DOUBLE NOT NULL,
    expires DOUBLE NOT NULL,
    PRIMARY KEY (caller)
);

UPDATE mrtr_schema SET compatible_from = '5';

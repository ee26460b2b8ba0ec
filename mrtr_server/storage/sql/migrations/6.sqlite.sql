-- PostgreSQL counts what is stored in more rows from here on. A file has one writer at a time, so nothing changes in it.

-- Operators list tasks by tool and status, the last changed first.
CREATE INDEX ix_mrtr_tasks_listed ON mrtr_tasks ((name || ''), status, updated);

UPDATE mrtr_schema SET compatible_from = '5';

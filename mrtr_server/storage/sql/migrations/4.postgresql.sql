-- A caller may list its tasks. Those of nobody are in no list.
CREATE INDEX CONCURRENTLY ix_mrtr_tasks_owned ON mrtr_tasks (owner, created, id) WHERE owner <> '';

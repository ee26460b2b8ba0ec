-- The statements of a store in PostgreSQL. `:now` is the clock of the database, in seconds since the epoch.
-- What has expired counts as absent in every one. The file beside this one has the same for SQLite: the two differ in
-- the clock, in how a column is looked for in a list, and in that PostgreSQL leaves out rows that others are changing.

-- Redeemed states

-- name: grant
INSERT INTO mrtr_redemptions (state, answers, token, attempt, leased_until, expires)
VALUES (:state, :answers, :token, 1, :now + :lease, :now + :keep)
ON CONFLICT (state) DO UPDATE SET
    answers = excluded.answers,
    token = excluded.token,
    attempt = CASE WHEN mrtr_redemptions.expires <= :now THEN 1 ELSE mrtr_redemptions.attempt + 1 END,
    leased_until = excluded.leased_until,
    expires = CASE WHEN mrtr_redemptions.expires <= :now THEN excluded.expires ELSE mrtr_redemptions.expires END,
    outcome = NULL
WHERE mrtr_redemptions.expires <= :now
    OR (
        mrtr_redemptions.outcome IS NULL
        AND mrtr_redemptions.leased_until <= :now
        AND mrtr_redemptions.answers = excluded.answers
    )
RETURNING attempt;

-- name: find_redemption
SELECT answers, token, attempt, outcome FROM mrtr_redemptions WHERE state = :state AND expires > :now;

-- name: renew_grant
UPDATE mrtr_redemptions SET leased_until = :now + :lease
WHERE state = :state AND token = :token AND expires > :now AND outcome IS NULL
RETURNING state;

-- name: record_outcome
UPDATE mrtr_redemptions SET outcome = :outcome
WHERE state = :state AND token = :token AND expires > :now AND (outcome IS NULL OR outcome = :outcome)
RETURNING state;

-- name: release_grant
DELETE FROM mrtr_redemptions
WHERE state = :state AND token = :token AND expires > :now AND outcome IS NULL
RETURNING state;

-- Values that are kept by a key

-- name: put_value
-- The same writer comes twice where the first reply was lost with its connection.
INSERT INTO mrtr_kept (key, value, writer, expires)
VALUES (:key, :value, :writer, :now + :keep)
ON CONFLICT (key) DO UPDATE SET value = excluded.value, writer = excluded.writer, expires = excluded.expires
WHERE mrtr_kept.expires <= :now OR mrtr_kept.writer = excluded.writer
RETURNING key;

-- name: replace_value
INSERT INTO mrtr_kept (key, value, writer, expires)
VALUES (:key, :value, :writer, :now + :keep)
ON CONFLICT (key) DO UPDATE SET value = excluded.value, writer = excluded.writer, expires = excluded.expires
RETURNING key;

-- name: get_value
SELECT value FROM mrtr_kept WHERE key = :key AND expires > :now;

-- Tasks

-- name: add_task
-- It is there already where the first reply was lost with its connection; ids are never used twice.
INSERT INTO mrtr_tasks (
    id, owner, name, status, message, created, updated, ttl, poll, deadline, expires, call, journal, questions, outcome,
    version, lease, leased_until, attempts, writer
)
VALUES (
    :id, :owner, :name, :status, :message, :created, :updated, :ttl, :poll, :deadline, :expires, :call, :journal,
    :questions, :outcome, :version, :lease, :leased_until, :attempts, :writer
)
ON CONFLICT (id) DO NOTHING
RETURNING id;

-- name: add_leased_task
INSERT INTO mrtr_tasks (
    id, owner, name, status, message, created, updated, ttl, poll, deadline, expires, call, journal, questions, outcome,
    version, lease, leased_until, attempts, writer
)
VALUES (
    :id, :owner, :name, :status, :message, :created, :updated, :ttl, :poll, :deadline, :expires, :call, :journal,
    :questions, :outcome, :version, :lease, :now + :seconds, :attempts, :writer
)
ON CONFLICT (id) DO NOTHING
RETURNING id;

-- name: find_task
SELECT
    id, owner, name, status, message, created, updated, ttl, poll, deadline, expires, call, journal, questions, outcome,
    version, lease, leased_until, attempts
FROM mrtr_tasks
WHERE id = :id AND expires > :now;

-- name: find_tasks
SELECT
    id, owner, name, status, message, created, updated, ttl, poll, deadline, expires, call, journal, questions, outcome,
    version, lease, leased_until, attempts
FROM mrtr_tasks
WHERE id = ANY(:ids::text[]) AND expires > :now;

-- name: change_task
-- The writer of the next version comes again where the first reply was lost with its connection.
UPDATE mrtr_tasks SET {changes}
WHERE id = :id
    AND (version = :before OR (version = :before + 1 AND writer = :writer))
    AND expires > :now
RETURNING leased_until;

-- name: claim_tasks
-- Not by the column `expires` itself, or its index might be chosen, which has all tasks but the expired ones.
-- A table expression, since PostgreSQL may evaluate a plain subquery more than once, and so take more than the limit.
WITH taken AS (
    SELECT id FROM mrtr_tasks
    WHERE status = 'working'
        AND leased_until <= :now
        AND deadline > :now
        AND expires + 0 > :now
        AND name = ANY(:tools::text[])
        AND id <> ALL(:without::text[])
    ORDER BY updated
    LIMIT :most
    FOR UPDATE SKIP LOCKED
)
UPDATE mrtr_tasks
SET lease = :lease, leased_until = :now + :seconds, attempts = attempts + 1, version = version + 1, writer = :writer
WHERE id IN (SELECT id FROM taken)
RETURNING
    id, owner, name, status, message, created, updated, ttl, poll, deadline, expires, call, journal, questions, outcome,
    version, lease, leased_until, attempts;

-- name: any_free_task
SELECT id FROM mrtr_tasks
WHERE status = 'working'
    AND leased_until <= :now
    AND deadline > :now
    AND expires + 0 > :now
    AND name = ANY(:tools::text[])
    AND id <> ALL(:without::text[])
LIMIT 1;

-- name: renew_tasks
UPDATE mrtr_tasks SET leased_until = :now + :seconds
WHERE id = ANY(:ids::text[]) AND lease = :lease AND status = 'working' AND expires > :now
RETURNING id;

-- name: overdue_tasks
SELECT
    id, owner, name, status, message, created, updated, ttl, poll, deadline, expires, call, journal, questions, outcome,
    version, lease, leased_until, attempts
FROM mrtr_tasks
WHERE status IN ('working', 'input_required') AND deadline <= :now AND expires + 0 > :now
ORDER BY deadline
LIMIT :most;

-- What processes tell each other

-- name: notify
SELECT pg_notify(:channel, said) FROM unnest(:notices::text[]) AS said;

-- Sweeping: remove some of what has expired, and return the keys

-- name: sweep_redemptions
WITH removed AS (
    SELECT state FROM mrtr_redemptions WHERE expires <= :now ORDER BY expires LIMIT :most FOR UPDATE SKIP LOCKED
)
DELETE FROM mrtr_redemptions WHERE state IN (SELECT state FROM removed) RETURNING state;

-- name: sweep_values
WITH removed AS (
    SELECT key FROM mrtr_kept WHERE expires <= :now ORDER BY expires LIMIT :most FOR UPDATE SKIP LOCKED
)
DELETE FROM mrtr_kept WHERE key IN (SELECT key FROM removed) RETURNING key;

-- name: sweep_tasks
WITH removed AS (
    SELECT id FROM mrtr_tasks WHERE expires <= :now ORDER BY expires LIMIT :most FOR UPDATE SKIP LOCKED
)
DELETE FROM mrtr_tasks WHERE id IN (SELECT id FROM removed) RETURNING id;

-- The version of the tables

-- name: find_version
SELECT version_num FROM mrtr_schema;

-- name: keep_version
UPDATE mrtr_schema SET version_num = '{version}';

-- name: make_version_table
CREATE TABLE mrtr_schema (version_num VARCHAR(32) NOT NULL, PRIMARY KEY (version_num));

-- name: make_version
INSERT INTO mrtr_schema (version_num) VALUES ('{version}');

-- name: has_version_table
-- Not to_regclass(), which may answer from a cache, of before another process made the tables.
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_class WHERE relname = 'mrtr_schema' AND pg_catalog.pg_table_is_visible(oid)
);

-- name: lock_version
-- Held while the tables are made: CREATE TABLE fails where two do it at once. The number is "mrtr" in ASCII.
SELECT pg_advisory_xact_lock(1836217458);

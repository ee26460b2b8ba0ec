-- The statements of a store in a SQLite file. `:now` is the clock of the machine, in seconds since the epoch.
-- What has expired counts as absent in every one. The file beside this one has the same for PostgreSQL: the two differ
-- in the clock, in how a column is looked for in a list, and in that SQLite locks no rows.

-- Redeemed states

-- name: grant
-- A state that is there already is not counted again. One that names another epoch may have been redeemed in what was lost,
-- or in another store. One of a flow that began before its caller was forgotten ends with that.
INSERT INTO mrtr_redemptions (state, answers, token, attempt, leased_until, expires, caller, tenant)
SELECT :state, :answers, :token, 1, :now + :lease, :now + :keep, :caller, :tenant
WHERE (:epoch = '' OR :epoch = (SELECT epoch FROM mrtr_schema))
    AND NOT EXISTS (SELECT 1 FROM mrtr_forgotten WHERE caller = :caller AND moment >= :begun AND expires > :now)
    AND (
        EXISTS (SELECT 1 FROM mrtr_redemptions WHERE state = :state)
        OR (
            SELECT coalesce(sum(states), 0) < :most AND coalesce(sum(blocks), 0) < :most_blocks
            FROM mrtr_usage WHERE caller = '*'
        )
        AND (
            SELECT coalesce(sum(states), 0) < :share AND coalesce(sum(blocks), 0) < :share_blocks
            FROM mrtr_usage WHERE caller = :caller
        )
        AND (
            SELECT coalesce(sum(states), 0) < :tenant_share AND coalesce(sum(blocks), 0) < :tenant_blocks
            FROM mrtr_usage WHERE caller = :tenant
        )
    )
ON CONFLICT (state) DO UPDATE SET
    answers = excluded.answers,
    token = excluded.token,
    attempt = CASE WHEN mrtr_redemptions.expires <= :now THEN 1 ELSE mrtr_redemptions.attempt + 1 END,
    leased_until = excluded.leased_until,
    expires = CASE WHEN mrtr_redemptions.expires <= :now THEN excluded.expires ELSE mrtr_redemptions.expires END,
    outcome = NULL,
    caller = excluded.caller,
    tenant = excluded.tenant
WHERE mrtr_redemptions.expires <= :now
    OR (
        mrtr_redemptions.outcome IS NULL
        AND :lapsed
        AND mrtr_redemptions.leased_until <= :now
        AND mrtr_redemptions.answers = excluded.answers
    )
RETURNING attempt;

-- name: find_redemption
SELECT
    answers, token, attempt, outcome, (SELECT epoch FROM mrtr_schema),
    EXISTS (SELECT 1 FROM mrtr_forgotten WHERE caller = :caller AND moment >= :begun AND expires > :now)
FROM mrtr_redemptions
WHERE state = :state AND expires > :now;

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
INSERT INTO mrtr_kept ("key", value, writer, expires, caller, tenant)
SELECT :key, :value, :writer, :now + :keep, :caller, :tenant
WHERE NOT EXISTS (SELECT 1 FROM mrtr_forgotten WHERE caller = :caller AND moment >= :begun AND expires > :now)
    AND (
        EXISTS (SELECT 1 FROM mrtr_kept WHERE "key" = :key)
        OR (
            SELECT coalesce(sum(states), 0) < :most AND coalesce(sum(blocks), 0) < :most_blocks
            FROM mrtr_usage WHERE caller = '*'
        )
        AND (
            SELECT coalesce(sum(states), 0) < :share AND coalesce(sum(blocks), 0) < :share_blocks
            FROM mrtr_usage WHERE caller = :caller
        )
        AND (
            SELECT coalesce(sum(states), 0) < :tenant_share AND coalesce(sum(blocks), 0) < :tenant_blocks
            FROM mrtr_usage WHERE caller = :tenant
        )
    )
ON CONFLICT ("key") DO UPDATE
SET value = excluded.value, writer = excluded.writer, expires = excluded.expires, caller = excluded.caller,
    tenant = excluded.tenant
WHERE mrtr_kept.expires <= :now OR mrtr_kept.writer = excluded.writer
RETURNING "key";

-- name: replace_value
INSERT INTO mrtr_kept ("key", value, writer, expires, caller, tenant)
SELECT :key, :value, :writer, :now + :keep, :caller, :tenant
WHERE NOT EXISTS (SELECT 1 FROM mrtr_forgotten WHERE caller = :caller AND moment >= :begun AND expires > :now)
    AND (
        EXISTS (SELECT 1 FROM mrtr_kept WHERE "key" = :key)
        OR (
            SELECT coalesce(sum(states), 0) < :most AND coalesce(sum(blocks), 0) < :most_blocks
            FROM mrtr_usage WHERE caller = '*'
        )
        AND (
            SELECT coalesce(sum(states), 0) < :share AND coalesce(sum(blocks), 0) < :share_blocks
            FROM mrtr_usage WHERE caller = :caller
        )
        AND (
            SELECT coalesce(sum(states), 0) < :tenant_share AND coalesce(sum(blocks), 0) < :tenant_blocks
            FROM mrtr_usage WHERE caller = :tenant
        )
    )
ON CONFLICT ("key") DO UPDATE
SET value = excluded.value, writer = excluded.writer, expires = excluded.expires, caller = excluded.caller,
    tenant = excluded.tenant
RETURNING "key";

-- name: get_value
SELECT value FROM mrtr_kept WHERE "key" = :key AND expires > :now;

-- name: list_logins
-- For operators: the tokens of people at the provider, by when they end. Each is kept for as long from its last use on.
SELECT "key", value, expires FROM mrtr_kept
WHERE substr("key", 1, 6) = 'login-' AND (expires + 0, "key") < (:before, :id) AND expires + 0 > :now
ORDER BY expires + 0 DESC, "key" DESC
LIMIT :most;

-- Tasks

-- name: add_task
-- It is there already where the first reply was lost with its connection; ids are never used twice. The epoch is the one
-- that the id names.
INSERT INTO mrtr_tasks (
    id, owner, name, status, message, created, updated, ttl, poll, deadline, expires, call, journal, questions, outcome,
    version, lease, leased_until, attempts, caller, tenant, writer
)
SELECT
    :id, :owner, :name, :status, :message, :created, :updated, :ttl, :poll, :deadline, :expires, :call, :journal,
    :questions, :outcome, :version, :lease, CASE WHEN :lease = '' THEN :leased_until ELSE :now + :seconds END, :attempts, :caller, :tenant, :writer
WHERE (:epoch = '' OR :epoch = (SELECT epoch FROM mrtr_schema))
    AND NOT EXISTS (SELECT 1 FROM mrtr_forgotten WHERE caller = :caller AND moment >= :begun AND expires > :now)
    AND (
        SELECT coalesce(sum(tasks), 0) < :most AND coalesce(sum(blocks), 0) < :most_blocks
        FROM mrtr_usage WHERE caller = '*'
    )
    AND (
        SELECT coalesce(sum(tasks), 0) < :share AND coalesce(sum(blocks), 0) < :share_blocks
        FROM mrtr_usage WHERE caller = :caller
    )
    AND (
        SELECT coalesce(sum(tasks), 0) < :tenant_share AND coalesce(sum(blocks), 0) < :tenant_blocks
        FROM mrtr_usage WHERE caller = :tenant
    )
ON CONFLICT (id) DO NOTHING
RETURNING id;

-- name: find_task
-- One that has not ended is its own epoch's: what it did last may be lost, or go on elsewhere.
SELECT
    id, owner, name, status, message, created, updated, ttl, poll, deadline, expires, call, journal, questions, outcome,
    version, lease, leased_until, attempts, caller
FROM mrtr_tasks
WHERE id = :id AND expires > :now
    AND (status IN ('completed', 'failed', 'cancelled') OR id NOT LIKE '%-%-%' OR id LIKE (SELECT '%-' || epoch || '-%' FROM mrtr_schema));

-- name: look_at_tasks
-- The sum is of those before this one, so the first is there however large it is.
SELECT
    id, owner, name, status, message, created, updated, ttl, poll, deadline, expires, x'', x'', questions, outcome,
    version, lease, leased_until, attempts, caller
FROM (
    SELECT *, sum(length(questions) + length(outcome) + length(message)) OVER (
        ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS before
    FROM mrtr_tasks WHERE id IN (SELECT value FROM json_each(:ids)) AND expires > :now
) AS found
WHERE coalesce(before, 0) < :most_bytes
ORDER BY id;

-- name: task_names
-- The tools that have tasks: one look in the index for each. Its first column is an expression, so that no claim chooses it.
WITH RECURSIVE names (name) AS (
    SELECT min(name || '') FROM mrtr_tasks
    UNION ALL
    SELECT (SELECT min(name || '') FROM mrtr_tasks WHERE name || '' > names.name) FROM names WHERE name IS NOT NULL
)
SELECT name FROM names WHERE name IS NOT NULL;

-- name: list_tasks
-- For operators: of one tool and one status, without what is sealed.
SELECT
    id, owner, name, status, message, created, updated, ttl, poll, deadline, expires, x'', x'', x'', x'',
    version, lease, leased_until, attempts, caller
FROM mrtr_tasks
WHERE name || '' = :tool AND status = :status AND (updated, id) < (:before, :id) AND expires + 0 > :now
ORDER BY updated DESC, id DESC
LIMIT :most;

-- name: find_referenced_tasks
-- By the first digits of their ids, as the log has them: `z` comes after all that they are written in.
SELECT id FROM mrtr_tasks WHERE id >= :reference AND id < :reference || 'z' AND expires + 0 > :now
UNION ALL
SELECT id FROM mrtr_tasks WHERE id >= 'task-' || :reference AND id < 'task-' || :reference || 'z' AND expires + 0 > :now
LIMIT 2;

-- name: tenant_of_task
SELECT tenant FROM mrtr_tasks WHERE id = :id;

-- name: list_owned_tasks
-- Nobody's tasks are in no list, and the index leaves them out. The sum is as above.
SELECT
    id, owner, name, status, message, created, updated, ttl, poll, deadline, expires, x'', x'', questions, outcome,
    version, lease, leased_until, attempts, caller
FROM (
    SELECT *, sum(length(questions) + length(outcome) + length(message)) OVER (
        ORDER BY created DESC, id DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS before
    FROM (
        SELECT * FROM mrtr_tasks
        WHERE owner = :owner AND owner <> '' AND (created, id) < (:created, :id) AND expires > :now
        ORDER BY created DESC, id DESC
        LIMIT :most
    ) AS newest
) AS found
WHERE coalesce(before, 0) < :most_bytes
ORDER BY created DESC, id DESC;

-- name: change_task
-- The writer of the next version comes again where the first reply was lost with its connection.
UPDATE mrtr_tasks SET {changes}
WHERE id = :id
    AND (version = :before OR (version = :before + 1 AND writer = :writer))
    AND expires > :now
RETURNING leased_until;

-- name: claim_tasks
-- One look in the index for each tool and caller that has tasks waiting, from a caller on that is drawn by lot, and at most
-- for so many of them: however many tasks wait, those of others are found as fast. Then the tasks of each queue are put in
-- turn, with those that run here before them, so that the next place goes to the caller that has the fewest.
-- `:lapsed_by` is when the claim was sent, by this clock: a statement that is run later must not take what the others
-- could not renew meanwhile. It is 0 where only tasks are claimed whose lease was given back.
-- Not by the column `expires` itself, or its index might be chosen, which has all tasks but the expired ones.
WITH RECURSIVE later (name, caller) AS (
    SELECT value, :start FROM json_each(:tools)
    UNION ALL
    SELECT name, (
        SELECT min(caller) FROM mrtr_tasks
        WHERE status = 'working' AND lease = '' AND name = later.name AND caller > later.caller
    )
    FROM later WHERE caller IS NOT NULL
),
earlier (name, caller) AS (
    SELECT value, '' FROM json_each(:tools)
    UNION ALL
    SELECT name, (
        SELECT min(caller) FROM mrtr_tasks
        WHERE status = 'working' AND lease = '' AND name = earlier.name AND caller > earlier.caller AND caller <= :start
    )
    FROM earlier WHERE caller IS NOT NULL
),
queues (name, caller) AS (
    SELECT value, '' FROM json_each(:tools)
    UNION ALL SELECT name, caller FROM later WHERE caller <> :start
    UNION ALL SELECT name, caller FROM earlier WHERE caller <> ''
    LIMIT :queues
),
free AS (
    SELECT task.id, task.caller, task.updated
    FROM queues
    JOIN json_each((
        SELECT json_group_array(found.id) FROM (
            SELECT id FROM mrtr_tasks
            WHERE status = 'working' AND lease = '' AND name = queues.name AND caller = queues.caller
                AND leased_until <= :now
                AND expires + 0 > :now
                AND id NOT IN (SELECT value FROM json_each(:without))
                AND (id NOT LIKE '%-%-%' OR id LIKE (SELECT '%-' || epoch || '-%' FROM mrtr_schema))
            ORDER BY updated
            LIMIT :most
        ) AS found
    )) AS first
    JOIN mrtr_tasks AS task ON task.id = first.value
    UNION ALL
    SELECT id, caller, updated FROM mrtr_tasks
    WHERE status = 'working' AND lease <> '' AND name IN (SELECT value FROM json_each(:tools))
        AND leased_until <= :now
        AND leased_until <= :lapsed_by
        AND expires + 0 > :now
        AND id NOT IN (SELECT value FROM json_each(:without))
        AND (id NOT LIKE '%-%-%' OR id LIKE (SELECT '%-' || epoch || '-%' FROM mrtr_schema))
),
ranked AS (
    SELECT id, caller, updated, coalesce((
        SELECT held.value FROM json_each(:callers) AS holder JOIN json_each(:held) AS held ON held."key" = holder."key"
        WHERE holder.value = free.caller
    ), 0)
        + row_number() OVER (PARTITION BY caller ORDER BY updated) AS rank
    FROM free
),
taken AS (
    SELECT id FROM (SELECT *, row_number() OVER (ORDER BY rank, updated) AS place FROM ranked)
    WHERE caller = '' OR rank <= :share OR place <= :spare
    ORDER BY place
    LIMIT :most
)
UPDATE mrtr_tasks
SET lease = :lease, leased_until = :now + :seconds, attempts = attempts + 1, version = version + 1, writer = :writer
WHERE id IN (SELECT id FROM taken)
RETURNING
    id, owner, name, status, message, created, updated, ttl, poll, deadline, expires, call, journal, questions, outcome,
    version, lease, leased_until, attempts, caller;

-- name: any_free_task
-- Whether its caller may have one more is for the claim to find out.
SELECT id FROM (
    SELECT id FROM mrtr_tasks
    WHERE status = 'working' AND lease = '' AND name IN (SELECT value FROM json_each(:tools))
        AND leased_until <= :now
        AND expires + 0 > :now
        AND id NOT IN (SELECT value FROM json_each(:without))
        AND (id NOT LIKE '%-%-%' OR id LIKE (SELECT '%-' || epoch || '-%' FROM mrtr_schema))
    LIMIT 1
) AS waiting
UNION ALL
SELECT id FROM (
    SELECT id FROM mrtr_tasks
    WHERE status = 'working' AND lease <> '' AND name IN (SELECT value FROM json_each(:tools))
        AND leased_until <= :now
        AND leased_until <= :lapsed_by
        AND expires + 0 > :now
        AND id NOT IN (SELECT value FROM json_each(:without))
        AND (id NOT LIKE '%-%-%' OR id LIKE (SELECT '%-' || epoch || '-%' FROM mrtr_schema))
    LIMIT 1
) AS lapsed
LIMIT 1;

-- name: renew_tasks
UPDATE mrtr_tasks SET leased_until = :now + :seconds
WHERE id IN (SELECT value FROM json_each(:ids)) AND lease = :lease AND status IN ('working', 'cancelled') AND expires > :now
RETURNING id, status;

-- name: holds_task
SELECT id FROM mrtr_tasks WHERE id = :id AND lease = :lease AND status = 'working' AND expires > :now;

-- name: overdue_tasks
SELECT
    id, owner, name, status, message, created, updated, ttl, poll, deadline, expires, call, journal, questions, outcome,
    version, lease, leased_until, attempts, caller
FROM mrtr_tasks
WHERE status IN ('working', 'input_required') AND deadline <= :now AND expires + 0 > :now
ORDER BY deadline
LIMIT :most;

-- How much is stored

-- name: find_usage
SELECT caller, sum(tasks), sum(states), sum(blocks) FROM mrtr_usage WHERE caller IN ('*', :caller, :tenant) GROUP BY caller;

-- name: measure
-- First what is stored in all; then of each tool how many tasks wait, at most so many, and how long the oldest one has
-- waited: for a worker, or since the one that ran it fell silent.
SELECT NULL AS tool, sum(tasks) AS counted, sum(states) AS other, sum(blocks) AS blocks, 0.0 AS delay
FROM mrtr_usage WHERE caller = '*'
UNION ALL
SELECT
    value,
    (
        SELECT count(*) FROM (
            SELECT 1 FROM mrtr_tasks
            WHERE status = 'working' AND lease = '' AND name = value AND leased_until <= :now AND expires + 0 > :now
            LIMIT :most
        )
    ) + (
        SELECT count(*) FROM mrtr_tasks
        WHERE status = 'working' AND lease <> '' AND name = value AND leased_until <= :now AND expires + 0 > :now
    ),
    :now - min(
        (
            SELECT coalesce(min(updated), :now) FROM (
                SELECT updated FROM mrtr_tasks
                WHERE status = 'working' AND lease = '' AND name = value AND leased_until <= :now AND expires + 0 > :now
                LIMIT :most
            )
        ),
        (
            SELECT coalesce(min(leased_until), :now) FROM mrtr_tasks
            WHERE status = 'working' AND lease <> '' AND name = value AND leased_until <= :now AND expires + 0 > :now
        )
    ),
    0,
    0.0
FROM json_each(:tools);

-- What processes tell each other: SQLite has no NOTIFY

-- name: write_notices
INSERT INTO mrtr_changes (writer, written, expires, said)
SELECT :writer, :now, :now + :keep, value FROM json_each(:notices);

-- name: read_notices
SELECT number, writer, said FROM mrtr_changes WHERE number > :seen ORDER BY number LIMIT :most;

-- name: last_notice_before
SELECT number FROM mrtr_changes WHERE written < :before ORDER BY number DESC LIMIT 1;

-- Waits for somebody else

-- name: put_wait
-- Not that of a person who was forgotten since it began, nor one that only such a person may answer.
INSERT INTO mrtr_waits (id, task, name, who, created, expires, caller)
SELECT :id, :task, :name, :who, :created, :expires, :caller
WHERE NOT EXISTS (
    SELECT 1 FROM mrtr_forgotten WHERE caller IN (:caller, :who) AND moment >= :created AND expires > :now
)
ON CONFLICT (id) DO UPDATE SET who = excluded.who
RETURNING id;

-- name: list_waits
SELECT id, task, name, who, created, expires, caller FROM mrtr_waits
WHERE name = :name AND who = :who AND (created, id) < (:created, :id) AND expires + 0 > :now
ORDER BY created DESC, id DESC
LIMIT :most;

-- name: wait_names
-- The names that have waits: one look in the index for each.
WITH RECURSIVE names (name) AS (
    SELECT min(name) FROM mrtr_waits
    UNION ALL
    SELECT (SELECT min(name) FROM mrtr_waits WHERE name > names.name) FROM names WHERE name IS NOT NULL
)
SELECT name FROM names WHERE name IS NOT NULL;

-- name: find_waits
-- For operators: of one name, whoever may answer.
SELECT id, task, name, who, created, expires, caller FROM mrtr_waits
WHERE name = :name AND (created, id) < (:created, :id) AND expires + 0 > :now
ORDER BY created DESC, id DESC
LIMIT :most;

-- name: find_referenced_waits
-- By the first digits of their ids.
SELECT id FROM mrtr_waits WHERE id >= :reference AND id < :reference || 'z' AND expires + 0 > :now LIMIT 2;

-- name: find_wait
SELECT id, task, name, who, created, expires, caller FROM mrtr_waits WHERE id = :id AND expires > :now;

-- name: remove_wait
DELETE FROM mrtr_waits WHERE id = :id RETURNING id;

-- Events

-- name: add_event
-- A trigger removes one of that id that has expired, and is still there.
INSERT INTO mrtr_events (id, name, audience, body, created, expires)
VALUES (:id, :name, :audience, :body, :created, :expires)
ON CONFLICT (id, name) DO NOTHING
RETURNING number;

-- name: read_events
-- One look in the index for each name; at the end of the log, it finds nothing. Each row says whether it still fits; the
-- bytes are those of all rows up to it. One that has expired is looked at, but not returned: whoever has not read it lacks it.
SELECT
    log.last,
    (
        SELECT json_group_array(name) FROM mrtr_event_floors
        WHERE name IN (SELECT value FROM json_each(:names)) AND number > :number
    ),
    0.0,
    fits, has_expired, 0, number,
    id, name, audience, CASE WHEN fits AND NOT has_expired THEN body END, created, expires
FROM (SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'mrtr_events'), 0) AS last) AS log
LEFT JOIN (
    SELECT *,
        expires <= :now AS has_expired,
        row_number() OVER in_order = 1 OR sum(length(body) + :besides) OVER in_order <= :most_bytes AS fits
    FROM (
        SELECT event.*
        FROM json_each(:names) AS asked
        JOIN json_each((
            SELECT json_group_array(number) FROM (
                SELECT number FROM mrtr_events WHERE name = asked.value AND number > :number ORDER BY number LIMIT :most + 1
            )
        )) AS first
        JOIN mrtr_events AS event ON event.number = first.value
        ORDER BY event.number
        LIMIT :most + 1
    )
    WINDOW in_order AS (ORDER BY number)
) AS page ON true
ORDER BY number;

-- name: trim_events
DELETE FROM mrtr_events
WHERE number IN (
    SELECT number FROM mrtr_events
    WHERE name = :name
        AND number <= (SELECT number FROM mrtr_events WHERE name = :name ORDER BY number DESC LIMIT 1 OFFSET :most)
    ORDER BY number
    LIMIT :batch
)
RETURNING number;

-- Subscriptions to events

-- name: find_subscription
SELECT id, kind, name, caller, body, progress, created, updated, expires FROM mrtr_subscriptions
WHERE id = :id AND expires > :now;

-- name: list_subscriptions
SELECT id, kind, name, caller, body, progress, created, updated, expires FROM mrtr_subscriptions
WHERE id > :after AND expires + :ended > :now
ORDER BY id
LIMIT :most;

-- name: list_changed_subscriptions
-- By when they were updated, so not by their ids, however few are asked for.
SELECT id, kind, name, caller, body, progress, created, updated, expires FROM mrtr_subscriptions
WHERE updated >= :since AND id || '' > :after AND expires + :ended > :now
ORDER BY id || ''
LIMIT :most;

-- name: count_subscriptions
SELECT coalesce(sum(CASE WHEN caller = :caller THEN 1 ELSE 0 END), 0), count(*) FROM mrtr_subscriptions
WHERE kind = :kind AND expires > :now;

-- name: remove_subscription
DELETE FROM mrtr_subscriptions WHERE id = :id RETURNING id;

-- name: remove_unchanged_subscription
DELETE FROM mrtr_subscriptions WHERE id = :id AND updated = :updated RETURNING id;

-- name: take_lease
INSERT INTO mrtr_leases (name, holder, until) VALUES (:lease, :holder, :now + :seconds)
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until = excluded.until
WHERE mrtr_leases.holder = excluded.holder OR mrtr_leases.until <= :now
RETURNING name;

-- name: has_lease
-- Nobody else has taken it, although it may have ended.
SELECT name FROM mrtr_leases WHERE name = :lease AND holder = :holder;

-- name: find_any_subscription
SELECT id, kind, name, caller, body, progress, created, updated, expires FROM mrtr_subscriptions WHERE id = :id;

-- name: put_subscription
-- If it is still as it was found: one that was updated then, or none; and not of a person who was forgotten since.
INSERT INTO mrtr_subscriptions (id, kind, name, caller, body, progress, created, updated, expires)
SELECT :id, :kind, :name, :caller, :body, :progress, :created, :updated, :expires
WHERE NOT EXISTS (SELECT 1 FROM mrtr_forgotten WHERE caller = :caller AND moment >= :updated AND expires > :now)
    AND (
        EXISTS (SELECT 1 FROM mrtr_subscriptions WHERE id = :id AND expires > :now)
        OR (SELECT count(*) FROM mrtr_subscriptions WHERE kind = :kind AND caller = :caller AND expires > :now) < :most
        AND (SELECT count(*) FROM mrtr_subscriptions WHERE kind = :kind AND expires > :now) < :most_in_all
    )
ON CONFLICT (id) DO UPDATE SET
    body = excluded.body,
    updated = excluded.updated,
    expires = excluded.expires,
    kind = CASE WHEN mrtr_subscriptions.expires > :now THEN mrtr_subscriptions.kind ELSE excluded.kind END,
    name = CASE WHEN mrtr_subscriptions.expires > :now THEN mrtr_subscriptions.name ELSE excluded.name END,
    caller = CASE WHEN mrtr_subscriptions.expires > :now THEN mrtr_subscriptions.caller ELSE excluded.caller END,
    progress = CASE WHEN mrtr_subscriptions.expires > :now THEN mrtr_subscriptions.progress ELSE excluded.progress END,
    created = CASE WHEN mrtr_subscriptions.expires > :now THEN mrtr_subscriptions.created ELSE excluded.created END
WHERE mrtr_subscriptions.updated = :updated_before AND mrtr_subscriptions.body = :body_before
RETURNING id;

-- name: advance_subscriptions
UPDATE mrtr_subscriptions SET progress = given.value
FROM json_each(:progress) AS given
WHERE mrtr_subscriptions.id = given."key"
    AND EXISTS (SELECT 1 FROM mrtr_leases WHERE name = :lease AND holder = :holder)
RETURNING mrtr_subscriptions.id;

-- Sweeping: remove some of what has expired, and return when it did

-- name: sweep_redemptions
DELETE FROM mrtr_redemptions
WHERE state IN (SELECT state FROM mrtr_redemptions WHERE expires <= :now ORDER BY expires LIMIT :most)
RETURNING expires;

-- name: sweep_values
DELETE FROM mrtr_kept
WHERE "key" IN (SELECT "key" FROM mrtr_kept WHERE expires <= :now ORDER BY expires LIMIT :most)
RETURNING expires;

-- name: sweep_tasks
DELETE FROM mrtr_tasks
WHERE id IN (SELECT id FROM mrtr_tasks WHERE expires <= :now ORDER BY expires LIMIT :most)
RETURNING expires;

-- name: sweep_notices
DELETE FROM mrtr_changes
WHERE number IN (SELECT number FROM mrtr_changes WHERE expires <= :now ORDER BY expires LIMIT :most)
RETURNING expires;

-- name: sweep_forgotten
DELETE FROM mrtr_forgotten
WHERE caller IN (SELECT caller FROM mrtr_forgotten WHERE expires <= :now ORDER BY expires LIMIT :most)
RETURNING expires;

-- name: sweep_waits
DELETE FROM mrtr_waits
WHERE id IN (SELECT id FROM mrtr_waits WHERE expires <= :now ORDER BY expires LIMIT :most)
RETURNING expires;

-- name: sweep_events
DELETE FROM mrtr_events
WHERE number IN (SELECT number FROM mrtr_events WHERE expires <= :now ORDER BY expires LIMIT :most)
RETURNING expires;

-- name: sweep_subscriptions
-- An hour later: whoever delivers learns of the end by then.
DELETE FROM mrtr_subscriptions
WHERE id IN (SELECT id FROM mrtr_subscriptions WHERE expires <= :now - :ended ORDER BY expires LIMIT :most)
RETURNING expires;

-- Sealing anew: what is sealed, after a key; and each row, unless it was changed since it was read

-- name: sealed_redemptions
SELECT state, outcome FROM mrtr_redemptions
WHERE state > :after AND outcome IS NOT NULL AND expires + 0 > :now
ORDER BY state
LIMIT :most;

-- name: reseal_redemption
UPDATE mrtr_redemptions SET outcome = :outcome WHERE state = :key AND outcome = :outcome_before RETURNING state;

-- name: sealed_values
SELECT "key", value FROM mrtr_kept
WHERE "key" > :after AND length(value) > 0 AND expires + 0 > :now
ORDER BY "key"
LIMIT :most;

-- name: reseal_value
UPDATE mrtr_kept SET value = :value WHERE "key" = :key AND value = :value_before RETURNING "key";

-- name: sealed_tasks
SELECT id, call, journal, questions, outcome FROM mrtr_tasks
WHERE id > :after AND expires + 0 > :now
ORDER BY id
LIMIT :most;

-- name: reseal_task
-- Its version stays: a worker that runs it has the same journal in its hands.
UPDATE mrtr_tasks SET call = :call, journal = :journal, questions = :questions, outcome = :outcome
WHERE id = :key
    AND call = :call_before
    AND journal = :journal_before
    AND questions = :questions_before
    AND outcome = :outcome_before
RETURNING id;

-- name: sealed_events
-- The id of an event is a digest of its name, too, so no two have one.
SELECT id, body FROM mrtr_events
WHERE id > :after AND expires + 0 > :now
ORDER BY id
LIMIT :most;

-- name: reseal_event
UPDATE mrtr_events SET body = :body WHERE id = :key AND body = :body_before RETURNING id;

-- name: sealed_subscriptions
SELECT id, body FROM mrtr_subscriptions
WHERE id > :after AND expires + 0 > :now
ORDER BY id
LIMIT :most;

-- name: reseal_subscription
UPDATE mrtr_subscriptions SET body = :body WHERE id = :key AND body = :body_before RETURNING id;

-- Forgetting a person: first that, then the person's rows. All rows are looked at, after a key: no index is worth a write of
-- each redemption.

-- name: note_forgotten
INSERT INTO mrtr_forgotten (caller, moment, expires) VALUES (:caller, :now + :margin, :now + :keep)
ON CONFLICT (caller) DO UPDATE SET moment = excluded.moment, expires = excluded.expires;

-- name: find_forgotten
SELECT caller, moment FROM mrtr_forgotten WHERE expires > :now;

-- name: callers_of_tasks
SELECT id, caller, owner FROM mrtr_tasks WHERE id > :after ORDER BY id LIMIT :most;

-- name: forget_task
DELETE FROM mrtr_tasks WHERE id = :key RETURNING id;

-- name: callers_of_values
SELECT "key", caller FROM mrtr_kept WHERE "key" > :after ORDER BY "key" LIMIT :most;

-- name: forget_value
DELETE FROM mrtr_kept WHERE "key" = :key RETURNING "key";

-- name: callers_of_waits
SELECT id, caller, who FROM mrtr_waits WHERE id > :after ORDER BY id LIMIT :most;

-- name: forget_wait
DELETE FROM mrtr_waits WHERE id = :key RETURNING id;

-- name: callers_of_events
SELECT id, audience FROM mrtr_events WHERE id > :after ORDER BY id LIMIT :most;

-- name: forget_event
DELETE FROM mrtr_events WHERE id = :key RETURNING id;

-- name: callers_of_subscriptions
SELECT id, caller FROM mrtr_subscriptions WHERE id > :after ORDER BY id LIMIT :most;

-- name: forget_subscription
DELETE FROM mrtr_subscriptions WHERE id = :key RETURNING id;

-- name: callers_of_redemptions
SELECT state, caller FROM mrtr_redemptions WHERE state > :after ORDER BY state LIMIT :most;

-- name: forget_redemption
-- The digest of the state stays until that expires, or it could be redeemed again. No answers have an empty digest.
UPDATE mrtr_redemptions SET answers = '', token = '', outcome = NULL, caller = '' WHERE state = :key RETURNING state;

-- name: forget_usage
DELETE FROM mrtr_usage WHERE caller = :caller AND tasks = 0 AND states = 0 AND blocks = 0;

-- The epoch

-- name: find_epoch
SELECT epoch FROM mrtr_schema;

-- name: new_epoch
UPDATE mrtr_schema SET epoch = lower(hex(randomblob(8)));

-- name: interrupt_tasks
UPDATE mrtr_tasks SET
    status = 'failed', message = 'The task was interrupted: the database was restored or replaced, so nobody knows how far it had come',
    questions = x'', outcome = x'', lease = '', leased_until = 0, version = version + 1, writer = '',
    updated = (julianday('now') - 2440587.5) * 86400.0
WHERE status IN ('working', 'input_required');

-- The version of the tables

-- name: find_version
-- The inner name is that of the column where there is one, and else of the outer one: earlier tables do not have it.
SELECT version_num, (SELECT compatible_from FROM mrtr_schema)
FROM mrtr_schema AS found, (SELECT '' AS compatible_from) AS otherwise;

-- name: keep_version
UPDATE mrtr_schema SET version_num = '{version}';

-- name: make_version_table
CREATE TABLE mrtr_schema (version_num VARCHAR(32) NOT NULL, PRIMARY KEY (version_num));

-- name: make_version
INSERT INTO mrtr_schema (version_num) VALUES ('{version}');

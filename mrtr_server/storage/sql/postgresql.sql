-- The statements of a store in PostgreSQL. `:now` is the clock of the database, in seconds since the epoch.
-- What has expired counts as absent in every one. The file beside this one has the same for SQLite: the two differ in
-- the clock, in how a column is looked for in a list, and in that PostgreSQL leaves out rows that others are changing.

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

-- name: renew_grants
-- A row that somebody has locked holds up no other: it is returned, and whether it was renewed.
WITH free AS (
    SELECT found.state, given.lease
    FROM unnest(:states::text[], :tokens::text[], :leases::double precision[]) AS given (state, token, lease)
    JOIN mrtr_redemptions AS found ON found.state = given.state AND found.token = given.token
    WHERE found.expires > :now AND found.outcome IS NULL
    FOR UPDATE OF found SKIP LOCKED
),
renewed AS (
    UPDATE mrtr_redemptions SET leased_until = :now + free.lease FROM free WHERE mrtr_redemptions.state = free.state
    RETURNING mrtr_redemptions.state
)
SELECT found.state, found.token, renewed.state IS NOT NULL
FROM mrtr_redemptions AS found LEFT JOIN renewed ON renewed.state = found.state
WHERE found.state = ANY(:states::text[]) AND found.expires > :now AND found.outcome IS NULL;

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
INSERT INTO mrtr_kept (key, value, writer, expires, caller, tenant)
SELECT :key, :value, :writer, :now + :keep, :caller, :tenant
WHERE NOT EXISTS (SELECT 1 FROM mrtr_forgotten WHERE caller = :caller AND moment >= :begun AND expires > :now)
    AND (
        EXISTS (SELECT 1 FROM mrtr_kept WHERE key = :key)
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
ON CONFLICT (key) DO UPDATE
SET value = excluded.value, writer = excluded.writer, expires = excluded.expires, caller = excluded.caller,
    tenant = excluded.tenant
WHERE mrtr_kept.expires <= :now OR mrtr_kept.writer = excluded.writer
RETURNING key;

-- name: replace_value
INSERT INTO mrtr_kept (key, value, writer, expires, caller, tenant)
SELECT :key, :value, :writer, :now + :keep, :caller, :tenant
WHERE NOT EXISTS (SELECT 1 FROM mrtr_forgotten WHERE caller = :caller AND moment >= :begun AND expires > :now)
    AND (
        EXISTS (SELECT 1 FROM mrtr_kept WHERE key = :key)
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
ON CONFLICT (key) DO UPDATE
SET value = excluded.value, writer = excluded.writer, expires = excluded.expires, caller = excluded.caller,
    tenant = excluded.tenant
RETURNING key;

-- name: get_value
SELECT value FROM mrtr_kept WHERE key = :key AND expires > :now;

-- name: list_logins
-- For operators: the tokens of people at the provider, by when they end. Each is kept for as long from its last use on.
SELECT key, value, expires FROM mrtr_kept
WHERE starts_with(key, 'login-') AND (expires + 0, key COLLATE "C") < (:before, :id) AND expires + 0 > :now
ORDER BY expires + 0 DESC, key COLLATE "C" DESC
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

-- name: find_tasks
SELECT
    id, owner, name, status, message, created, updated, ttl, poll, deadline, expires, call, journal, questions, outcome,
    version, lease, leased_until, attempts, caller
FROM mrtr_tasks
WHERE id = ANY(:ids::text[]) AND expires > :now
    AND (status IN ('completed', 'failed', 'cancelled') OR id NOT LIKE '%-%-%' OR id LIKE (SELECT '%-' || epoch || '-%' FROM mrtr_schema));

-- name: look_at_tasks
-- The sum is of those before this one, so the first is there however large it is.
SELECT
    id, owner, name, status, message, created, updated, ttl, poll, deadline, expires, ''::bytea, ''::bytea, questions, outcome,
    version, lease, leased_until, attempts, caller
FROM (
    SELECT *, sum(octet_length(questions) + octet_length(outcome) + octet_length(message)) OVER (
        ORDER BY id COLLATE "C" ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS before
    FROM mrtr_tasks WHERE id = ANY(:ids::text[]) AND expires > :now
) AS found
WHERE coalesce(before, 0) < :most_bytes
ORDER BY id COLLATE "C";

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
    id, owner, name, status, message, created, updated, ttl, poll, deadline, expires, ''::bytea, ''::bytea, ''::bytea, ''::bytea,
    version, lease, leased_until, attempts, caller
FROM mrtr_tasks
WHERE name || '' = :tool AND status = :status AND (updated, id COLLATE "C") < (:before, :id) AND expires + 0 > :now
ORDER BY updated DESC, id COLLATE "C" DESC
LIMIT :most;

-- name: find_referenced_tasks
-- By the first digits of their ids, as the log has them. In the order of the database, which may not heed hyphens, those with
-- the same first digits stand together: before `z`, and where Danes or Norwegians sort, before many an `a`, two of which are Å.
SELECT id FROM mrtr_tasks
WHERE id >= :reference::text AND id < greatest(:reference::text || 'z', :reference::text || repeat('a', 100))
    AND starts_with(id, :reference::text) AND expires + 0 > :now
UNION ALL
SELECT id FROM mrtr_tasks
WHERE id >= 'task-' || :reference::text
    AND id < greatest('task-' || :reference::text || 'z', 'task-' || :reference::text || repeat('a', 100))
    AND starts_with(id, 'task-' || :reference::text) AND expires + 0 > :now
LIMIT 2;

-- name: tenant_of_task
SELECT tenant FROM mrtr_tasks WHERE id = :id;

-- name: list_owned_tasks
-- Nobody's tasks are in no list, and the index leaves them out. The sum is as above.
SELECT
    id, owner, name, status, message, created, updated, ttl, poll, deadline, expires, ''::bytea, ''::bytea, questions, outcome,
    version, lease, leased_until, attempts, caller
FROM (
    SELECT *, sum(octet_length(questions) + octet_length(outcome) + octet_length(message)) OVER (
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
-- The writer of the next version comes again where the first reply was lost with its connection. The transaction is noted by
-- which a task comes to wait or to run.
UPDATE mrtr_tasks SET {changes}, queued = CASE
    WHEN :status = 'working' AND (status <> 'working' OR :lease = '' AND lease <> '') THEN CAST(pg_current_xact_id()::text AS bigint)
    ELSE queued END
WHERE id = :id
    AND (version = :before OR (version = :before + 1 AND writer = :writer))
    AND expires > :now
RETURNING leased_until;

-- name: claim_tasks
-- Without OFFSET 0, what is found would be looked for twice.
-- Of each tool, the tasks that came to wait first: nearly always all that wait. Those of each caller are put in turn, with
-- those that run here before them, so that the next place goes to the caller that has the fewest. Where `:queues` or more
-- wait, nothing is claimed: the answer says so, and the statement below claims.
-- `:lapsed_by` is when the claim was sent, by this clock: a statement that is run later must not take what the others
-- could not renew meanwhile. It is 0 where only tasks are claimed whose lease was given back.
-- Not by the columns `status` and `expires` themselves, or indexes might be chosen that have all open tasks, or all but the
-- expired ones. A task that was found is locked where it was seen to be; there is no look in an index for each.
-- `:waiting` and `:running` are where the tasks of a tool that wait, and those that run, were seen to begin. The answer has
-- where they begin now, with each task, and at least once. A task that is not seen yet has no number below the oldest
-- transaction that runs. Where something was seen above it, another server has taken over, and all is looked at.
WITH places (tool, waiting, running, oldest) AS MATERIALIZED (
    SELECT tool, CASE WHEN waiting <= oldest THEN waiting ELSE 0 END, CASE WHEN running <= oldest THEN running ELSE 0 END, oldest
    FROM unnest(:tools::text[], :waiting::bigint[], :running::bigint[]) AS seen (tool, waiting, running),
        CAST(pg_snapshot_xmin(pg_current_snapshot())::text AS bigint) AS oldest
),
front AS MATERIALIZED (
    SELECT tool, spot, caller, updated, queued, is_free
    FROM places CROSS JOIN LATERAL (
        SELECT ctid AS spot, caller, updated, queued,
            leased_until <= :now AND expires > :now AND id <> ALL(:without::text[])
                AND (id NOT LIKE '%-%-%' OR id LIKE (SELECT '%-' || epoch || '-%' FROM mrtr_schema)) AS is_free
        FROM mrtr_tasks
        WHERE status || '' = 'working' AND name || '' = tool AND (lease <> '') IS FALSE AND queued >= waiting
        ORDER BY queued
        LIMIT :queues
    ) AS found
),
deep (is_deep) AS MATERIALIZED (SELECT EXISTS (SELECT 1 FROM front GROUP BY tool HAVING count(*) >= :queues)),
free AS MATERIALIZED (
    SELECT found.id, queues.caller, found.updated
    FROM (
        SELECT caller, array_agg(spot ORDER BY updated) AS spots FROM front, deep WHERE is_free AND NOT is_deep GROUP BY caller
    ) AS queues
    LEFT JOIN unnest(:callers::text[], :held::bigint[]) AS here (holder, tasks) ON here.holder = queues.caller
    CROSS JOIN LATERAL (
        SELECT task.id, task.updated
        FROM unnest(spots) WITH ORDINALITY AS each (spot, place) JOIN mrtr_tasks AS task ON task.ctid = each.spot
        WHERE task.status || '' = 'working' AND task.lease || '' = ''
        ORDER BY each.place
        -- To lock a row is to write it, so none is that its caller can't have now.
        LIMIT CASE WHEN queues.caller = '' THEN :most
            ELSE least(:most, greatest(:share - coalesce(here.tasks, 0), 0) + :spare) END
        FOR UPDATE OF task SKIP LOCKED
    ) AS found
    UNION ALL
    SELECT found.id, found.caller, found.updated
    FROM places JOIN deep ON NOT is_deep CROSS JOIN LATERAL (
        SELECT id, caller, updated FROM mrtr_tasks
        WHERE status || '' = 'working' AND name || '' = tool AND lease <> '' AND queued >= running
            AND leased_until <= :now
            AND leased_until <= :lapsed_by
            AND expires + 0 > :now
            AND id <> ALL(:without::text[])
            AND (id NOT LIKE '%-%-%' OR id LIKE (SELECT '%-' || epoch || '-%' FROM mrtr_schema))
        LIMIT :most
        FOR UPDATE SKIP LOCKED
    ) AS found
),
ranked AS (
    SELECT id, caller, updated, coalesce(held.tasks, 0)
        + row_number() OVER (PARTITION BY caller ORDER BY updated) AS rank
    FROM free LEFT JOIN unnest(:callers::text[], :held::bigint[]) AS held (holder, tasks) ON holder = caller
),
taken AS MATERIALIZED (
    SELECT id FROM (SELECT *, row_number() OVER (ORDER BY rank, updated) AS place FROM ranked) AS placed
    WHERE caller = '' OR rank <= :share OR place <= :spare
    ORDER BY place
    LIMIT :most
),
claimed AS (
    UPDATE mrtr_tasks
    SET lease = :lease, leased_until = :now + :seconds, attempts = attempts + 1, version = version + 1, writer = :writer
    WHERE id = ANY(ARRAY(SELECT id FROM taken))
    RETURNING
        id, owner, name, status, message, created, updated, ttl, poll, deadline, expires, call, journal, questions, outcome,
        version, lease, leased_until, attempts, caller
),
begins (waiting, running) AS (
    SELECT array_agg(first_waiting ORDER BY place), array_agg(least(first_waiting, first_running) ORDER BY place)
    FROM (
        SELECT array_position(:tools::text[], tool) AS place,
            least(oldest, (SELECT min(queued) FROM front WHERE front.tool = places.tool)) AS first_waiting,
            (
                SELECT queued FROM mrtr_tasks
                WHERE status || '' = 'working' AND name || '' = tool AND lease <> '' AND queued >= running
                ORDER BY queued
                LIMIT 1
            ) AS first_running
        FROM places
        OFFSET 0
    ) AS first
)
SELECT claimed.*, deep.is_deep, begins.waiting, begins.running FROM deep, begins LEFT JOIN claimed ON true;

-- name: claim_from_many
-- One look in the index for each caller that has tasks of a tool waiting, from a caller on that is drawn by lot, and at most
-- for so many of them: however many tasks wait, those of others are found as fast. The rest is as above.
WITH RECURSIVE later (name, caller) AS (
    SELECT tool, CAST(:start AS text) FROM unnest(:tools::text[]) AS tool
    UNION ALL
    SELECT name, (
        SELECT min(caller) FROM mrtr_tasks
        WHERE status = 'working' AND lease = '' AND name = later.name AND caller > later.caller
    )
    FROM later WHERE caller IS NOT NULL
),
earlier (name, caller) AS (
    SELECT tool, CAST('' AS text) FROM unnest(:tools::text[]) AS tool
    UNION ALL
    SELECT name, (
        SELECT min(caller) FROM mrtr_tasks
        WHERE status = 'working' AND lease = '' AND name = earlier.name AND caller > earlier.caller AND caller <= :start
    )
    FROM earlier WHERE caller IS NOT NULL
),
queues (name, caller) AS (
    SELECT tool, CAST('' AS text) FROM unnest(:tools::text[]) AS tool
    UNION ALL SELECT name, caller FROM later WHERE caller <> :start
    UNION ALL SELECT name, caller FROM earlier WHERE caller <> ''
    LIMIT :queues
),
free AS MATERIALIZED (
    SELECT found.id, queues.caller, found.updated
    FROM queues
    LEFT JOIN unnest(:callers::text[], :held::bigint[]) AS here (holder, tasks) ON here.holder = queues.caller
    CROSS JOIN LATERAL (
        SELECT id, updated FROM mrtr_tasks
        WHERE status = 'working' AND lease = '' AND name = queues.name AND caller = queues.caller
            AND leased_until <= :now
            AND expires + 0 > :now
            AND id <> ALL(:without::text[])
            AND (id NOT LIKE '%-%-%' OR id LIKE (SELECT '%-' || epoch || '-%' FROM mrtr_schema))
        ORDER BY updated
        LIMIT CASE WHEN queues.caller = '' THEN :most
            ELSE least(:most, greatest(:share - coalesce(here.tasks, 0), 0) + :spare) END
        FOR UPDATE SKIP LOCKED
    ) AS found
    UNION ALL
    SELECT found.id, found.caller, found.updated
    FROM (
        SELECT tool, CASE WHEN running <= oldest THEN running ELSE 0 END AS running
        FROM unnest(:tools::text[], :running::bigint[]) AS seen (tool, running),
            CAST(pg_snapshot_xmin(pg_current_snapshot())::text AS bigint) AS oldest
    ) AS places CROSS JOIN LATERAL (
        SELECT id, caller, updated FROM mrtr_tasks
        WHERE status || '' = 'working' AND name || '' = tool AND lease <> '' AND queued >= running
            AND leased_until <= :now
            AND leased_until <= :lapsed_by
            AND expires + 0 > :now
            AND id <> ALL(:without::text[])
            AND (id NOT LIKE '%-%-%' OR id LIKE (SELECT '%-' || epoch || '-%' FROM mrtr_schema))
        LIMIT :most
        FOR UPDATE SKIP LOCKED
    ) AS found
),
ranked AS (
    SELECT id, caller, updated, coalesce(held.tasks, 0)
        + row_number() OVER (PARTITION BY caller ORDER BY updated) AS rank
    FROM free LEFT JOIN unnest(:callers::text[], :held::bigint[]) AS held (holder, tasks) ON holder = caller
),
taken AS MATERIALIZED (
    SELECT id FROM (SELECT *, row_number() OVER (ORDER BY rank, updated) AS place FROM ranked) AS placed
    WHERE caller = '' OR rank <= :share OR place <= :spare
    ORDER BY place
    LIMIT :most
)
UPDATE mrtr_tasks
SET lease = :lease, leased_until = :now + :seconds, attempts = attempts + 1, version = version + 1, writer = :writer
WHERE id = ANY(ARRAY(SELECT id FROM taken))
RETURNING
    id, owner, name, status, message, created, updated, ttl, poll, deadline, expires, call, journal, questions, outcome,
    version, lease, leased_until, attempts, caller;

-- name: any_free_task
-- Whether its caller may have one more is for the claim to find out.
WITH places (tool, waiting, running) AS MATERIALIZED (
    SELECT tool, CASE WHEN waiting <= oldest THEN waiting ELSE 0 END, CASE WHEN running <= oldest THEN running ELSE 0 END
    FROM unnest(:tools::text[], :waiting::bigint[], :running::bigint[]) AS seen (tool, waiting, running),
        CAST(pg_snapshot_xmin(pg_current_snapshot())::text AS bigint) AS oldest
)
SELECT found.id FROM places CROSS JOIN LATERAL (
    (
        SELECT id FROM mrtr_tasks
        WHERE status || '' = 'working' AND name || '' = tool AND (lease <> '') IS FALSE AND queued >= waiting
            AND leased_until <= :now
            AND expires + 0 > :now
            AND id <> ALL(:without::text[])
            AND (id NOT LIKE '%-%-%' OR id LIKE (SELECT '%-' || epoch || '-%' FROM mrtr_schema))
        LIMIT 1
    )
    UNION ALL
    (
        SELECT id FROM mrtr_tasks
        WHERE status || '' = 'working' AND name || '' = tool AND lease <> '' AND queued >= running
            AND leased_until <= :now
            AND leased_until <= :lapsed_by
            AND expires + 0 > :now
            AND id <> ALL(:without::text[])
            AND (id NOT LIKE '%-%-%' OR id LIKE (SELECT '%-' || epoch || '-%' FROM mrtr_schema))
        LIMIT 1
    )
) AS found
LIMIT 1;

-- name: renew_tasks
-- A row that somebody has locked holds up no other: nobody can claim it either, and the next renewal finds it.
WITH free AS (
    SELECT id FROM mrtr_tasks
    WHERE id = ANY(:ids::text[]) AND lease = :lease AND status IN ('working', 'cancelled') AND expires > :now
    FOR UPDATE SKIP LOCKED
),
renewed AS (
    UPDATE mrtr_tasks SET leased_until = :now + :seconds WHERE id = ANY(ARRAY(SELECT id FROM free))
)
SELECT id, status FROM mrtr_tasks
WHERE id = ANY(:ids::text[]) AND lease = :lease AND status IN ('working', 'cancelled') AND expires > :now;

-- name: find_leases
SELECT id, lease FROM mrtr_tasks WHERE id = ANY(:ids::text[]) AND status = 'working' AND expires > :now;

-- name: overdue_tasks
-- `:since` is where those that are left were seen to begin.
SELECT
    id, owner, name, status, message, created, updated, ttl, poll, deadline, expires, call, journal, questions, outcome,
    version, lease, leased_until, attempts, caller
FROM mrtr_tasks
WHERE status IN ('working', 'input_required') AND deadline >= :since AND deadline <= :now AND expires + 0 > :now
ORDER BY deadline
LIMIT :most;

-- How much is stored

-- name: find_usage
SELECT caller, sum(tasks), sum(states), sum(blocks) FROM mrtr_usage WHERE caller IN ('*', :caller, :tenant) GROUP BY caller;

-- name: measure
-- First what is stored in all, and for how long the oldest event has been stored that nobody reads yet, since a transaction of
-- before still runs; then of each tool how many tasks wait, at most so many, and how long the oldest one has waited: for a
-- worker, or since the one that ran it fell silent.
SELECT
    NULL AS tool, coalesce(sum(tasks), 0)::float8, coalesce(sum(states), 0)::float8, coalesce(sum(blocks), 0)::float8,
    greatest(0, :now - (
        SELECT created FROM mrtr_events WHERE xid >= CAST(pg_snapshot_xmin(pg_current_snapshot())::text AS bigint)
        ORDER BY xid, number
        LIMIT 1
    ))
FROM mrtr_usage WHERE caller = '*'
UNION ALL
SELECT tool, count(since), coalesce(:now - min(since), 0), 0, 0
FROM unnest(:tools::text[], :waiting::bigint[], :running::bigint[]) AS seen (tool, waiting, running) LEFT JOIN LATERAL (
    (
        SELECT updated AS since FROM mrtr_tasks
        WHERE status || '' = 'working' AND name || '' = tool AND (lease <> '') IS FALSE AND queued >= waiting
            AND leased_until <= :now
            AND expires + 0 > :now
        LIMIT :most
    )
    UNION ALL
    (
        SELECT leased_until FROM mrtr_tasks
        WHERE status || '' = 'working' AND name || '' = tool AND lease <> '' AND queued >= running
            AND leased_until <= :now
            AND expires + 0 > :now
        LIMIT :most
    )
) AS free ON true
GROUP BY tool;

-- name: find_oldest_writer
-- Which session has the oldest transaction that has written, or which one is prepared.
SELECT concat_ws(', ', 'session ' || pid, 'user ' || usename, 'database ' || datname, nullif(application_name, ''))
FROM pg_stat_activity WHERE backend_xid = pg_snapshot_xmin(pg_current_snapshot())::xid
UNION ALL
SELECT 'prepared transaction ' || quote_literal(gid) || ', database ' || database
FROM pg_prepared_xacts WHERE transaction = pg_snapshot_xmin(pg_current_snapshot())::xid
LIMIT 1;

-- What processes tell each other

-- name: notify
SELECT pg_notify(:channel, said) FROM unnest(:notices::text[]) AS said;

-- name: note_listener
-- The name has at most 63 bytes.
SELECT set_config(
    'application_name', concat_ws(', ', nullif(left(current_setting('application_name'), 48), ''), 'mrtr-notices'), false
);

-- name: count_listeners
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE '%mrtr-notices';

-- name: write_notices
-- Behind a pooler; those who listen hear of it. Who reads the numbers in their order misses none: they are given and
-- committed one transaction after the other. The number is "mrtn" in ASCII.
WITH turn AS MATERIALIZED (SELECT pg_advisory_xact_lock(1836217454)),
written AS (
    INSERT INTO mrtr_changes (writer, written, expires, said)
    SELECT :writer, :now, :now + :keep, said FROM turn, unnest(:notices::text[]) AS said
    RETURNING writer, said
)
SELECT pg_notify(:channel, writer || said) FROM written;

-- name: read_notices
SELECT number, writer, said FROM mrtr_changes WHERE number > :seen ORDER BY number LIMIT :most;

-- name: last_notice_before
SELECT number FROM mrtr_changes WHERE written < :before ORDER BY number DESC LIMIT 1;

-- What answers

-- name: answers_itself
-- Whether the process that has accepted the connection runs its statements: one of a pooler never does.
SELECT WHERE pg_backend_pid() = {pid};

-- name: keep_plans
-- Plan a statement once, and not each time for what it is given: for a claim, that took more than all that it does. Each looks
-- in the same index whatever it is given, and however few rows there were when it was planned: a plan that walks through a
-- small table would be kept until PostgreSQL analyzes what the table has become. (What it charges for a walk makes it compile.)
SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET jit = off;

-- name: is_writable
SELECT WHERE current_setting('transaction_read_only') = 'off';

-- The clock

-- name: read_clock
SELECT :now;

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
WHERE name = :name AND (created, id COLLATE "C") < (:created, :id) AND expires + 0 > :now
ORDER BY created DESC, id COLLATE "C" DESC
LIMIT :most;

-- name: find_referenced_waits
-- By the first digits of their ids, in the order of the database, as tasks are.
SELECT id FROM mrtr_waits
WHERE id >= :reference::text AND id < greatest(:reference::text || 'z', :reference::text || repeat('a', 100))
    AND starts_with(id, :reference::text) AND expires + 0 > :now
LIMIT 2;

-- name: find_wait
SELECT id, task, name, who, created, expires, caller FROM mrtr_waits WHERE id = :id AND expires > :now;

-- name: remove_wait
DELETE FROM mrtr_waits WHERE id = :id RETURNING id;

-- Events

-- name: add_event
-- One of that id that has expired, and is still there, becomes this one. Only then is there a conflict: otherwise its row
-- would be locked until the commit, for nothing.
INSERT INTO mrtr_events (id, name, audience, body, created, expires)
SELECT :id, :name, :audience, :body, :created, :expires
WHERE NOT EXISTS (SELECT 1 FROM mrtr_events WHERE id = :id AND name = :name AND expires > :now)
ON CONFLICT (id, name) DO UPDATE SET
    xid = excluded.xid, number = excluded.number, audience = excluded.audience, body = excluded.body,
    created = excluded.created, expires = excluded.expires
WHERE mrtr_events.expires <= :now
RETURNING number;

-- name: add_event_and_tell
-- On a connection of somebody else's: processes hear of it when that transaction commits, and only then.
WITH added AS ({add_event}) SELECT pg_notify(:channel, :notice) FROM added;

-- name: read_events
-- One look in the index for each name; at the end of the log, it finds nothing. What was stored by a transaction from the
-- oldest one on that still runs is not read yet: others may come before it. Each row says whether it still fits; the bytes
-- are those of all rows up to it. One that has expired is looked at, but not returned: whoever has not read it lacks it.
WITH log AS MATERIALIZED (SELECT CAST(pg_snapshot_xmin(pg_current_snapshot())::text AS bigint) AS oldest),
found AS MATERIALIZED (
    SELECT here.*
    FROM log CROSS JOIN unnest(:names::text[]) AS asked (named) CROSS JOIN LATERAL (
        SELECT * FROM mrtr_events
        WHERE name = asked.named AND (xid, number) > (:transaction, :number) AND xid < log.oldest
        ORDER BY xid, number
        LIMIT :most + 1
    ) AS here
    ORDER BY xid, number
    LIMIT :most + 1
),
head AS MATERIALIZED (
    SELECT
        oldest,
        (
            SELECT json_agg(name) FROM mrtr_event_floors
            WHERE name = ANY(:names::text[]) AND (xid, number) > (:transaction, :number) AND xid < oldest
        ),
        greatest(0, :now - (SELECT created FROM mrtr_events WHERE xid >= oldest ORDER BY xid, number LIMIT 1))
    FROM log
),
page AS (
    SELECT *,
        expires <= :now AS has_expired,
        row_number() OVER in_order = 1 OR sum(octet_length(body) + :besides) OVER in_order <= :most_bytes AS fits
    FROM found WINDOW in_order AS (ORDER BY xid, number)
)
SELECT
    head.*, fits, has_expired, xid, number,
    id, name, audience, CASE WHEN fits AND NOT has_expired THEN body END, created, expires
FROM head LEFT JOIN page ON true
ORDER BY xid, number;

-- name: trim_events
-- Not those before the last one that was removed: while a transaction stays open, PostgreSQL keeps the entries of that in
-- the index.
WITH floor AS MATERIALIZED (SELECT xid, number FROM mrtr_event_floors WHERE name = :name),
last AS MATERIALIZED (
    SELECT xid, number FROM mrtr_events
    WHERE name = :name
        AND (xid, number) > (coalesce((SELECT xid FROM floor), 0), coalesce((SELECT number FROM floor), 0))
    ORDER BY xid DESC, number DESC
    LIMIT 1 OFFSET :most
),
removed AS MATERIALIZED (
    SELECT xid, number FROM mrtr_events
    WHERE name = :name
        AND (xid, number) > (coalesce((SELECT xid FROM floor), 0), coalesce((SELECT number FROM floor), 0))
        AND (xid, number) <= ((SELECT xid FROM last), (SELECT number FROM last))
    ORDER BY xid, number
    LIMIT :batch
    FOR UPDATE SKIP LOCKED
)
DELETE FROM mrtr_events WHERE (xid, number) IN (SELECT xid, number FROM removed) RETURNING number;

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

-- name: put_subscription
-- A row says that it was put, with what there was before: nulls for a new one. There is none where it was refused, also
-- since its caller was forgotten, or where others have made it since this statement began.
WITH before AS MATERIALIZED (
    SELECT id, kind, name, caller, body, progress, created, updated, expires FROM mrtr_subscriptions
    WHERE id = :id AND expires > :now
    FOR UPDATE
),
put AS (
    INSERT INTO mrtr_subscriptions (id, kind, name, caller, body, progress, created, updated, expires)
    SELECT :id, :kind, :name, :caller, :body, :progress, :created, :updated, :expires
    WHERE NOT EXISTS (SELECT 1 FROM mrtr_forgotten WHERE caller = :caller AND moment >= :updated AND expires > :now)
        AND (
            EXISTS (SELECT 1 FROM before)
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
    WHERE EXISTS (SELECT 1 FROM before) OR mrtr_subscriptions.expires <= :now
    RETURNING id
)
SELECT before.* FROM put LEFT JOIN before ON true;

-- name: advance_subscriptions
-- Who would take the lease waits until this is done.
WITH held AS MATERIALIZED (SELECT name FROM mrtr_leases WHERE name = :lease AND holder = :holder FOR UPDATE)
UPDATE mrtr_subscriptions SET progress = given.progress
FROM held, json_each_text(CAST(:progress AS json)) AS given (id, progress)
WHERE mrtr_subscriptions.id = given.id
RETURNING mrtr_subscriptions.id;

-- Sweeping: remove some of what has expired, and return when it did. Not what was removed before: while a
-- transaction stays open, PostgreSQL keeps the entries of that in the index.

-- name: sweep_redemptions
WITH removed AS (
    SELECT state FROM mrtr_redemptions WHERE expires >= :since AND expires <= :now
    ORDER BY expires LIMIT :most FOR UPDATE SKIP LOCKED
)
DELETE FROM mrtr_redemptions WHERE state = ANY(ARRAY(SELECT state FROM removed)) RETURNING expires;

-- name: sweep_values
WITH removed AS (
    SELECT key FROM mrtr_kept WHERE expires >= :since AND expires <= :now
    ORDER BY expires LIMIT :most FOR UPDATE SKIP LOCKED
)
DELETE FROM mrtr_kept WHERE key = ANY(ARRAY(SELECT key FROM removed)) RETURNING expires;

-- name: sweep_tasks
WITH removed AS (
    SELECT id FROM mrtr_tasks WHERE expires >= :since AND expires <= :now
    ORDER BY expires LIMIT :most FOR UPDATE SKIP LOCKED
)
DELETE FROM mrtr_tasks WHERE id = ANY(ARRAY(SELECT id FROM removed)) RETURNING expires;

-- name: sweep_notices
WITH removed AS (
    SELECT number FROM mrtr_changes WHERE expires <= :now ORDER BY expires LIMIT :most FOR UPDATE SKIP LOCKED
)
DELETE FROM mrtr_changes WHERE number = ANY(ARRAY(SELECT number FROM removed)) RETURNING expires;

-- name: sweep_forgotten
WITH removed AS (
    SELECT caller FROM mrtr_forgotten WHERE expires <= :now ORDER BY expires LIMIT :most FOR UPDATE SKIP LOCKED
)
DELETE FROM mrtr_forgotten WHERE caller = ANY(ARRAY(SELECT caller FROM removed)) RETURNING expires;

-- name: sweep_waits
WITH removed AS (
    SELECT id FROM mrtr_waits WHERE expires <= :now ORDER BY expires LIMIT :most FOR UPDATE SKIP LOCKED
)
DELETE FROM mrtr_waits WHERE id = ANY(ARRAY(SELECT id FROM removed)) RETURNING expires;

-- name: sweep_events
WITH removed AS (
    SELECT xid, number FROM mrtr_events WHERE expires >= :since AND expires <= :now
    ORDER BY expires LIMIT :most FOR UPDATE SKIP LOCKED
)
DELETE FROM mrtr_events WHERE (xid, number) IN (SELECT xid, number FROM removed) RETURNING expires;

-- name: sweep_subscriptions
-- An hour later: whoever delivers learns of the end by then.
WITH removed AS (
    SELECT id FROM mrtr_subscriptions WHERE expires <= :now - :ended ORDER BY expires LIMIT :most FOR UPDATE SKIP LOCKED
)
DELETE FROM mrtr_subscriptions WHERE id = ANY(ARRAY(SELECT id FROM removed)) RETURNING expires;

-- Sealing anew: what is sealed, after a key; and each row, unless it was changed since it was read

-- name: sealed_redemptions
SELECT state, outcome FROM mrtr_redemptions
WHERE state > :after AND outcome IS NOT NULL AND expires + 0 > :now
ORDER BY state
LIMIT :most;

-- name: reseal_redemption
UPDATE mrtr_redemptions SET outcome = :outcome WHERE state = :key AND outcome = :outcome_before RETURNING state;

-- name: sealed_values
SELECT key, value FROM mrtr_kept
WHERE key > :after AND length(value) > 0 AND expires + 0 > :now
ORDER BY key
LIMIT :most;

-- name: reseal_value
UPDATE mrtr_kept SET value = :value WHERE key = :key AND value = :value_before RETURNING key;

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
SELECT key, caller FROM mrtr_kept WHERE key > :after ORDER BY key LIMIT :most;

-- name: forget_value
DELETE FROM mrtr_kept WHERE key = :key RETURNING key;

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

-- The epoch, and the timeline

-- name: find_epoch
SELECT epoch FROM mrtr_schema;

-- name: new_epoch
UPDATE mrtr_schema
SET epoch = lpad(to_hex((random() * 4294967295)::bigint), 8, '0') || lpad(to_hex((random() * 4294967295)::bigint), 8, '0'),
    timeline = '';

-- name: interrupt_tasks
-- All of their locks come first: who changes one of them now counts its bytes with a lock that we will want.
WITH open AS MATERIALIZED (
    SELECT id FROM mrtr_tasks WHERE status IN ('working', 'input_required') ORDER BY id FOR UPDATE
)
UPDATE mrtr_tasks SET
    status = 'failed', message = 'The task was interrupted: the database was restored or replaced, so nobody knows how far it had come',
    questions = '', outcome = '', lease = '', leased_until = 0, version = version + 1, writer = '',
    updated = CAST(extract(epoch FROM now()) AS double precision)
WHERE id IN (SELECT id FROM open);

-- name: restart_events
-- Transactions may have lower numbers now. These events come first, in the order of their own numbers.
UPDATE mrtr_events SET xid = 0 WHERE xid > 0;

-- name: restart_floors
UPDATE mrtr_event_floors SET xid = 0 WHERE xid > 0;

-- name: find_timeline
-- Where writes were seen to go, and where they go now: the cluster, and the timeline, which another one follows whenever a
-- standby is promoted, or a backup is restored to a point in time. A standby writes nothing.
SELECT timeline, CASE WHEN pg_is_in_recovery() THEN '' ELSE (
    SELECT system_identifier || '/' || ltrim(substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8), '0')
    FROM pg_control_system()
) END
FROM mrtr_schema;

-- name: note_timeline
UPDATE mrtr_schema SET timeline = :timeline WHERE timeline = :before RETURNING timeline;

-- name: find_standbys
-- How many there are, and how many of them a commit waits for; neither backups, nor those who read single tables. Whoever
-- lacks the rights of pg_read_all_stats sees that there are some, and nothing of them.
SELECT
    count(*), count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')), current_setting('synchronous_commit'),
    pg_has_role('pg_read_all_stats', 'USAGE'), current_user::text
FROM pg_stat_replication
WHERE state IS DISTINCT FROM 'backup'
    AND NOT EXISTS (SELECT FROM pg_replication_slots WHERE active_pid = pid AND slot_type = 'logical');

-- name: find_most_connections
-- How many connections this user may have: others are kept for superusers, and a role or a database may have a limit.
SELECT least(
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
    (SELECT nullif(rolconnlimit, -1) FROM pg_roles WHERE rolname = current_user),
    (SELECT nullif(datconnlimit, -1) FROM pg_database WHERE datname = current_database())
);

-- name: find_indexes
SELECT relname FROM pg_catalog.pg_index JOIN pg_catalog.pg_class ON pg_class.oid = indexrelid
WHERE indisvalid AND pg_catalog.pg_table_is_visible(indexrelid);

-- name: drop_index
-- What an interrupted statement left is not used, and costs each write as much.
DROP INDEX CONCURRENTLY IF EXISTS {index};

-- name: try_to_lock_indexes
-- Held by the connection while indexes are made. The number is "mrtr" in ASCII, and one more.
SELECT pg_try_advisory_lock(1836217459);

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

-- name: has_version_table
-- Not to_regclass(), which may answer from a cache, of before another process made the tables.
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_class WHERE relname = 'mrtr_schema' AND pg_catalog.pg_table_is_visible(oid)
);

-- name: lock_version
-- Held while the tables are made: CREATE TABLE fails where two do it at once. The number is "mrtr" in ASCII.
SELECT pg_advisory_xact_lock(1836217458);

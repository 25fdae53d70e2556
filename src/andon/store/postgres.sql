-- PostgreSQL, READ COMMITTED. Several writers work at once, so a row is locked before it is judged;
-- who had to wait for the lock judges the row as it is then. Several runs are locked in the order
-- of their ids, so that two writers do not wait for each other.

-- now --
SELECT andon.now();

-- epoch --
SELECT epoch FROM andon.meta;

-- renew_epoch --
-- The server is not the one we last wrote to: counters may have been rolled back with it.
UPDATE andon.meta SET epoch = epoch + 1, identity = %(identity)s WHERE identity <> %(identity)s
RETURNING epoch;

-- register_worker --
INSERT INTO andon.workers (id, host, boot, namespace, pid, start_ticks, lock, state, lease_until, contact_since, agents, queues, concurrency, started_at, supervisor, containment, beaten_at, embedded)
VALUES (%(id)s, %(host)s, %(boot)s, %(namespace)s, %(pid)s, %(start_ticks)s, %(lock)s, 'live',
        andon.now() + %(lease_seconds)s::float8, andon.now(), %(agents)s, %(queues)s, %(concurrency)s,
        andon.now(), %(supervisor)s, %(containment)s, andon.now(), %(embedded)s)
ON CONFLICT (id) DO NOTHING;

-- register_agent --
-- The first registration of a version promotes it, unless its worker was told not to. Later than every
-- other, whatever the clock says.
INSERT INTO andon.agents (name, version, queue, parameters, retries, registered_at, promoted_at, at_most,
                          rate, per_seconds, types)
VALUES (%(name)s, %(version)s, %(queue)s, %(parameters)s, %(retries)s, andon.now(),
        CASE WHEN %(promote)s::boolean THEN greatest(andon.now(), (
          SELECT max(promoted_at) + 0.000001 FROM andon.agents WHERE name = %(name)s)) END,
        %(at_most)s, %(rate)s, %(per_seconds)s, %(types)s)
ON CONFLICT (name, version) DO UPDATE
   SET queue = excluded.queue, retries = excluded.retries, at_most = excluded.at_most,
       rate = excluded.rate, per_seconds = excluded.per_seconds, types = excluded.types
RETURNING parameters;

-- agents --
-- The promoted version of each first.
SELECT name, version, queue, parameters, retries, registered_at, promoted_at, at_most, rate,
       per_seconds, types
  FROM andon.agents
 WHERE %(name)s::text IS NULL OR name = %(name)s
 ORDER BY name, promoted_at DESC NULLS LAST, registered_at DESC, version DESC;

-- promote --
UPDATE andon.agents a
   SET promoted_at = greatest(andon.now(), (
         SELECT max(o.promoted_at) + 0.000001 FROM andon.agents o WHERE o.name = a.name))
 WHERE version = %(version)s AND (%(name)s::text IS NULL OR name = %(name)s)
RETURNING name;

-- workers --
SELECT id, host, boot, namespace, pid, start_ticks, lock, state, lease_until, agents, started_at,
       concurrency, drain_asked_at, draining_at, ended_at, evidence, drain, queues, supervisor,
       containment, progress, beaten_at, stalled, embedded
  FROM andon.workers WHERE state IN ('live', 'silent') ORDER BY started_at, id;

-- busy_workers --
SELECT DISTINCT worker FROM andon.runs WHERE worker IS NOT NULL;

-- any_waiting --
-- Whether a run waits for a worker now.
SELECT EXISTS (SELECT 1 FROM andon.runs
                WHERE state = 'queued' AND available_at > 0 AND available_at <= (SELECT andon.now()))
    OR EXISTS (SELECT 1 FROM andon.runs WHERE state = 'queued' AND returned);

-- fleet --
-- Also workers that have ended since; newest first.
SELECT id, host, boot, namespace, pid, start_ticks, lock, state, lease_until, agents, started_at,
       concurrency, drain_asked_at, draining_at, ended_at, evidence, drain, queues, supervisor,
       containment, progress, beaten_at, stalled, embedded
  FROM andon.workers WHERE state = 'live' OR ended_at >= %(since)s::float8 ORDER BY started_at, id;

-- ask_drain --
UPDATE andon.workers SET drain_asked_at = coalesce(drain_asked_at, andon.now())
 WHERE id = %(worker_id)s AND state = 'live'
RETURNING id;

-- begin_drain --
UPDATE andon.workers
   SET drain_asked_at = coalesce(drain_asked_at, andon.now() - %(ago)s::float8),
       draining_at = coalesce(draining_at, andon.now()), drain = coalesce(drain, %(drain)s)
 WHERE id = %(worker_id)s AND state = 'live'
RETURNING draining_at;

-- end_drain --
UPDATE andon.workers SET drain = %(drain)s WHERE id = %(worker_id)s;

-- beat --
-- A worker that has missed two beats was out of contact, and says so by a new contact_since.
UPDATE andon.workers
   SET lease_until = andon.now() + %(lease_seconds)s::float8,
       beaten_at = andon.now(), progress = coalesce(%(progress)s::text, progress),
       contact_since = CASE WHEN lease_until < andon.now() + %(lease_seconds)s::float8 / 2
                            THEN andon.now() ELSE contact_since END
 WHERE id = %(worker_id)s AND state = 'live'
RETURNING andon.now();

-- contact --
-- Since when a worker is in contact, unless it has missed two beats: then perhaps everybody has,
-- and leases end one after the other although all are alive.
SELECT contact_since, andon.now() FROM andon.workers
 WHERE id = %(worker_id)s AND state = 'live'
   AND lease_until >= andon.now() + %(lease_seconds)s::float8 / 2;

-- overdue_workers --
-- A bounded number at each claim, by every worker: there is no reaper that could die quietly.
-- Locked: a heartbeat that comes in between would be answered although the worker is given up.
SELECT id FROM andon.workers
 WHERE state = 'live' AND lease_until < (SELECT andon.now())
 ORDER BY lease_until LIMIT 8 FOR UPDATE SKIP LOCKED;

-- end_worker --
-- Two who take from the same worker: the second waits here, finds it ended, and gets no row.
UPDATE andon.workers SET state = %(state)s, evidence = %(evidence)s, ended_at = andon.now() - %(ago)s::float8
 WHERE id = %(worker_id)s AND state IN ('live', 'silent') AND state <> %(state)s
RETURNING id;

-- held_runs --
-- Locked: an owner that is alive after all must not move the head between this and give_back_run.
SELECT id, fence, fruitless, progress_seq > claimed_seq, head_seq, head_hash, step
  FROM andon.runs WHERE worker = %(worker_id)s AND state = 'running'
 ORDER BY id FOR NO KEY UPDATE;

-- held_checkpoints --
SELECT c.run_id, c.op, c.body FROM andon.runs r JOIN andon.checkpoints c ON c.run_id = r.id
 WHERE r.worker = %(worker_id)s AND r.state = 'running';

-- known_digests --
-- Of the attempts since a step was last finished, each of which left a checkpoint: how many, and how
-- many left this one.
SELECT count(*), count(*) FILTER (WHERE checkpoint = %(checkpoint)s) FROM andon.attempts
 WHERE run_id = %(run_id)s AND checkpoint IS NOT NULL
   AND fence > coalesce((SELECT max(fence) FROM andon.attempts
                          WHERE run_id = %(run_id)s AND ended_at IS NOT NULL AND checkpoint IS NULL), 0);

-- keep_digest --
UPDATE andon.attempts SET checkpoint = %(checkpoint)s WHERE run_id = %(run_id)s AND fence = %(fence)s;

-- give_back_run --
-- From a worker that is gone. Fruitless: it ended this attempt without one finished step.
UPDATE andon.runs
   SET state = %(state)s, returned = true, worker = NULL, available_at = andon.now(),
       changed_at = andon.now(), interruptions = interruptions + %(interrupted)s,
       fruitless = %(fruitless)s, error = coalesce(%(error)s, error), fence = fence + 1,
       head_seq = %(head_seq)s, head_hash = %(head_hash)s,
       undo_at = andon.now() + (SELECT min(undo_within) FROM andon.effects e
                                 WHERE e.run_id = runs.id AND e.state = 'confirmed')
 WHERE id = %(run_id)s AND fence = %(fence)s AND state = 'running'
RETURNING parent_id;

-- end_attempt --
UPDATE andon.attempts SET ended_at = andon.now(), ending = %(ending)s
 WHERE run_id = %(run_id)s AND fence = %(fence)s;

-- wake_due --
UPDATE andon.runs
   SET state = 'queued', returned = true, available_at = wake_at, changed_at = andon.now(),
       undo_at = andon.now() + (SELECT min(undo_within) FROM andon.effects e
                                 WHERE e.run_id = runs.id AND e.state = 'confirmed')
 WHERE id = ANY (ARRAY(
         SELECT id FROM andon.runs
          WHERE state = 'suspended' AND wake_at <= (SELECT andon.now())
          ORDER BY wake_at LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED));

-- give_up_overdue --
-- Nobody has resumed them in time: what they did is undone.
UPDATE andon.runs
   SET state = 'queued', returned = true, available_at = andon.now(), undo_at = NULL,
       changed_at = andon.now(), undoing = %(undoing)s, fruitless = 0
 WHERE id = ANY (ARRAY(
         SELECT id FROM andon.runs
          WHERE undo_at <= (SELECT andon.now())
            AND state IN ('queued', 'stranded', 'paused', 'dead')
          ORDER BY undo_at LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED))
RETURNING id;

-- recall_run --
UPDATE andon.runs SET undoing = %(undoing)s WHERE id = %(run_id)s AND state = 'running' RETURNING id;

-- lock_worker --
-- The first thing of a claim. Against end_worker: a worker given up at this instant would be left
-- with runs that nobody takes back. And against this same claim, sent once more while the first one
-- still commits: it waits, and finds what the first one claimed.
SELECT state FROM andon.workers WHERE id = %(worker_id)s FOR NO KEY UPDATE;

-- claim_runs --
-- Ready runs of the versions this worker carries: what was begun before first, then priority, age.
-- Rows that somebody else is claiming are skipped. Arrays instead of joins, and the + 0, keep it on
-- the index of that order whatever the planner believes: else it would sort the whole queue.
-- Of the runs that may have killed their workers one at most, and none beside another one.
-- `chosen`: only these, which no limit holds back (see candidates).
WITH ready AS (
  SELECT r.id FROM andon.runs r
   WHERE r.state = 'queued' AND r.stop IS NULL AND r.available_at + 0 <= (SELECT andon.now())
     AND (jsonb_build_array(r.agent, r.version)
          = ANY (ARRAY(SELECT jsonb_array_elements(%(agents)s::text::jsonb)))
          OR (r.undoing IS NOT NULL
              AND r.agent = ANY (ARRAY(SELECT jsonb_array_elements(%(agents)s::text::jsonb) ->> 0))))
     AND (%(only)s::text IS NULL
          OR r.root_id IN (SELECT jsonb_array_elements_text(%(only)s::text::jsonb)))
     AND (%(queues)s::text IS NULL
          OR r.queue = ANY (ARRAY(SELECT jsonb_array_elements_text(%(queues)s::text::jsonb))))
     AND (%(chosen)s::text IS NULL
          OR r.id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(chosen)s::text::jsonb))))
     AND (SELECT state FROM andon.workers WHERE id = %(worker_id)s AND draining_at IS NULL) = 'live'
     AND (r.fruitless < %(suspect_from)s OR (
       r.id = (SELECT s.id FROM andon.runs s
                WHERE s.state = 'queued' AND s.fruitless >= %(suspect_from)s
                  AND s.stop IS NULL AND s.available_at + 0 <= (SELECT andon.now())
                  AND (jsonb_build_array(s.agent, s.version)
                       = ANY (ARRAY(SELECT jsonb_array_elements(%(agents)s::text::jsonb)))
                       OR (s.undoing IS NOT NULL
                           AND s.agent = ANY (ARRAY(
                             SELECT jsonb_array_elements(%(agents)s::text::jsonb) ->> 0))))
                  AND (%(only)s::text IS NULL
                       OR s.root_id IN (SELECT jsonb_array_elements_text(%(only)s::text::jsonb)))
                  AND (%(queues)s::text IS NULL
                       OR s.queue = ANY (ARRAY(SELECT jsonb_array_elements_text(%(queues)s::text::jsonb))))
                ORDER BY s.returned DESC, s.priority DESC, s.available_at, s.id LIMIT 1)
       AND NOT EXISTS (SELECT 1 FROM andon.runs h
                        WHERE h.worker = %(worker_id)s AND h.state = 'running'
                          AND h.fruitless >= %(suspect_from)s AND h.progress_seq = h.claimed_seq)))
   ORDER BY r.returned DESC, r.priority DESC, r.available_at, r.id
   LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE andon.runs r
   SET state = 'running', attempt = attempt + 1, fence = fence + 1, worker = %(worker_id)s,
       epoch = (SELECT epoch FROM andon.meta), claimed_seq = progress_seq,
       containment = (SELECT containment FROM andon.workers WHERE id = %(worker_id)s),
       waits = NULL, wake_at = NULL, undo_at = NULL, changed_at = andon.now()
 WHERE r.id = ANY (ARRAY(SELECT id FROM ready))
RETURNING r.id, r.agent, r.version, r.attempt, r.epoch, r.fence, r.failures, r.interruptions,
          r.head_seq, r.head_hash, r.inbox, r.parent_id, r.root_id, r.labels, r.queue, r.undoing, r.trial;

-- candidates --
-- What claim_runs would take, without what a limit holds back. `held`: slots that are full, or
-- spent, which hold back only runs that begin.
SELECT r.id, r.queue, r.agent, r.labels, r.attempt = 0 AND r.undoing IS NULL
  FROM andon.runs r
 WHERE r.state = 'queued' AND r.available_at + 0 <= (SELECT andon.now())
   AND (jsonb_build_array(r.agent, r.version)
        = ANY (ARRAY(SELECT jsonb_array_elements(%(agents)s::text::jsonb)))
        OR (r.undoing IS NOT NULL
            AND r.agent = ANY (ARRAY(SELECT jsonb_array_elements(%(agents)s::text::jsonb) ->> 0))))
   AND (%(only)s::text IS NULL
        OR r.root_id IN (SELECT jsonb_array_elements_text(%(only)s::text::jsonb)))
   AND (%(queues)s::text IS NULL
        OR r.queue = ANY (ARRAY(SELECT jsonb_array_elements_text(%(queues)s::text::jsonb))))
   AND r.id <> ALL (ARRAY(SELECT jsonb_array_elements_text(%(taken)s::text::jsonb)))
   AND r.queue <> ALL (ARRAY(
         SELECT h ->> 1 FROM jsonb_array_elements(%(held)s::text::jsonb) h
          WHERE h ->> 0 = 'queue' AND h ->> 3 = '0'))
   AND r.agent <> ALL (ARRAY(
         SELECT h ->> 1 FROM jsonb_array_elements(%(held)s::text::jsonb) h
          WHERE h ->> 0 = 'agent' AND h ->> 3 = '0'))
   AND (r.attempt > 0 OR r.undoing IS NOT NULL OR (
         r.queue <> ALL (ARRAY(
           SELECT h ->> 1 FROM jsonb_array_elements(%(held)s::text::jsonb) h
            WHERE h ->> 0 = 'queue' AND h ->> 3 = '1'))
         AND r.agent <> ALL (ARRAY(
           SELECT h ->> 1 FROM jsonb_array_elements(%(held)s::text::jsonb) h
            WHERE h ->> 0 = 'agent' AND h ->> 3 = '1'))))
   AND (r.labels = '{}' OR NOT EXISTS (
         SELECT 1 FROM jsonb_array_elements(%(held)s::text::jsonb) h
          WHERE h ->> 0 = 'label' AND r.labels::jsonb ->> (h ->> 1) = h ->> 2
            AND (h ->> 3 = '0' OR (r.attempt = 0 AND r.undoing IS NULL))))
   AND (SELECT state FROM andon.workers WHERE id = %(worker_id)s AND draining_at IS NULL) = 'live'
   AND (r.fruitless < %(suspect_from)s OR (
     r.id = (SELECT s.id FROM andon.runs s
              WHERE s.state = 'queued' AND s.fruitless >= %(suspect_from)s
                AND s.stop IS NULL AND s.available_at + 0 <= (SELECT andon.now())
                AND (jsonb_build_array(s.agent, s.version)
                     = ANY (ARRAY(SELECT jsonb_array_elements(%(agents)s::text::jsonb)))
                     OR (s.undoing IS NOT NULL
                         AND s.agent = ANY (ARRAY(
                           SELECT jsonb_array_elements(%(agents)s::text::jsonb) ->> 0))))
                AND (%(only)s::text IS NULL
                     OR s.root_id IN (SELECT jsonb_array_elements_text(%(only)s::text::jsonb)))
                AND (%(queues)s::text IS NULL
                     OR s.queue = ANY (ARRAY(SELECT jsonb_array_elements_text(%(queues)s::text::jsonb))))
              ORDER BY s.returned DESC, s.priority DESC, s.available_at, s.id LIMIT 1)
     AND NOT EXISTS (SELECT 1 FROM andon.runs h
                      WHERE h.worker = %(worker_id)s AND h.state = 'running'
                        AND h.fruitless >= %(suspect_from)s AND h.progress_seq = h.claimed_seq)))
 ORDER BY r.returned DESC, r.priority DESC, r.available_at, r.id
 LIMIT %(limit)s;

-- lock_limits --
-- Whoever claims under limits counts first: one after the other, until it commits.
SELECT pg_advisory_xact_lock(4701822938610213711);

-- lock_workers --
-- Every claim holds its worker: those that have not seen a new limit end before it holds.
SELECT id FROM andon.workers WHERE state = 'live' ORDER BY id FOR NO KEY UPDATE;

-- limits --
SELECT scope, name, at_most, rate, per_seconds, set_by, set_at FROM andon.limits ORDER BY scope, name;

-- set_limit --
INSERT INTO andon.limits (scope, name, at_most, rate, per_seconds, set_by, set_at)
VALUES (%(scope)s, %(name)s, %(at_most)s, %(rate)s, %(per_seconds)s, %(set_by)s, andon.now())
ON CONFLICT (scope, name) DO UPDATE
   SET at_most = excluded.at_most, rate = excluded.rate, per_seconds = excluded.per_seconds,
       set_by = excluded.set_by, set_at = excluded.set_at;

-- drop_limit --
DELETE FROM andon.limits WHERE scope = %(scope)s AND name = %(name)s RETURNING name;

-- running --
-- By everything that a limit may look at.
SELECT queue, agent, labels, count(*) FROM andon.runs
 WHERE worker IS NOT NULL AND state = 'running' GROUP BY queue, agent, labels;

-- buckets --
SELECT scope, name, value, unspent, filled_at FROM andon.buckets;

-- fill_bucket --
INSERT INTO andon.buckets (scope, name, value, unspent, filled_at)
VALUES (%(scope)s, %(name)s, %(value)s, %(unspent)s, %(filled_at)s)
ON CONFLICT (scope, name, value) DO UPDATE
   SET unspent = excluded.unspent, filled_at = excluded.filled_at;

-- sweep_buckets --
-- Those that are full again say nothing: a bucket is full a period after it was last spent from.
DELETE FROM andon.buckets
 WHERE NOT EXISTS (SELECT 1 FROM andon.limits l
                    WHERE l.scope = buckets.scope AND l.name = buckets.name
                      AND l.rate IS NOT NULL AND filled_at + l.per_seconds > (SELECT andon.now()));

-- queues --
SELECT queue, sum(waiting)::bigint, sum(returned)::bigint, sum(later)::bigint, sum(running)::bigint, min(oldest) FROM (
  SELECT queue, (available_at <= (SELECT andon.now()))::int AS waiting,
         (available_at <= (SELECT andon.now()) AND returned)::int AS returned,
         (available_at > (SELECT andon.now()))::int AS later, 0 AS running,
         CASE WHEN available_at <= (SELECT andon.now()) THEN available_at END AS oldest
    FROM andon.runs WHERE state = 'queued'
  UNION ALL
  SELECT queue, 0, 0, 0, 1, NULL FROM andon.runs WHERE worker IS NOT NULL AND state = 'running'
) counted GROUP BY queue ORDER BY queue;

-- unfinished --
SELECT agent, version, state, count(*) FROM andon.runs
 WHERE state NOT IN ('succeeded', 'failed', 'cancelled', 'dead')
   AND (%(agent)s::text IS NULL OR agent = %(agent)s)
 GROUP BY agent, version, state;

-- run_count --
SELECT count(*) FROM andon.runs;

-- forsaken --
-- Queued runs that no worker would take: nobody carries their version (for those to be undone, any
-- version), or serves their queue. With an allowance, so that a restart goes unnoticed.
WITH carried AS (
  SELECT a ->> 0 AS agent, a ->> 1 AS version, w.queues
    FROM andon.workers w, jsonb_array_elements(w.agents::jsonb) a
   WHERE (w.state = 'live' AND w.draining_at IS NULL AND w.lease_until >= (SELECT andon.now()))
      OR coalesce(w.draining_at, w.ended_at) > (SELECT andon.now()) - %(allowance)s::float8
), waiting AS (
  SELECT agent, version, queue, undoing IS NOT NULL AS undone, count(*) AS runs,
         min(available_at) AS oldest
    FROM andon.runs WHERE state = 'queued' AND available_at <= (SELECT andon.now()) - %(allowance)s::float8
   GROUP BY agent, version, queue, undoing IS NOT NULL
)
SELECT r.agent, r.version, sum(r.runs)::bigint, min(r.oldest) FROM waiting r
 WHERE NOT EXISTS (SELECT 1 FROM carried c
                    WHERE c.agent = r.agent AND (c.version = r.version OR r.undone)
                      AND (c.queues IS NULL OR r.queue IN (SELECT jsonb_array_elements_text(c.queues::jsonb))))
 GROUP BY r.agent, r.version ORDER BY r.agent, r.version;

-- claimed_before --
-- What this very claim has claimed already (its commit's outcome was unknown).
SELECT r.id, r.agent, r.version, r.attempt, r.epoch, r.fence, r.failures, r.interruptions,
       r.head_seq, r.head_hash, r.inbox, r.parent_id, r.root_id, r.labels, r.queue, r.undoing, r.trial
  FROM andon.runs r JOIN andon.attempts a ON a.run_id = r.id AND a.fence = r.fence
 WHERE r.worker = %(worker_id)s AND r.state = 'running' AND a.claim = %(claim)s ORDER BY r.id;

-- begin_attempts --
INSERT INTO andon.attempts (run_id, fence, number, worker, claim, claimed_at)
SELECT one ->> 0, (one ->> 1)::bigint, (one ->> 2)::bigint, %(worker_id)s, %(claim)s, andon.now()
  FROM jsonb_array_elements(%(runs)s::text::jsonb) one;

-- look --
-- What a claim has to know, in one: whether this worker shall go, whether there are limits, whether
-- anything has become due, when the next thing will, which of its runs somebody wants undone, which
-- scopes are held, when an order becomes hard, which orders there are for it, and whether this very
-- claim has claimed before.
-- After lock_worker, and not with it: what it had to wait for must be seen.
-- Two of the answers are parts of claim_usual, too: see postgres_batch.sql.
SELECT drain_asked_at IS NOT NULL,
       EXISTS (SELECT 1 FROM andon.limits),
       EXISTS (SELECT 1 FROM andon.workers
                WHERE state = 'live' AND lease_until < (SELECT andon.now())),
       EXISTS (SELECT 1 FROM andon.runs
                WHERE state = 'suspended' AND wake_at <= (SELECT andon.now())),
       EXISTS (SELECT 1 FROM andon.runs WHERE undo_at <= (SELECT andon.now())
                  AND state IN ('queued', 'stranded', 'paused', 'dead')),
       (SELECT min(due) - andon.now() FROM (
          SELECT min(wake_at) AS due FROM andon.runs
           WHERE state = 'suspended' AND wake_at > (SELECT andon.now())
          UNION ALL
          SELECT min(undo_at) FROM andon.runs WHERE undo_at > (SELECT andon.now())
          UNION ALL
          SELECT min(available_at) FROM andon.runs
           WHERE state = 'queued' AND available_at > 0
             AND available_at > (SELECT andon.now())) waiting),
       {recalled},
       (SELECT coalesce(jsonb_agg(jsonb_build_array(scope, name, value, kind)), '[]')::text
          FROM andon.stops WHERE latched AND lifted_at IS NULL),
       (SELECT min(escalate_at) - andon.now() FROM andon.stops WHERE closed_at IS NULL),
       {orders},
       EXISTS (SELECT 1 FROM andon.runs r JOIN andon.attempts a ON a.run_id = r.id AND a.fence = r.fence
                WHERE r.worker = %(worker_id)s AND r.state = 'running' AND a.claim = %(claim)s)
  FROM andon.workers WHERE id = %(worker_id)s;

-- lock_runs --
-- Several rows, always in the same order; who locks runs one by one later finds them his own.
-- `ending` are those whose parents will be told.
SELECT id, state FROM andon.runs
 WHERE id = ANY (ARRAY(
         SELECT jsonb_array_elements_text(%(run_ids)s::text::jsonb)
         UNION
         SELECT parent_id FROM andon.runs
          WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(ending)s::text::jsonb)))))
 ORDER BY id FOR NO KEY UPDATE;

-- start_run --
-- Nothing begins while everything is halted.
-- Labels must be readable as jsonb, or they would spoil every listing by label.
INSERT INTO andon.runs (id, agent, version, queue, state, priority, available_at, labels, parent_id,
                        root_id, head_seq, head_hash, created_at, changed_at)
SELECT %(id)s, %(agent)s, %(version)s, %(queue)s, 'queued', %(priority)s,
       coalesce(%(at)s::float8, andon.now() + %(delay_seconds)s::float8), %(labels)s,
       %(parent_id)s, %(root_id)s, 0, %(hash)s, andon.now(), andon.now()
 WHERE %(labels)s::text::jsonb IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM andon.stops
                    WHERE latched AND lifted_at IS NULL AND kind = 'halt')
ON CONFLICT (id) DO NOTHING
RETURNING id;

-- insert_entry --
INSERT INTO andon.journal (run_id, seq, kind, state, place, name, key, digest, body, blob, fence, since, at, hash)
VALUES (%(run_id)s, %(seq)s, %(kind)s, %(state)s, %(place)s, %(name)s, %(key)s, %(digest)s,
        %(body)s, %(blob)s, %(fence)s, %(since)s, %(at)s, %(hash)s);

-- advance_head --
-- The fence check of every append. No row: somebody else owns the run, or this is already written.
UPDATE andon.runs
   SET head_seq = %(seq)s, head_hash = %(hash)s, step = coalesce(%(step)s, step),
       progress_seq = CASE WHEN %(progress)s::boolean THEN %(seq)s ELSE progress_seq END
 WHERE id = %(run_id)s AND fence = %(fence)s AND epoch = %(epoch)s AND state = 'running'
   AND head_seq = %(before)s AND (SELECT epoch FROM andon.meta) = %(epoch)s
RETURNING id;

-- entry_hash --
SELECT hash FROM andon.journal WHERE run_id = %(run_id)s AND seq = %(seq)s;

-- upsert_effect --
INSERT INTO andon.effects (run_id, name, key, place, kind, state, seq, fence, quiet, undo, undo_within)
VALUES (%(run_id)s, %(name)s, %(key)s, %(place)s, %(kind)s, %(state)s, %(seq)s, %(fence)s,
        %(quiet)s::boolean, %(undo)s, %(undo_within)s)
ON CONFLICT (run_id, name, key) DO UPDATE
   SET place = excluded.place, kind = excluded.kind, state = excluded.state, seq = excluded.seq,
       fence = excluded.fence, quiet = excluded.quiet, undo = excluded.undo,
       undo_within = excluded.undo_within;

-- insert_blob --
INSERT INTO andon.blobs (name, body) VALUES (%(name)s, %(body)s) ON CONFLICT (name) DO NOTHING;

-- insert_ask --
INSERT INTO andon.asks (run_id, id, about, question, value, choices, asked_at, expires_at)
VALUES (%(run_id)s, %(id)s, %(about)s, %(question)s, %(value)s, %(choices)s, andon.now(),
        %(expires_at)s)
ON CONFLICT (run_id, id) DO NOTHING;

-- answer_ask --
UPDATE andon.asks SET answer = %(answer)s, answered_at = andon.now()
 WHERE run_id = %(run_id)s AND id = %(id)s AND answered_at IS NULL
RETURNING id;

-- close_asks --
UPDATE andon.asks SET answered_at = andon.now()
 WHERE run_id = %(run_id)s AND answered_at IS NULL;

-- take_message --
UPDATE andon.inbox SET taken = true WHERE id = %(id)s;

-- give_message_back --
UPDATE andon.inbox SET taken = false WHERE id = %(id)s;

-- drop_checkpoint --
DELETE FROM andon.checkpoints WHERE run_id = %(run_id)s AND op = %(op)s;

-- save_checkpoint --
-- The run is locked first: else a stale owner, held up here, could write over its successor's.
WITH owned AS (
  SELECT id FROM andon.runs
   WHERE id = %(run_id)s AND fence = %(fence)s AND epoch = %(epoch)s AND state = 'running'
     AND (SELECT epoch FROM andon.meta) = %(epoch)s
   FOR NO KEY UPDATE
)
INSERT INTO andon.checkpoints (run_id, op, body, progress, at)
SELECT id, %(op)s, %(body)s, %(progress)s::text, andon.now() FROM owned
ON CONFLICT (run_id, op) DO UPDATE SET body = excluded.body, progress = excluded.progress, at = excluded.at
RETURNING op;

-- settle_run --
-- A message that arrived since the run was read keeps it from going to sleep: `inbox` is judged
-- after the row is locked, and deliver locks it too. So does the wish that it be undone, which
-- keeps it from being over.
UPDATE andon.runs
   SET state = CASE WHEN %(sleeps)s::boolean AND inbox > %(seen_inbox)s THEN %(awake_state)s
                    WHEN %(over)s::boolean AND NOT %(undone)s::boolean AND undoing IS NOT NULL
                    THEN 'queued' ELSE %(state)s END,
       returned = CASE WHEN %(keeps_place)s::boolean THEN returned ELSE
         (%(returned)s::boolean OR (%(sleeps)s::boolean AND inbox > %(seen_inbox)s)
          OR (%(over)s::boolean AND NOT %(undone)s::boolean AND undoing IS NOT NULL)) END,
       worker = NULL,
       available_at = CASE WHEN %(keeps_place)s::boolean THEN available_at
                           ELSE andon.now() + %(delay_seconds)s::float8 END,
       changed_at = andon.now(), waits = %(waits)s, wake_at = %(wake_at)s, error = %(error)s,
       failures = failures + %(failed)s, fruitless = 0,
       trial = CASE WHEN %(tried)s::boolean THEN NULL ELSE trial END,
       version = coalesce(%(version)s, version),
       undoing = CASE WHEN %(undone)s::boolean THEN NULL ELSE undoing END,
       undo_at = CASE WHEN %(undo_later)s::boolean OR (%(sleeps)s::boolean AND inbox > %(seen_inbox)s)
                      THEN andon.now() + %(delay_seconds)s::float8 + (
                        SELECT min(undo_within) FROM andon.effects e
                         WHERE e.run_id = runs.id AND e.state = 'confirmed') END,
       head_seq = coalesce(%(seq)s::bigint, head_seq), head_hash = coalesce(%(hash)s::text, head_hash)
 WHERE id = %(run_id)s AND fence = %(fence)s AND epoch = %(epoch)s AND state = 'running'
   AND (SELECT epoch FROM andon.meta) = %(epoch)s
   AND (%(before)s::bigint IS NULL OR head_seq = %(before)s::bigint)
RETURNING id, state, parent_id, stop;

-- is_settled --
-- Whether this very settlement was already written (its commit's outcome was unknown).
SELECT 1 FROM andon.attempts
 WHERE run_id = %(run_id)s AND fence = %(fence)s AND ended_at IS NOT NULL AND ending = %(ending)s;

-- deliver --
-- The counter is changed even while the run works, so that it cannot go to sleep past the message.
UPDATE andon.runs
   SET inbox = inbox + 1,
       returned = returned OR state = 'suspended',
       available_at = CASE WHEN state = 'suspended' THEN andon.now() ELSE available_at END,
       changed_at = CASE WHEN state = 'suspended' THEN andon.now() ELSE changed_at END,
       undo_at = CASE WHEN state = 'suspended' THEN
         andon.now() + (SELECT min(undo_within) FROM andon.effects e
                                 WHERE e.run_id = runs.id AND e.state = 'confirmed') ELSE undo_at END,
       state = CASE WHEN state = 'suspended' THEN 'queued' ELSE state END
 WHERE id = %(run_id)s AND state NOT IN ('succeeded', 'failed', 'cancelled', 'dead')
RETURNING state;

-- is_delivered --
SELECT 1 FROM andon.inbox WHERE run_id = %(run_id)s AND message_id = %(message_id)s;

-- move_run --
-- By somebody who does not own it: nobody does. `fresh`: as if it had never failed.
UPDATE andon.runs
   SET state = %(state)s, returned = true, available_at = andon.now(),
       error = CASE WHEN %(forgets)s::boolean THEN NULL ELSE error END,
       changed_at = andon.now(), undoing = coalesce(%(undoing)s, undoing),
       version = coalesce(%(version)s, version), trial = %(trial)s, waits = NULL, wake_at = NULL,
       failures = CASE WHEN %(fresh)s::boolean THEN 0 ELSE failures END,
       fruitless = CASE WHEN %(fresh)s::boolean OR %(undoing)s::text IS NOT NULL
                        THEN 0 ELSE fruitless END,
       undo_at = CASE WHEN %(undo_later)s::boolean THEN
         andon.now() + (SELECT min(undo_within) FROM andon.effects e
                                 WHERE e.run_id = runs.id AND e.state = 'confirmed') END,
       head_seq = coalesce(%(seq)s::bigint, head_seq), head_hash = coalesce(%(hash)s::text, head_hash)
 WHERE id = %(run_id)s AND state = %(seen)s
   AND (%(before)s::bigint IS NULL OR head_seq = %(before)s::bigint) AND stop IS NULL
RETURNING id;

-- insert_message --
INSERT INTO andon.inbox (run_id, kind, name, body, message_id, at)
VALUES (%(run_id)s, %(kind)s, %(name)s, %(body)s, %(message_id)s, andon.now())
ON CONFLICT (run_id, message_id) DO NOTHING
RETURNING id;

-- insert_log --
INSERT INTO andon.logs (run_id, attempt, at, level, text)
VALUES (%(run_id)s, %(attempt)s, %(at)s, %(level)s, %(text)s);

-- start_entry --
SELECT seq, kind, state, place, name, key, digest, body, blob, fence, since, at, hash
  FROM andon.journal WHERE run_id = %(run_id)s AND seq = 0;

-- start_entries --
SELECT run_id, seq, kind, state, place, name, key, digest, body, blob, fence, since, at, hash
  FROM andon.journal
 WHERE run_id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(run_ids)s::text::jsonb))) AND seq = 0;

-- load_entries --
-- From the last snapshot on: replay never reads what a snapshot has made unnecessary.
SELECT seq, kind, state, place, name, key, digest, body, blob, fence, since, at, hash
  FROM andon.journal
 WHERE run_id = %(run_id)s
   AND seq >= coalesce((SELECT max(seq) FROM andon.journal
                         WHERE run_id = %(run_id)s AND kind = 'snapshot'), 0)
 ORDER BY seq;

-- journal --
SELECT seq, kind, state, place, name, key, digest, body, blob, fence, since, at, hash
  FROM andon.journal WHERE run_id = %(run_id)s AND seq > %(after)s ORDER BY seq LIMIT %(limit)s;

-- last_entry --
SELECT seq, kind, state, place, name, key, digest, body, blob, fence, since, at, hash
  FROM andon.journal WHERE run_id = %(run_id)s ORDER BY seq DESC LIMIT 1;

-- sent --
SELECT body FROM andon.inbox
 WHERE run_id = %(run_id)s AND kind = 'event' AND name = %(name)s ORDER BY id;

-- inbox --
SELECT run_id, id, kind, name, body FROM andon.inbox
 WHERE run_id IN (SELECT jsonb_array_elements_text(%(run_ids)s::text::jsonb)) AND NOT taken ORDER BY id;

-- progress --
-- Of runs that are not over, the step that spoke last first.
SELECT c.run_id, c.progress FROM andon.checkpoints c JOIN andon.runs r ON r.id = c.run_id
 WHERE c.progress IS NOT NULL AND r.state NOT IN ('succeeded', 'failed', 'cancelled', 'dead')
 ORDER BY c.at DESC;

-- checkpoints --
SELECT op, body FROM andon.checkpoints WHERE run_id = %(run_id)s;

-- quiet_fences --
-- Earlier claims whose workers certainly execute nothing any more, nor does what they have started.
SELECT a.fence FROM andon.attempts a JOIN andon.workers w ON w.id = a.worker
 WHERE a.run_id = %(run_id)s AND (a.quiet OR w.state = 'dead' OR (w.state = 'gone' AND a.mark IS NULL));

-- run --
SELECT id, agent, version, queue, state, priority, labels, attempt, failures, interruptions, epoch,
       fence, worker, parent_id, root_id, step, error, waits, wake_at, available_at, created_at,
       changed_at, head_seq, head_hash, undoing, undo_at, trial, stop, containment
  FROM andon.runs WHERE id = %(run_id)s;

-- runs_among --
SELECT id, agent, version, queue, state, priority, labels, attempt, failures, interruptions, epoch,
       fence, worker, parent_id, root_id, step, error, waits, wake_at, available_at, created_at,
       changed_at, head_seq, head_hash, undoing, undo_at, trial, stop, containment
  FROM andon.runs
 WHERE id IN (SELECT jsonb_array_elements_text(%(run_ids)s::text::jsonb))
   AND state IN (SELECT jsonb_array_elements_text(%(states)s::text::jsonb));

-- runs --
SELECT id, agent, version, queue, state, priority, labels, attempt, failures, interruptions, epoch,
       fence, worker, parent_id, root_id, step, error, waits, wake_at, available_at, created_at,
       changed_at, head_seq, head_hash, undoing, undo_at, trial, stop, containment
  FROM andon.runs
 WHERE (%(states)s::text IS NULL
        OR state IN (SELECT jsonb_array_elements_text(%(states)s::text::jsonb)))
   AND (%(agent)s::text IS NULL OR agent = %(agent)s)
   AND (%(parent_id)s::text IS NULL OR parent_id = %(parent_id)s)
   AND (%(prefix)s::text IS NULL OR starts_with(id, %(prefix)s))
   AND (%(roots)s::boolean IS NULL OR (parent_id IS NULL) = %(roots)s)
   AND (%(label)s::text IS NULL
        OR labels::jsonb @> jsonb_build_object(%(label)s::text, %(label_value)s::text))
   AND (%(before_at)s::float8 IS NULL OR (created_at, id) < (%(before_at)s, %(before_id)s::text))
 ORDER BY created_at DESC, id DESC LIMIT %(limit)s;

-- ledger --
SELECT name, key, place, kind, state, seq, fence, quiet, undo, undo_within FROM andon.effects
 WHERE run_id = %(run_id)s ORDER BY seq;

-- obligations --
-- What would have to be undone if its run went no further.
SELECT e.run_id, r.agent, r.version, r.state, e.name, e.key, e.state, e.seq, e.undo, e.undo_within,
       r.undo_at
  FROM andon.effects e JOIN andon.runs r ON r.id = e.run_id
 WHERE e.undo IS NOT NULL AND e.state IN ('confirmed', 'undoing') AND r.state <> 'succeeded'
   AND (%(run_id)s::text IS NULL OR e.run_id = %(run_id)s)
 ORDER BY r.undo_at IS NULL, r.undo_at, e.run_id, e.seq LIMIT %(limit)s;

-- insert_event --
INSERT INTO andon.events (at, kind, run_id, worker, body)
VALUES (andon.now(), %(kind)s, %(run_id)s, %(worker)s, %(body)s);

-- events --
SELECT id, at, kind, run_id, worker, body FROM andon.events
 WHERE id > %(after)s ORDER BY id LIMIT %(limit)s;

-- waiting --
-- What waits for a worker now, and what is put aside. Counted from the oldest on and not beyond
-- the limit: it is asked every few seconds.
SELECT state, queue, agent, version, count(*), greatest(0, andon.now() - min(available_at))
  FROM (SELECT * FROM (SELECT state, queue, agent, version, available_at FROM andon.runs
                        WHERE state = 'queued' AND available_at <= andon.now()
                        ORDER BY available_at LIMIT %(limit)s) q
         UNION ALL
        SELECT * FROM (SELECT state, queue, agent, version, available_at FROM andon.runs
                        WHERE state = 'stranded' LIMIT %(limit)s) s) w
 GROUP BY state, queue, agent, version ORDER BY state, queue, agent, version;

-- stranded_versions --
-- Those of which the last word is that nobody carries them.
SELECT agent, version FROM (
  SELECT DISTINCT ON (agent, version) agent, version, kind FROM (
    SELECT body::jsonb ->> 'agent' AS agent, body::jsonb ->> 'version' AS version, kind, id
      FROM andon.events WHERE kind IN ('version.stranded', 'version.carried')) told
   ORDER BY agent, version, id DESC) last
 WHERE kind = 'version.stranded';

-- last_event --
SELECT coalesce(max(id), 0) FROM andon.events;

-- last_event_before --
SELECT coalesce((SELECT id FROM andon.events WHERE at < %(before)s::float8
                  ORDER BY at DESC, id DESC LIMIT 1), 0);

-- slowest_steps --
-- How long steps took, by the newest runs: the journal of them all may be large.
SELECT r.agent, j.name, count(*),
       count(*) FILTER (WHERE j.at - j.since > %(longer_than)s::float8), max(j.at - j.since)
  FROM (SELECT id, agent FROM andon.runs ORDER BY created_at DESC, id DESC LIMIT %(runs)s) r
  JOIN andon.journal j ON j.run_id = r.id
 WHERE j.kind IN ('step', 'effect') AND j.state IN ('done', 'confirmed')
   AND j.since > 0 AND j.at >= %(since)s::float8
 GROUP BY r.agent, j.name ORDER BY 5 DESC, 1, 2 LIMIT 1000;

-- attempts --
SELECT number, fence, worker, claimed_at, ended_at, ending FROM andon.attempts
 WHERE run_id = %(run_id)s ORDER BY fence;

-- held_by --
-- What a worker had in its hands since a time, and what became of it.
SELECT a.run_id, a.number, a.fence, a.worker, a.claimed_at, a.ended_at, a.ending, r.state,
       (SELECT min(n.claimed_at) FROM andon.attempts n
         WHERE n.run_id = a.run_id AND n.fence > a.fence),
       (SELECT j.at FROM andon.journal j
         WHERE j.run_id = a.run_id AND j.fence <= a.fence AND j.at > 0 ORDER BY j.seq DESC LIMIT 1)
  FROM andon.attempts a JOIN andon.runs r ON r.id = a.run_id
 WHERE a.worker = %(worker_id)s AND (a.ended_at IS NULL OR a.ended_at >= %(since)s::float8)
 ORDER BY a.claimed_at, a.run_id;

-- asks --
SELECT run_id, id, about, question, value, choices, asked_at, expires_at, answer, answered_at
  FROM andon.asks
 WHERE (%(run_id)s::text IS NULL OR run_id = %(run_id)s)
   AND (NOT %(open_only)s::boolean OR answered_at IS NULL)
 ORDER BY asked_at, id;

-- logs --
SELECT id, at, level, text FROM andon.logs
 WHERE run_id = %(run_id)s AND id > %(after)s ORDER BY id LIMIT 1000;

-- blob --
SELECT body FROM andon.blobs WHERE name = %(name)s;

-- lock_orders --
-- One order after the other; then every claim that has not seen it ends before it counts.
SELECT pg_advisory_xact_lock(4701822938610213712);

-- try_orders --
-- Who holds locks already does not wait for an order, which may wait for those.
SELECT pg_try_advisory_xact_lock(4701822938610213712);

-- share_orders --
-- A worker that registers waits for the order in hand, which has looked for workers before.
SELECT pg_advisory_xact_lock_shared(4701822938610213712);

-- lock_named_workers --
SELECT id FROM andon.workers
 WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(worker_ids)s::text::jsonb)))
 ORDER BY id FOR NO KEY UPDATE;

-- lock_runs_of --
-- What a worker holds, and what was taken from it and is not proved; with those who will be told.
WITH its AS (
  SELECT id, parent_id FROM andon.runs WHERE worker = %(worker_id)s AND state = 'running'
  UNION
  SELECT r.id, r.parent_id FROM andon.targets t JOIN andon.runs r ON r.id = t.run_id
   WHERE t.worker = %(worker_id)s AND (t.ended_at IS NULL OR t.stage = 'unproved')
)
SELECT id FROM andon.runs
 WHERE id = ANY (ARRAY(SELECT id FROM its UNION SELECT parent_id FROM its))
 ORDER BY id FOR NO KEY UPDATE;

-- lock_supervisors --
-- One that is dismissed at this instant is waited for: else its row would stay open for ever.
SELECT id FROM andon.supervisors WHERE state = 'live' ORDER BY id FOR NO KEY UPDATE;

-- lock_stops --
-- Two who end the last two targets of an order: each sees the other's open, but for this.
SELECT id FROM andon.stops
 WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(ids)s::text::jsonb)))
 ORDER BY id FOR NO KEY UPDATE;

-- stop_in_force --
-- The same order, given again, is the same order. Newest first.
SELECT id FROM andon.stops
 WHERE id = %(id)s
    OR (kind = %(kind)s AND scope = %(scope)s AND name = %(name)s AND value = %(value)s
        AND (closed_at IS NULL OR (latched AND lifted_at IS NULL)))
 ORDER BY id = %(id)s DESC, epoch DESC LIMIT 1;

-- insert_stop --
INSERT INTO andon.stops (id, epoch, kind, scope, name, value, within, asked_by, why, via, asked_at,
                         escalate_at, latched, spare)
VALUES (%(id)s, (SELECT coalesce(max(epoch), 0) + 1 FROM andon.stops), %(kind)s, %(scope)s, %(name)s, %(value)s,
        %(within)s, %(by)s, %(why)s, %(via)s, andon.now(),
        CASE WHEN %(polite)s::boolean THEN andon.now() + %(within)s::float8 END, %(latched)s, %(spare)s)
RETURNING epoch;

-- descendants --
-- A run and everybody it has started, whatever has become of those between; parents first. Over: also those
-- that have ended, and may have left something.
WITH RECURSIVE family (id, depth) AS (
  SELECT id, 0 FROM andon.runs WHERE id = %(run_id)s
  UNION
  SELECT r.id, f.depth + 1 FROM andon.runs r JOIN family f ON r.parent_id = f.id
)
SELECT r.id FROM andon.runs r JOIN family f ON r.id = f.id
 WHERE r.state NOT IN ('succeeded', 'failed', 'cancelled', 'dead')
    OR (%(over)s::boolean AND EXISTS (SELECT 1 FROM andon.attempts a WHERE a.run_id = r.id AND a.mark IS NOT NULL AND NOT a.quiet))
 ORDER BY f.depth, r.id;

-- members --
-- Every unfinished run that is in the scope, or has an ancestor in it, whatever has become of that.
WITH RECURSIVE up (id, above) AS (
  SELECT id, id FROM andon.runs WHERE state NOT IN ('succeeded', 'failed', 'cancelled', 'dead')
  UNION
  SELECT up.id, r.parent_id FROM up JOIN andon.runs r ON r.id = up.above
   WHERE r.parent_id IS NOT NULL
)
SELECT DISTINCT up.id FROM up JOIN andon.runs a ON a.id = up.above
 WHERE %(scope)s::text = 'fleet' OR (%(scope)s::text = 'agent' AND a.agent = %(name)s)
    OR (%(scope)s::text = 'label' AND a.labels::jsonb ->> %(name)s::text = %(value)s)
 ORDER BY up.id;

-- executing --
-- Also what another order has fenced, and may not have ended yet.
SELECT id FROM andon.runs WHERE worker IS NOT NULL AND state = 'running'
 UNION SELECT run_id FROM andon.targets WHERE run_id IS NOT NULL AND ended_at IS NULL ORDER BY 1;

-- frozen --
-- Nobody executes them, and their processes are there all the same.
SELECT r.id FROM andon.workers w JOIN andon.attempts a ON a.worker = w.id
  JOIN andon.runs r ON r.id = a.run_id AND r.fence = a.fence
 WHERE w.state = 'live' AND w.supervisor IS NOT NULL AND left(a.ending, 6) = 'frozen'
   AND r.state IN ('paused', 'queued') ORDER BY r.id;

-- stop_rows --
-- What an order has to know of its runs; they are locked until it commits.
SELECT r.id, r.state, r.worker, r.fence, r.head_seq, r.head_hash, r.parent_id, r.stop,
       EXISTS (SELECT 1 FROM andon.effects e
                WHERE e.run_id = r.id AND e.undo IS NOT NULL
                  AND e.state IN ('confirmed', 'undoing', 'started', 'in_doubt')),
       (SELECT w.supervisor FROM andon.workers w WHERE w.id = r.worker),
       (SELECT a.worker FROM andon.attempts a JOIN andon.workers w ON w.id = a.worker
         WHERE a.run_id = r.id AND a.fence = r.fence AND left(a.ending, 6) = 'frozen' AND w.state = 'live')
  FROM andon.runs r WHERE r.id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(run_ids)s::text::jsonb)))
 ORDER BY r.id FOR NO KEY UPDATE OF r;

-- ask_run --
-- Its worker hears of it by its next claim.
UPDATE andon.runs SET stop = %(stop)s WHERE id = %(run_id)s AND state = 'running' RETURNING id;

-- fence_run --
-- Nothing that its worker writes is taken any more.
UPDATE andon.runs
   SET state = 'killed', fence = fence + 1, worker = NULL, stop = %(stop)s, undo_at = NULL,
       changed_at = andon.now()
 WHERE id = %(run_id)s AND fence = %(fence)s AND state = 'running'
RETURNING id;

-- fence_frozen --
-- Its process is not to be thawed any more, and has to be ended.
UPDATE andon.runs
   SET state = 'killed', fence = fence + 1, stop = %(stop)s, undo_at = NULL, changed_at = andon.now()
 WHERE id = %(run_id)s AND fence = %(fence)s AND state IN ('paused', 'queued');

-- stop_run --
-- Nobody executes it: it becomes what the order says.
UPDATE andon.runs
   SET state = %(state)s, stop = NULL, worker = NULL, error = %(error)s::text, returned = true,
       undoing = coalesce(undoing, %(undoing)s::text), changed_at = andon.now(),
       waits = NULL, wake_at = NULL, fruitless = 0,
       available_at = CASE WHEN %(state)s::text = 'queued' THEN andon.now() ELSE available_at END,
       undo_at = CASE WHEN %(undo_later)s::boolean THEN
         andon.now() + (SELECT min(undo_within) FROM andon.effects e
                                 WHERE e.run_id = runs.id AND e.state = 'confirmed') END,
       head_seq = coalesce(%(seq)s::bigint, head_seq), head_hash = coalesce(%(hash)s::text, head_hash)
 WHERE id = %(run_id)s
RETURNING parent_id;

-- end_entries --
INSERT INTO andon.journal (run_id, seq, kind, state, place, name, key, digest, body, blob, fence, since, at, hash)
SELECT one ->> 0, (one ->> 1)::bigint, 'end', 'cancelled', '', '', NULL, '', %(body)s, NULL,
       (one ->> 3)::bigint, 0, 0, one ->> 2
  FROM jsonb_array_elements(%(runs)s::text::jsonb) one;

-- end_runs --
-- Nobody executes them, and they owe nothing: they are over.
UPDATE andon.runs r
   SET state = 'cancelled', error = %(error)s::text, returned = true, changed_at = andon.now(),
       waits = NULL, wake_at = NULL, fruitless = 0, undo_at = NULL,
       head_seq = g.seq, head_hash = g.hash
  FROM (SELECT one ->> 0 AS id, (one ->> 1)::bigint AS seq, one ->> 2 AS hash
          FROM jsonb_array_elements(%(runs)s::text::jsonb) one) g
 WHERE r.id = g.id;

-- close_asks_of --
UPDATE andon.asks SET answered_at = andon.now()
 WHERE run_id = ANY (ARRAY(SELECT one ->> 0 FROM jsonb_array_elements(%(runs)s::text::jsonb) one))
   AND answered_at IS NULL;

-- undo_runs --
-- Nobody executes them, and they owe an undo: whoever claims them next sees to that.
UPDATE andon.runs
   SET state = 'queued', error = NULL, returned = true, changed_at = andon.now(),
       undoing = coalesce(undoing, %(undoing)s::text), waits = NULL, wake_at = NULL, fruitless = 0,
       available_at = andon.now(), undo_at = NULL
 WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(run_ids)s::text::jsonb)));

-- insert_events --
INSERT INTO andon.events (at, kind, run_id, worker, body)
SELECT andon.now(), %(kind)s, one.id, NULL, %(body)s FROM (SELECT jsonb_array_elements_text(%(run_ids)s::text::jsonb) AS id) one;

-- hold_runs --
-- Those that nobody executes, many at once.
UPDATE andon.runs
   SET state = %(state)s, error = %(error)s::text, changed_at = andon.now(), waits = NULL, wake_at = NULL,
       undo_at = CASE WHEN %(undo_later)s::boolean THEN
         andon.now() + (SELECT min(undo_within) FROM andon.effects e
                                 WHERE e.run_id = runs.id AND e.state = 'confirmed') END
 WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(run_ids)s::text::jsonb)))
   AND state = ANY (ARRAY(SELECT jsonb_array_elements_text(%(states)s::text::jsonb))) AND stop IS NULL
RETURNING id;

-- hold_all --
-- What waits anywhere stays away until somebody resumes it.
UPDATE andon.runs
   SET state = 'killed', error = %(error)s::text, changed_at = andon.now(), waits = NULL, wake_at = NULL,
       undo_at = NULL
 WHERE id = ANY (ARRAY(SELECT id FROM andon.runs WHERE state IN ('queued', 'suspended')
                        ORDER BY id FOR NO KEY UPDATE))
RETURNING id;

-- forget_windows --
-- What nobody had resumed when everything was stopped is not undone by itself afterwards.
UPDATE andon.runs SET undo_at = NULL
 WHERE undo_at IS NOT NULL AND state IN ('stranded', 'paused', 'dead');

-- resume_runs --
-- Later, if they were to begin later.
UPDATE andon.runs
   SET state = 'queued', returned = true, error = NULL, changed_at = andon.now(),
       available_at = greatest(available_at, andon.now()),
       undo_at = andon.now() + (SELECT min(undo_within) FROM andon.effects e
                                        WHERE e.run_id = runs.id AND e.state = 'confirmed')
 WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(run_ids)s::text::jsonb))) AND state IN ('paused', 'killed') AND stop IS NULL
   AND agent <> ALL (ARRAY(SELECT jsonb_array_elements_text(%(besides)s::text::jsonb)))
RETURNING id;

-- clear_stop --
UPDATE andon.runs SET stop = NULL WHERE id = %(run_id)s;

-- insert_target --
INSERT INTO andon.targets (stop_id, target, run_id, worker, supervisor, fence, stage, mark, requested_at, fenced_at)
VALUES (%(stop_id)s, %(target)s, %(run_id)s, %(worker)s, %(supervisor)s, %(fence)s, %(stage)s, %(mark)s, andon.now(),
        CASE WHEN %(stage)s::text = 'fenced' THEN andon.now() END)
ON CONFLICT (stop_id, target) DO NOTHING;

-- join_targets --
-- An order about a run that another order has fenced before waits for all that this one waits for.
INSERT INTO andon.targets (stop_id, target, run_id, worker, supervisor, fence, stage, mark, requested_at, fenced_at)
SELECT DISTINCT %(stop_id)s, target, run_id, worker, supervisor, fence, stage, mark, andon.now(), andon.now()
  FROM andon.targets WHERE run_id = %(run_id)s AND ended_at IS NULL AND stage = 'fenced'
ON CONFLICT (stop_id, target) DO NOTHING;

-- is_awaited --
-- Whether an end of this run is still to be proved.
SELECT 1 FROM andon.targets WHERE run_id = %(run_id)s AND ended_at IS NULL LIMIT 1;

-- fence_targets --
UPDATE andon.targets SET stage = 'fenced', fenced_at = andon.now()
 WHERE run_id = %(run_id)s AND ended_at IS NULL AND stage <> 'fenced';

-- hear --
UPDATE andon.targets SET stage = 'acknowledged', acknowledged_at = andon.now()
 WHERE worker = %(worker_id)s AND ended_at IS NULL AND stage = 'requested'
   AND run_id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(run_ids)s::text::jsonb)));

-- quieten --
UPDATE andon.attempts SET quiet = true WHERE run_id = %(run_id)s AND fence = %(fence)s;

-- end_run_targets --
-- What it had started has to be looked for.
UPDATE andon.targets SET stage = %(stage)s, evidence = %(evidence)s, ended_at = andon.now()
 WHERE run_id = %(run_id)s AND fence = %(fence)s AND ended_at IS NULL AND mark IS NULL
RETURNING stop_id, run_id;

-- word_targets --
-- What a worker's word is about, and whether the worker's process is to be ended.
SELECT t.stop_id, t.target, s.kind, s.spare, w.embedded
  FROM andon.targets t JOIN andon.stops s ON s.id = t.stop_id JOIN andon.workers w ON w.id = t.worker
 WHERE t.run_id = %(run_id)s AND t.worker = %(worker_id)s AND t.fence = %(fence)s AND t.ended_at IS NULL
   AND t.stage = 'fenced';

-- start_of_attempt --
-- What it has started carries this mark. From now on somebody has to look whether that has ended.
UPDATE andon.attempts SET mark = %(mark)s, threads = threads OR %(threads)s::boolean, quiet = false
 WHERE run_id = %(run_id)s AND fence = %(fence)s;

-- started_by --
-- Attempts whose processes or threads may go on, although nobody executes the attempt any more; and
-- those of silent workers, which may still execute them: their process has to be ended. Of
-- those in hand only what spares its worker is looked at: else that is ended, with all it started.
SELECT a.run_id, a.fence, a.worker, w.supervisor, CASE WHEN (a.threads AND w.state = 'live') OR w.state = 'silent' THEN NULL ELSE a.mark END
  FROM andon.attempts a JOIN andon.workers w ON w.id = a.worker JOIN andon.runs r ON r.id = a.run_id
 WHERE a.run_id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(run_ids)s::text::jsonb))) AND NOT a.quiet
   AND (a.mark IS NOT NULL OR (w.state = 'silent' AND a.ending = 'interrupted'))
   AND w.state <> 'dead' AND ((%(hard)s::boolean AND coalesce(%(spare)s::boolean, w.embedded)) OR a.fence <> r.fence OR r.state <> 'running')
 ORDER BY a.run_id, a.fence;

-- has_started --
SELECT 1 FROM andon.attempts WHERE worker = %(worker_id)s AND mark IS NOT NULL AND NOT quiet LIMIT 1;

-- is_ended_by_order --
-- A hard order about it, or about one of its runs, ends its whole process: whoever says first that it is dead.
SELECT 1 FROM andon.targets t JOIN andon.stops s ON s.id = t.stop_id JOIN andon.workers w ON w.id = t.worker
 WHERE t.worker = %(worker_id)s AND t.stage = 'fenced' AND t.ended_at IS NULL AND t.mark IS NULL AND NOT coalesce(s.spare, w.embedded)
 LIMIT 1;

-- hold_started --
-- Nobody executes it, and something of it may go on.
UPDATE andon.runs
   SET state = 'killed', fence = fence + 1, stop = %(stop)s, undo_at = NULL, waits = NULL, wake_at = NULL,
       changed_at = andon.now()
 WHERE id = %(run_id)s AND fence = %(fence)s AND state IN ('queued', 'suspended', 'paused', 'stranded', 'killed');

-- end_worker_targets --
-- What could not be proved may be later. Polite: of hard stops, and of what it has started, its word proves nothing.
UPDATE andon.targets SET stage = %(stage)s, evidence = %(evidence)s::text || CASE WHEN stage = 'fenced' AND evidence IS NOT NULL THEN '; ' || evidence ELSE '' END, ended_at = andon.now()
 WHERE worker = %(worker_id)s
   AND (ended_at IS NULL OR (stage = 'unproved' AND %(stage)s::text = 'verified'))
   AND NOT (%(polite)s::boolean AND (mark IS NOT NULL OR EXISTS (
              SELECT 1 FROM andon.stops s WHERE s.id = stop_id AND s.kind IN ('kill', 'halt'))))
RETURNING stop_id, run_id;

-- hard_targets_of --
SELECT t.stop_id, t.target, t.supervisor, t.run_id FROM andon.targets t JOIN andon.stops s ON s.id = t.stop_id
 WHERE t.worker = %(worker_id)s AND t.ended_at IS NULL AND (t.mark IS NOT NULL OR s.kind IN ('kill', 'halt'));

-- forsaken_targets --
-- What was started on a host where nobody looks: its worker has ended, and no supervisor is there.
SELECT t.stop_id, t.target, t.run_id, w.host
  FROM andon.targets t JOIN andon.workers w ON w.id = t.worker
 WHERE (t.mark IS NOT NULL OR w.state = 'silent') AND t.ended_at IS NULL AND w.state IN ('silent', 'gone')
   AND t.fenced_at + %(seconds)s <= andon.now()
   AND NOT EXISTS (SELECT 1 FROM andon.supervisors s WHERE s.id = t.supervisor AND s.state = 'live')
 ORDER BY t.stop_id, t.target;

-- quieten_all --
UPDATE andon.attempts SET quiet = true WHERE worker = %(worker_id)s AND mark IS NOT NULL;

-- report_target --
-- What several have ended of what an attempt had started is told of all of them.
UPDATE andon.targets
   SET stage = %(stage)s,
       evidence = CASE WHEN mark IS NOT NULL AND %(stage)s::text = 'verified' AND stage = 'fenced'
                       THEN coalesce(%(evidence)s::text || '; ' || evidence, %(evidence)s::text, evidence)
                       ELSE coalesce(%(evidence)s::text, evidence) END,
       acknowledged_at = coalesce(acknowledged_at, CASE WHEN %(stage)s::text = 'acknowledged' THEN andon.now() END),
       fenced_at = coalesce(fenced_at, CASE WHEN %(stage)s::text = 'fenced' THEN andon.now() END),
       ended_at = CASE WHEN %(ends)s::boolean THEN andon.now() END
 WHERE stop_id = %(stop_id)s AND target = %(target)s
   AND (ended_at IS NULL OR (stage = 'unproved' AND %(stage)s::text = 'verified'))
RETURNING run_id, fence, mark;

-- note_stop --
-- What somebody measured, beside what others have.
UPDATE andon.stops SET body = (body::jsonb || %(body)s::text::jsonb)::text WHERE id = %(id)s;

-- count_waiting --
UPDATE andon.stops SET waiting = waiting + %(runs)s WHERE id = %(id)s;

-- close_stops --
-- Those of which every target is proved, or cannot be.
UPDATE andon.stops SET closed_at = andon.now(), escalate_at = NULL
 WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(ids)s::text::jsonb))) AND closed_at IS NULL
   AND NOT EXISTS (SELECT 1 FROM andon.targets t
                    WHERE t.stop_id = stops.id AND t.ended_at IS NULL)
RETURNING id, kind, (SELECT count(*) FROM andon.targets t
                      WHERE t.stop_id = stops.id AND t.stage = 'unproved');

-- overdue_targets --
-- Of polite orders whose time is over.
SELECT DISTINCT t.run_id FROM andon.stops s JOIN andon.targets t ON t.stop_id = s.id
 WHERE s.closed_at IS NULL AND s.escalate_at <= andon.now()
   AND t.ended_at IS NULL AND t.run_id IS NOT NULL ORDER BY t.run_id;

-- end_windows --
UPDATE andon.stops SET escalate_at = NULL
 WHERE id = ANY (ARRAY(SELECT id FROM andon.stops
                        WHERE closed_at IS NULL AND escalate_at <= (SELECT andon.now())
                        ORDER BY id FOR NO KEY UPDATE))
RETURNING id;

-- shorten_window --
-- Given again with less time: the stop comes earlier, never later.
UPDATE andon.stops SET escalate_at = andon.now() + %(within)s::float8, within = %(within)s
 WHERE id = %(id)s AND closed_at IS NULL AND escalate_at > andon.now() + %(within)s::float8;

-- lift --
UPDATE andon.stops SET lifted_at = andon.now(), lifted_by = %(by)s, lifted_why = %(why)s
 WHERE latched AND lifted_at IS NULL AND scope = %(scope)s AND name = %(name)s AND value = %(value)s
   AND kind = ANY (ARRAY(SELECT jsonb_array_elements_text(%(kinds)s::text::jsonb)))
RETURNING id;

-- newest_latch --
SELECT epoch FROM andon.stops
 WHERE latched AND lifted_at IS NULL AND scope = %(scope)s AND name = %(name)s AND value = %(value)s
   AND kind = ANY (ARRAY(SELECT jsonb_array_elements_text(%(kinds)s::text::jsonb)))
 ORDER BY epoch DESC LIMIT 1;

-- is_lifted --
-- Whether this very reauthorization was already written (its commit's outcome was unknown).
SELECT 1 FROM andon.stops
 WHERE epoch = %(epoch)s AND scope = %(scope)s AND name = %(name)s AND value = %(value)s
   AND lifted_by = %(by)s AND lifted_why = %(why)s;

-- stops --
SELECT id, epoch, kind, scope, name, value, within, asked_by, why, via, asked_at, escalate_at, closed_at,
       latched, lifted_at, lifted_by, lifted_why, waiting, body, spare
  FROM andon.stops ORDER BY epoch DESC LIMIT %(limit)s;

-- stop --
SELECT id, epoch, kind, scope, name, value, within, asked_by, why, via, asked_at, escalate_at, closed_at,
       latched, lifted_at, lifted_by, lifted_why, waiting, body, spare
  FROM andon.stops WHERE id = %(id)s;

-- latches --
SELECT id, epoch, kind, scope, name, value, within, asked_by, why, via, asked_at, escalate_at, closed_at,
       latched, lifted_at, lifted_by, lifted_why, waiting, body, spare
  FROM andon.stops WHERE latched AND lifted_at IS NULL ORDER BY epoch DESC;

-- targets --
SELECT stop_id, target, run_id, worker, supervisor, fence, stage, evidence, requested_at,
       acknowledged_at, fenced_at, ended_at, mark
  FROM andon.targets WHERE stop_id = %(stop_id)s ORDER BY target;

-- unproved --
-- What nobody could prove, of whichever order.
SELECT stop_id, target, run_id, worker, supervisor, fence, stage, evidence, requested_at,
       acknowledged_at, fenced_at, ended_at, mark
  FROM andon.targets WHERE stage = 'unproved' ORDER BY requested_at DESC, target LIMIT 1000;

-- enlist --
INSERT INTO andon.supervisors (id, host, boot, namespace, pid, start_ticks, home, state, lease_until, grades, body, started_at)
VALUES (%(id)s, %(host)s, %(boot)s, %(namespace)s, %(pid)s, %(start_ticks)s, %(home)s, 'live',
        andon.now() + %(lease_seconds)s::float8, %(grades)s, %(body)s, andon.now())
ON CONFLICT (id) DO UPDATE
   SET state = 'live', lease_until = excluded.lease_until, grades = excluded.grades,
       body = excluded.body, ended_at = NULL, evidence = NULL;

-- attend --
UPDATE andon.supervisors SET lease_until = andon.now() + %(lease_seconds)s::float8, body = %(body)s
 WHERE id = %(supervisor_id)s AND state = 'live'
RETURNING id;

-- dismiss --
UPDATE andon.supervisors SET state = %(state)s, evidence = %(evidence)s, ended_at = andon.now()
 WHERE id = %(supervisor_id)s AND state IN ('live', 'silent') AND state <> %(state)s
RETURNING id;

-- overdue_supervisors --
SELECT id FROM andon.supervisors
 WHERE state = 'live' AND lease_until < andon.now() AND id <> %(supervisor_id)s
 LIMIT 8 FOR NO KEY UPDATE SKIP LOCKED;

-- told_supervisor --
-- What is to be ended from outside, and the supervisor's own rows.
SELECT t.stop_id, s.kind, t.target, t.run_id, t.worker, t.fence, t.stage = 'fenced', s.asked_by, s.why,
       t.mark, s.spare
  FROM andon.targets t JOIN andon.stops s ON s.id = t.stop_id
 WHERE t.supervisor = %(supervisor_id)s AND t.ended_at IS NULL
   AND (t.stage = 'fenced' OR t.run_id IS NULL OR t.worker IS NULL)
 ORDER BY s.epoch, t.target;

-- next_window --
SELECT min(escalate_at) - andon.now() FROM andon.stops WHERE closed_at IS NULL;

-- supervisors --
SELECT id, host, boot, namespace, pid, start_ticks, home, state, lease_until, grades, body, started_at,
       ended_at, evidence
  FROM andon.supervisors WHERE state = 'live' OR ended_at >= %(since)s::float8 ORDER BY started_at, id;

-- stall_worker --
UPDATE andon.workers SET stalled = %(stalled)s
 WHERE id = %(worker_id)s AND state = 'live' AND (stalled IS NULL) <> (%(stalled)s::text IS NULL)
RETURNING id;

-- fence_mark --
-- It is fenced already; a later order decides what becomes of it.
UPDATE andon.runs SET stop = %(stop)s WHERE id = %(run_id)s AND state = 'killed';

-- end_named_targets --
UPDATE andon.targets SET stage = %(stage)s, evidence = %(evidence)s, ended_at = andon.now()
 WHERE target = %(target)s AND ended_at IS NULL
RETURNING stop_id;

-- graph_fence --
-- Its row is locked already: nobody can claim the run before this is committed.
SELECT 1 FROM andon.runs
 WHERE id = %(run_id)s AND fence = %(fence)s AND epoch = %(epoch)s AND state = 'running'
   AND (SELECT epoch FROM andon.meta) = %(epoch)s;

-- share_thread --
-- Nobody takes pieces away that a writer has just found.
SELECT pg_advisory_xact_lock_shared(hashtextextended(%(thread)s, 4701822938610213713));

-- lock_thread --
SELECT pg_advisory_xact_lock(hashtextextended(%(thread)s, 4701822938610213713));

-- known_pieces --
SELECT name FROM andon.graph_pieces
 WHERE thread = %(thread)s
   AND name = ANY (ARRAY(SELECT decode(jsonb_array_elements_text(%(names)s::text::jsonb), 'hex')));

-- insert_piece --
INSERT INTO andon.graph_pieces (thread, name, body) VALUES (%(thread)s, %(name)s, %(body)s)
ON CONFLICT (thread, name) DO NOTHING;

-- save_graph_checkpoint --
INSERT INTO andon.graph_checkpoints (thread, namespace, id, parent, kind, body, versions, metadata, graph_run)
VALUES (%(thread)s, %(namespace)s, %(id)s, %(parent)s, %(kind)s, %(body)s, %(versions)s, %(metadata)s, %(graph_run)s)
ON CONFLICT (thread, namespace, id) DO UPDATE
   SET parent = excluded.parent, kind = excluded.kind, body = excluded.body,
       versions = excluded.versions, metadata = excluded.metadata, graph_run = excluded.graph_run;

-- save_graph_channel --
INSERT INTO andon.graph_channels (thread, namespace, channel, version, kind, body)
VALUES (%(thread)s, %(namespace)s, %(channel)s, %(version)s, %(kind)s, %(body)s)
ON CONFLICT (thread, namespace, channel, version) DO UPDATE
   SET kind = excluded.kind, body = excluded.body;

-- save_graph_write --
-- The first one counts, and of special ones the last.
INSERT INTO andon.graph_writes (thread, namespace, checkpoint, task, idx, channel, path, kind, body)
VALUES (%(thread)s, %(namespace)s, %(checkpoint)s, %(task)s, %(idx)s, %(channel)s, %(path)s, %(kind)s, %(body)s)
ON CONFLICT (thread, namespace, checkpoint, task, idx) DO UPDATE
   SET channel = excluded.channel, path = excluded.path, kind = excluded.kind, body = excluded.body
 WHERE excluded.idx < 0;

-- graph_checkpoint --
SELECT thread, namespace, id, parent, kind, body, versions, metadata FROM andon.graph_checkpoints
 WHERE thread = %(thread)s AND namespace = %(namespace)s AND id = %(id)s;

-- graph_latest --
SELECT thread, namespace, id, parent, kind, body, versions, metadata FROM andon.graph_checkpoints
 WHERE thread = %(thread)s AND namespace = %(namespace)s ORDER BY id DESC LIMIT 1;

-- graph_checkpoints --
SELECT thread, namespace, id, metadata FROM andon.graph_checkpoints
 WHERE thread = %(thread)s AND (%(namespace)s::text IS NULL OR namespace = %(namespace)s)
   AND (%(id)s::text IS NULL OR id = %(id)s) AND (%(before)s::text IS NULL OR id < %(before)s)
 ORDER BY id DESC, namespace LIMIT %(limit)s;

-- all_graph_checkpoints --
SELECT thread, namespace, id, metadata FROM andon.graph_checkpoints
 WHERE (%(before)s::text IS NULL OR id < %(before)s)
 ORDER BY id DESC, thread, namespace LIMIT %(limit)s;

-- graph_checkpoints_of --
SELECT thread, namespace, id, metadata FROM andon.graph_checkpoints
 WHERE graph_run = ANY (ARRAY(SELECT jsonb_array_elements_text(%(runs)s::text::jsonb))) ORDER BY thread, namespace, id;

-- graph_channels --
SELECT channel, kind, body FROM andon.graph_channels
 WHERE thread = %(thread)s AND namespace = %(namespace)s
   AND (channel, version) IN (SELECT pair ->> 0, pair ->> 1 FROM jsonb_array_elements(%(pairs)s::text::jsonb) pair);

-- graph_writes --
-- In the order in which LangGraph applies the writes of a step.
SELECT task, channel, kind, body FROM andon.graph_writes
 WHERE thread = %(thread)s AND namespace = %(namespace)s AND checkpoint = %(id)s
 ORDER BY path, task, idx;

-- graph_pieces --
SELECT name, body FROM andon.graph_pieces
 WHERE thread = %(thread)s
   AND name = ANY (ARRAY(SELECT decode(jsonb_array_elements_text(%(names)s::text::jsonb), 'hex')));

-- drop_graph_checkpoint --
DELETE FROM andon.graph_checkpoints WHERE thread = %(thread)s AND namespace = %(namespace)s AND id = %(id)s;

-- drop_graph_writes --
DELETE FROM andon.graph_writes WHERE thread = %(thread)s AND namespace = %(namespace)s AND checkpoint = %(id)s;

-- graph_versions --
SELECT namespace, versions FROM andon.graph_checkpoints WHERE thread = %(thread)s;

-- graph_channel_keys --
SELECT namespace, channel, version FROM andon.graph_channels WHERE thread = %(thread)s;

-- drop_graph_channel --
DELETE FROM andon.graph_channels
 WHERE thread = %(thread)s AND namespace = %(namespace)s AND channel = %(channel)s AND version = %(version)s;

-- graph_parted --
-- The values that are in pieces.
SELECT kind, body FROM andon.graph_channels WHERE thread = %(thread)s AND kind IN ('@piece', '@list')
UNION ALL
SELECT kind, body FROM andon.graph_writes WHERE thread = %(thread)s AND kind IN ('@piece', '@list');

-- graph_blocks --
-- Each piece, with its body if that names others.
SELECT name, CASE WHEN substr(body, 1, 1) <> '\x76'::bytea THEN body END FROM andon.graph_pieces
 WHERE thread = %(thread)s;

-- drop_graph_piece --
DELETE FROM andon.graph_pieces WHERE thread = %(thread)s AND name = %(name)s;

-- drop_thread_checkpoints --
DELETE FROM andon.graph_checkpoints WHERE thread = %(thread)s;

-- drop_thread_channels --
DELETE FROM andon.graph_channels WHERE thread = %(thread)s;

-- drop_thread_writes --
DELETE FROM andon.graph_writes WHERE thread = %(thread)s;

-- drop_thread_pieces --
DELETE FROM andon.graph_pieces WHERE thread = %(thread)s;

-- copy_thread_checkpoints --
INSERT INTO andon.graph_checkpoints (thread, namespace, id, parent, kind, body, versions, metadata, graph_run)
SELECT %(target)s::text, namespace, id, parent, kind, body, versions, metadata, graph_run
  FROM andon.graph_checkpoints WHERE thread = %(source)s
ON CONFLICT (thread, namespace, id) DO NOTHING;

-- copy_thread_channels --
INSERT INTO andon.graph_channels (thread, namespace, channel, version, kind, body)
SELECT %(target)s::text, namespace, channel, version, kind, body
  FROM andon.graph_channels WHERE thread = %(source)s
ON CONFLICT (thread, namespace, channel, version) DO NOTHING;

-- copy_thread_writes --
INSERT INTO andon.graph_writes (thread, namespace, checkpoint, task, idx, channel, path, kind, body)
SELECT %(target)s::text, namespace, checkpoint, task, idx, channel, path, kind, body
  FROM andon.graph_writes WHERE thread = %(source)s
ON CONFLICT (thread, namespace, checkpoint, task, idx) DO NOTHING;

-- copy_thread_pieces --
INSERT INTO andon.graph_pieces (thread, name, body)
SELECT %(target)s::text, name, body FROM andon.graph_pieces WHERE thread = %(source)s
ON CONFLICT (thread, name) DO NOTHING;

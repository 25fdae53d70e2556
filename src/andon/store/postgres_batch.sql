-- Many messages in one statement: every check and every write. Only PostgreSQL needs them, because
-- each statement is a round trip. Rows are locked in the order of their ids before the first one is
-- changed. A statement returns the runs for which it wrote; nothing is written for the others, and
-- single statements find out why.

-- {move_head} --
-- No row: see advance_head.
UPDATE andon.runs
   SET head_seq = %(seq)s, head_hash = %(hash)s, step = coalesce(%(step)s, step),
       progress_seq = coalesce(%(progress)s::bigint, progress_seq)
   WHERE id = %(run_id)s AND fence = %(counter)s AND epoch = %(epoch)s AND state = 'running'
   AND head_seq = %(seq)s - 1 AND (SELECT epoch FROM andon.meta) = %(epoch)s
  RETURNING id;

-- {insert_one} --
INSERT INTO andon.journal (run_id, seq, kind, state, place, name, key, digest, body, blob, fence, since, at, hash)
SELECT id, %(seq)s, %(kind)s, %(state)s, %(place)s, %(name)s, %(key)s, %(digest)s, %(body)s,
       %(blob)s, %(fence)s, %(since)s::float8, %(at)s::float8, %(hash)s FROM;

-- {insert_many} --
INSERT INTO andon.journal (run_id, seq, kind, state, place, name, key, digest, body, blob, fence, since, at, hash)
SELECT e.* FROM unnest(%(run_id)s::text[], %(seq)s::bigint[], %(kind)s::text[], %(state)s::text[],
                       %(place)s::text[], %(name)s::text[], %(key)s::text[], %(digest)s::text[],
                       %(body)s::text[], %(blob)s::text[], %(fence)s::bigint[],
                       %(since)s::float8[], %(at)s::float8[], %(hash)s::text[])
  AS e (run_id, seq, kind, state, place, name, key, digest, body, blob, fence, since, at, hash);

-- {update_effect} --
ON CONFLICT (run_id, name, key) DO UPDATE
   SET place = excluded.place, kind = excluded.kind, state = excluded.state, seq = excluded.seq,
       fence = excluded.fence, quiet = excluded.quiet, undo = excluded.undo,
       undo_within = excluded.undo_within;

-- append_one --
-- The short path of one append by one run.
WITH moved AS (
  {move_head}
)
{insert_one} moved
RETURNING run_id;

-- append_effect --
-- Like append_one, with one row of the ledger: the intent or the end of one effect.
WITH moved AS (
  {move_head}
), written AS (
  {insert_one} moved
)
INSERT INTO andon.effects (run_id, name, key, place, kind, state, seq, fence, quiet, undo, undo_within)
SELECT id, %(e_name)s, %(e_key)s, %(e_place)s, %(e_kind)s, %(e_state)s, %(e_seq)s, %(e_fence)s,
       %(e_quiet)s::boolean, %(e_undo)s, %(e_undo_within)s::float8 FROM moved
{update_effect}
RETURNING run_id;

-- append_many --
-- Any number of runs, entries and effects.
WITH asked AS (
  SELECT * FROM unnest(%(run_ids)s::text[], %(counters)s::bigint[], %(epochs)s::bigint[],
                       %(befores)s::bigint[], %(lasts)s::bigint[], %(heads)s::text[],
                       %(steps)s::text[], %(progresses)s::bigint[])
    AS a (run_id, counter, epoch, before, last, head, step, progress)
), locked AS (
  SELECT r.id FROM andon.runs r JOIN asked a ON r.id = a.run_id
   WHERE r.fence = a.counter AND r.epoch = a.epoch AND r.state = 'running'
     AND r.head_seq = a.before AND a.epoch = (SELECT epoch FROM andon.meta)
   ORDER BY r.id FOR NO KEY UPDATE OF r
), moved AS (
  UPDATE andon.runs r
     SET head_seq = a.last, head_hash = a.head, step = coalesce(a.step, r.step),
         progress_seq = coalesce(a.progress, r.progress_seq)
    FROM locked JOIN asked a ON a.run_id = locked.id
   WHERE r.id = locked.id
  RETURNING r.id
), written AS (
  {insert_many} JOIN moved ON moved.id = e.run_id
), ledger AS (
  INSERT INTO andon.effects (run_id, name, key, place, kind, state, seq, fence, quiet, undo, undo_within)
  SELECT f.* FROM unnest(%(e_run_id)s::text[], %(e_name)s::text[], %(e_key)s::text[],
                         %(e_place)s::text[], %(e_kind)s::text[], %(e_state)s::text[],
                         %(e_seq)s::bigint[], %(e_fence)s::bigint[], %(e_quiet)s::boolean[],
                         %(e_undo)s::text[], %(e_undo_within)s::float8[])
    AS f (run_id, name, key, place, kind, state, seq, fence, quiet, undo, undo_within)
    JOIN moved ON moved.id = f.run_id
  {update_effect}
)
SELECT id FROM moved;

-- start_one --
-- See start_run.
WITH born AS (
  INSERT INTO andon.runs (id, agent, version, queue, state, priority, available_at, labels, parent_id,
                          root_id, head_seq, head_hash, created_at, changed_at)
  SELECT %(id)s, %(agent)s, %(version)s, %(queue)s, 'queued', %(priority)s,
         coalesce(%(start_at)s::float8, now.now + %(delay_seconds)s::float8), %(labels)s,
         %(parent_id)s, %(root_id)s, 0, %(hash)s, now.now, now.now
    FROM (SELECT andon.now()) now (now)
   WHERE %(labels)s::text::jsonb IS NOT NULL
     AND NOT EXISTS (SELECT 1 FROM andon.stops
                      WHERE latched AND lifted_at IS NULL AND kind = 'halt')
  ON CONFLICT (id) DO NOTHING
  RETURNING id
)
{insert_one} born
RETURNING run_id;

-- start_many --
-- See start_run.
WITH born AS (
  INSERT INTO andon.runs (id, agent, version, queue, state, priority, available_at, labels, parent_id,
                          root_id, head_seq, head_hash, created_at, changed_at)
  SELECT a.id, a.agent, a.version, a.queue, 'queued', a.priority,
         coalesce(a.at, now.now + a.delay_seconds), a.labels, a.parent_id, a.root_id, 0, a.hash,
         now.now, now.now
    FROM (SELECT andon.now()) now (now),
         unnest(%(run_id)s::text[], %(agents)s::text[], %(versions)s::text[], %(queues)s::text[],
                %(priorities)s::bigint[], %(ats)s::float8[], %(delays)s::float8[],
                %(labels)s::text[], %(parents)s::text[], %(roots)s::text[], %(heads)s::text[])
         AS a (id, agent, version, queue, priority, at, delay_seconds, labels, parent_id, root_id, hash)
   WHERE a.labels::jsonb IS NOT NULL
     AND NOT EXISTS (SELECT 1 FROM andon.stops
                      WHERE latched AND lifted_at IS NULL AND kind = 'halt')
   ORDER BY a.id
  ON CONFLICT (id) DO NOTHING
  RETURNING id
)
{insert_many} JOIN born ON born.id = e.run_id
RETURNING run_id;

-- end_many --
-- Ends runs without a parent, an order or a request to undo: no other run is notified. See settle_run.
WITH asked AS (
  SELECT * FROM unnest(%(run_ids)s::text[], %(counters)s::bigint[], %(epochs)s::bigint[],
                       %(befores)s::bigint[], %(states)s::text[], %(errors)s::text[],
                       %(failures)s::bigint[], %(endings)s::text[], %(lasts)s::bigint[],
                       %(heads)s::text[])
    AS a (run_id, counter, epoch, before, state, error, failed, ending, last, head)
), locked AS (
  SELECT r.id FROM andon.runs r JOIN asked a ON r.id = a.run_id
   WHERE r.fence = a.counter AND r.epoch = a.epoch AND r.state = 'running'
     AND r.head_seq = a.before AND a.epoch = (SELECT epoch FROM andon.meta)
     AND r.parent_id IS NULL AND r.stop IS NULL AND r.undoing IS NULL
   ORDER BY r.id FOR NO KEY UPDATE OF r
), moved AS (
  UPDATE andon.runs r
     SET state = a.state, returned = false, worker = NULL, available_at = now.now,
         changed_at = now.now, waits = NULL, wake_at = NULL, error = a.error,
         failures = r.failures + a.failed, fruitless = 0, undo_at = NULL, head_seq = a.last,
         head_hash = a.head
    FROM locked JOIN asked a ON a.run_id = locked.id, (SELECT andon.now()) now (now)
   WHERE r.id = locked.id
  RETURNING r.id
), written AS (
  {insert_many} JOIN moved ON moved.id = e.run_id
), ended AS (
  UPDATE andon.attempts t SET ended_at = andon.now(), ending = a.ending
    FROM moved JOIN asked a ON a.run_id = moved.id
   WHERE t.run_id = a.run_id AND t.fence = a.counter
)
SELECT id FROM moved;

-- claim_usual --
-- Claims in one statement in the usual case: no limit, no latch, no overdue worker, nothing due, no
-- order that becomes hard, and no earlier try of this claim. In any other case it claims nothing, and
-- look finds the reason. It follows lock_worker, as look does, and includes claim_runs.
-- It returns a row for each run, or one row without a run. The start entry of an untouched run is
-- included; the LATERAL makes the planner look it up by its index.
WITH next (now, wake, undo, hard) AS MATERIALIZED (
  SELECT andon.now(), (SELECT min(wake_at) FROM andon.runs WHERE state = 'suspended'),
         (SELECT min(undo_at) FROM andon.runs),
         (SELECT min(escalate_at) FROM andon.stops WHERE closed_at IS NULL)
), seen (usual, drain, wake_in, ends_in, recalled, orders) AS MATERIALIZED (
  SELECT coalesce(least(wake, undo, hard) > now, true)
         AND NOT (EXISTS (SELECT 1 FROM andon.limits)
           OR EXISTS (SELECT 1 FROM andon.stops WHERE latched AND lifted_at IS NULL)
           OR EXISTS (SELECT 1 FROM andon.workers WHERE state = 'live' AND lease_until < now)
           OR EXISTS (SELECT 1 FROM andon.runs r JOIN andon.attempts a ON a.run_id = r.id AND a.fence = r.fence
                       WHERE r.worker = %(worker_id)s AND r.state = 'running' AND a.claim = %(claim)s)),
         w.drain_asked_at IS NOT NULL,
         least(wake, undo, (SELECT min(available_at) FROM andon.runs
                             WHERE state = 'queued' AND available_at > 0
                               AND available_at > (SELECT andon.now()))) - now,
         hard - now, {recalled}, {orders}
    FROM next, andon.workers w WHERE w.id = %(worker_id)s
), claimed AS (
%(claim_runs)s
), begun AS (
  INSERT INTO andon.attempts (run_id, fence, number, worker, claim, claimed_at)
  SELECT id, fence, attempt, %(worker_id)s, %(number)s, andon.now() FROM claimed
)
SELECT seen.*, c.*, e.*
  FROM seen LEFT JOIN claimed c ON true
  LEFT JOIN LATERAL (
    SELECT seq, kind, state, place, name, key, digest, body, blob, fence, since, at, hash
      FROM andon.journal
     WHERE run_id = c.id AND seq = 0 AND c.attempt = 1 AND c.head_seq = 0 AND c.inbox = 0
    OFFSET 0) e ON true;

-- notify --
-- A hint need not reach the disk.
SELECT set_config('synchronous_commit', 'off', true), pg_notify('andon', '');

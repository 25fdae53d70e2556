-- Appends in one statement each: the fence check, the entries and the ledger. Only PostgreSQL needs
-- them: every statement there is a trip over the network.

-- append_one --
-- The short path of one append by one run. No row: see advance_head.
WITH moved AS (
  UPDATE andon.runs
     SET head_seq = %(last)s, head_hash = %(head)s, step = coalesce(%(step)s, step),
         progress_seq = coalesce(%(progress)s::bigint, progress_seq)
   WHERE id = %(run_id)s AND fence = %(counter)s AND epoch = %(epoch)s AND state = 'running'
     AND head_seq = %(before)s AND (SELECT epoch FROM andon.meta) = %(epoch)s
  RETURNING id
)
INSERT INTO andon.journal (run_id, seq, kind, state, place, name, key, digest, body, blob, fence, since, at, hash)
SELECT id, %(seq)s, %(kind)s, %(state)s, %(place)s, %(name)s, %(key)s, %(digest)s, %(body)s,
       %(blob)s, %(fence)s, %(since)s::float8, %(at)s::float8, %(hash)s FROM moved
RETURNING run_id;

-- append_many --
-- Any number of runs, entries and effects. Answers the runs whose fence held; of the others nothing
-- is written. Rows are locked in the order of their ids before the first one is changed.
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
  INSERT INTO andon.journal (run_id, seq, kind, state, place, name, key, digest, body, blob, fence, since, at, hash)
  SELECT e.* FROM unnest(%(run_id)s::text[], %(seq)s::bigint[], %(kind)s::text[], %(state)s::text[],
                         %(place)s::text[], %(name)s::text[], %(key)s::text[], %(digest)s::text[],
                         %(body)s::text[], %(blob)s::text[], %(fence)s::bigint[],
                         %(since)s::float8[], %(at)s::float8[], %(hash)s::text[])
    AS e (run_id, seq, kind, state, place, name, key, digest, body, blob, fence, since, at, hash)
    JOIN moved ON moved.id = e.run_id
), ledger AS (
  INSERT INTO andon.effects (run_id, name, key, place, kind, state, seq, fence, quiet, undo, undo_within)
  SELECT f.* FROM unnest(%(e_run_id)s::text[], %(e_name)s::text[], %(e_key)s::text[],
                         %(e_place)s::text[], %(e_kind)s::text[], %(e_state)s::text[],
                         %(e_seq)s::bigint[], %(e_fence)s::bigint[], %(e_quiet)s::boolean[],
                         %(e_undo)s::text[], %(e_undo_within)s::float8[])
    AS f (run_id, name, key, place, kind, state, seq, fence, quiet, undo, undo_within)
    JOIN moved ON moved.id = f.run_id
  ON CONFLICT (run_id, name, key) DO UPDATE
     SET place = excluded.place, kind = excluded.kind, state = excluded.state, seq = excluded.seq,
         fence = excluded.fence, quiet = excluded.quiet, undo = excluded.undo,
         undo_within = excluded.undo_within
)
SELECT id FROM moved;

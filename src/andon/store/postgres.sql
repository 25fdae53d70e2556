-- PostgreSQL, READ COMMITTED. Writers are concurrent, so a query locks a row before it decides on it;
-- a writer that had to wait for the lock sees the row as it is then. Queries lock several runs in the
-- order of their ids, so that two writers do not wait for each other.

-- give_back_run --
-- Takes a run back from a worker that is gone. Fruitless: the attempt ended without a finished step.
UPDATE andon.runs
   SET state = %(state)s, returned = true, worker = NULL, available_at = andon.now(),
       changed_at = andon.now(), interruptions = interruptions + %(interrupted)s,
       fruitless = %(fruitless)s, error = coalesce(%(error)s, error), fence = fence + 1,
       head_seq = %(head_seq)s, head_hash = %(head_hash)s,
       undo_at = andon.now() + {undo_within}
 WHERE id = %(run_id)s AND fence = %(fence)s AND state = 'running'
RETURNING parent_id;

-- wake_due --
UPDATE andon.runs
   SET state = 'queued', returned = true, available_at = wake_at, changed_at = andon.now(),
       undo_at = andon.now() + {undo_within}
 WHERE id = ANY (ARRAY(
         SELECT id FROM andon.runs
          WHERE state = 'suspended' AND wake_at <= (SELECT andon.now())
          ORDER BY wake_at LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED));

-- give_up_overdue --
-- Runs that were not resumed in time: their effects get undone.
UPDATE andon.runs
   SET state = 'queued', returned = true, available_at = andon.now(), undo_at = NULL,
       changed_at = andon.now(), undoing = %(undoing)s, fruitless = 0
 WHERE id = ANY (ARRAY(
         SELECT id FROM andon.runs
          WHERE undo_at <= (SELECT andon.now())
            AND state IN ('queued', 'stranded', 'paused', 'dead')
          ORDER BY undo_at LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED))
RETURNING id;

-- {claimable} --
-- Ready runs of this worker's versions and queues; runs to be undone of any version. Arrays instead
-- of joins, and the + 0, make the planner use the index of the ORDER BY: otherwise it would sort the
-- whole queue.
r.state = 'queued' AND r.stop IS NULL AND r.available_at + 0 <= (SELECT andon.now())
     AND (jsonb_build_array(r.agent, r.version)
          = ANY (ARRAY(SELECT jsonb_array_elements(%(agents)s::text::jsonb)))
          OR (r.undoing IS NOT NULL
              AND r.agent = ANY (ARRAY(SELECT jsonb_array_elements(%(agents)s::text::jsonb) ->> 0))))
     AND (%(only)s::text IS NULL
          OR r.root_id IN (SELECT jsonb_array_elements_text(%(only)s::text::jsonb)))
     AND (%(queues)s::text IS NULL
          OR r.queue = ANY (ARRAY(SELECT jsonb_array_elements_text(%(queues)s::text::jsonb))));

-- {one_suspect} --
-- At most one run that may have killed its workers, and none while this worker holds another one.
(r.fruitless < %(suspect_from)s OR (
       r.id = (SELECT r.id FROM andon.runs r
                WHERE r.fruitless >= %(suspect_from)s AND {claimable}
                ORDER BY r.returned DESC, r.priority DESC, r.available_at, r.id LIMIT 1)
       AND NOT EXISTS (SELECT 1 FROM andon.runs h
                        WHERE h.worker = %(worker_id)s AND h.state = 'running'
                          AND h.fruitless >= %(suspect_from)s AND h.progress_seq = h.claimed_seq)));

-- claim_runs --
-- Returned runs first, then by priority and age. Rows that another worker is claiming are skipped.
-- `chosen`: only these, which no limit holds back (see candidates).
WITH ready AS (
  SELECT r.id FROM andon.runs r
   WHERE {claimable}
     AND (%(chosen)s::text IS NULL
          OR r.id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(chosen)s::text::jsonb))))
     AND (SELECT state FROM andon.workers WHERE id = %(worker_id)s AND draining_at IS NULL) = 'live'
     AND {one_suspect}
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
-- The runs that claim_runs would claim, except those that a limit holds back. `held`: slots that are
-- full, and slots whose rate is spent, which hold back only runs that have not begun.
SELECT r.id, r.queue, r.agent, r.labels, r.attempt = 0 AND r.undoing IS NULL
  FROM andon.runs r
 WHERE {claimable}
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
   AND {one_suspect}
 ORDER BY r.returned DESC, r.priority DESC, r.available_at, r.id
 LIMIT %(limit)s;

-- lock_limits --
-- Claims under limits count the running runs first: one claim at a time, until it commits.
SELECT pg_advisory_xact_lock(4701822938610213711);

-- lock_workers --
-- Every claim locks its worker: a claim that has not seen the new limit ends before the limit holds.
SELECT id FROM andon.workers WHERE state = 'live' ORDER BY id FOR NO KEY UPDATE;

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

-- forsaken --
-- Queued runs that no live worker would claim: none has their version (for runs to be undone: any
-- version), or none serves their queue. The allowance keeps a restart from being reported.
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

-- begin_attempts --
INSERT INTO andon.attempts (run_id, fence, number, worker, claim, claimed_at)
SELECT one ->> 0, (one ->> 1)::bigint, (one ->> 2)::bigint, %(worker_id)s, %(claim)s, andon.now()
  FROM jsonb_array_elements(%(runs)s::text::jsonb) one;

-- {recalled} --
-- A part of look and of claim_usual: which of a worker's runs are to be undone.
(SELECT coalesce(jsonb_agg(id), '[]')::text FROM andon.runs
  WHERE worker = %(worker_id)s AND undoing IS NOT NULL AND state = 'running');

-- {orders} --
-- Another part of both. A parent that waits for a child that is being stopped is notified after it.
(SELECT coalesce(jsonb_agg(jsonb_build_object(
          'stop_id', t.stop_id, 'kind', s.kind, 'target', t.target, 'run_id', t.run_id,
          'worker', t.worker, 'fence', t.fence, 'hard', t.stage = 'fenced',
          'by', s.asked_by, 'why', s.why, 'mark', t.mark, 'spare', s.spare)), '[]')::text
   FROM andon.targets t JOIN andon.stops s ON s.id = t.stop_id
  WHERE t.worker = %(worker_id)s AND t.ended_at IS NULL
    AND (t.stage = 'fenced' OR NOT EXISTS (
           SELECT 1 FROM andon.runs c
            WHERE c.parent_id = t.run_id AND c.stop IS NOT NULL AND c.state = 'running')));

-- look --
-- The facts that a claim needs, in one query: whether this worker is asked to drain, whether there are
-- limits, whether anything is due and when the next thing will be, which of its runs are to be undone,
-- which scopes are held, when an order becomes hard, the orders for this worker, and whether an earlier
-- try of this claim has claimed. It follows lock_worker in a query of its own: it must see the changes
-- that the lock waited for.
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
-- Locks several rows, always in the same order, before they are locked one by one. `ending`: the runs
-- whose parents will be notified.
SELECT id, state FROM andon.runs
 WHERE id = ANY (ARRAY(
         SELECT jsonb_array_elements_text(%(run_ids)s::text::jsonb)
         UNION
         SELECT parent_id FROM andon.runs
          WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(ending)s::text::jsonb)))))
 ORDER BY id FOR NO KEY UPDATE;

-- start_run --
-- No run is created while everything is halted.
-- Labels that are not valid jsonb would break every listing by label.
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

-- advance_head --
-- The fence check of every append. No row: another worker owns the run, or an earlier try has written it.
UPDATE andon.runs
   SET head_seq = %(seq)s, head_hash = %(hash)s, step = coalesce(%(step)s, step),
       progress_seq = CASE WHEN %(progress)s::boolean THEN %(seq)s ELSE progress_seq END
 WHERE id = %(run_id)s AND fence = %(fence)s AND epoch = %(epoch)s AND state = 'running'
   AND head_seq = %(before)s AND (SELECT epoch FROM andon.meta) = %(epoch)s
RETURNING id;

-- save_checkpoint --
-- Locks the run first: otherwise a delayed stale owner could overwrite its successor's checkpoint.
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

-- move_run --
-- Moves a run that no worker owns. `fresh`: forget its failures.
UPDATE andon.runs
   SET state = %(state)s, returned = true, available_at = andon.now(),
       error = CASE WHEN %(forgets)s::boolean THEN NULL ELSE error END,
       changed_at = andon.now(), undoing = coalesce(%(undoing)s, undoing),
       version = coalesce(%(version)s, version), trial = %(trial)s, waits = NULL, wake_at = NULL,
       failures = CASE WHEN %(fresh)s::boolean THEN 0 ELSE failures END,
       fruitless = CASE WHEN %(fresh)s::boolean OR %(undoing)s::text IS NOT NULL
                        THEN 0 ELSE fruitless END,
       undo_at = CASE WHEN %(undo_later)s::boolean THEN andon.now() + {undo_within} END,
       head_seq = coalesce(%(seq)s::bigint, head_seq), head_hash = coalesce(%(hash)s::text, head_hash)
 WHERE id = %(run_id)s AND state = %(seen)s
   AND (%(before)s::bigint IS NULL OR head_seq = %(before)s::bigint) AND stop IS NULL
RETURNING id;

-- inbox --
SELECT run_id, id, kind, name, body FROM andon.inbox
 WHERE run_id IN (SELECT jsonb_array_elements_text(%(run_ids)s::text::jsonb)) AND NOT taken ORDER BY id;

-- quiet_fences --
-- Earlier claims whose workers have certainly ended, with every process that they had started.
SELECT a.fence FROM andon.attempts a JOIN andon.workers w ON w.id = a.worker
 WHERE a.run_id = %(run_id)s AND (a.quiet OR w.state = 'dead' OR (w.state = 'gone' AND a.mark IS NULL));

-- runs --
SELECT {run_columns} FROM andon.runs
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

-- stranded_versions --
-- The versions whose newest event says that no worker has them.
SELECT agent, version FROM (
  SELECT DISTINCT ON (agent, version) agent, version, kind FROM (
    SELECT body::jsonb ->> 'agent' AS agent, body::jsonb ->> 'version' AS version, kind, id
      FROM andon.events WHERE kind IN ('version.stranded', 'version.carried')) told
   ORDER BY agent, version, id DESC) last
 WHERE kind = 'version.stranded';

-- lock_orders --
-- One order at a time. A claim that has not seen the order ends before the order takes effect.
SELECT pg_advisory_xact_lock(4701822938610213712);

-- try_orders --
-- A transaction that holds locks must not wait for an order, which may be waiting for those locks.
SELECT pg_try_advisory_xact_lock(4701822938610213712);

-- share_orders --
-- A worker that registers waits for the present order, which has listed the workers before.
SELECT pg_advisory_xact_lock_shared(4701822938610213712);

-- lock_named_workers --
SELECT id FROM andon.workers
 WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(worker_ids)s::text::jsonb)))
 ORDER BY id FOR NO KEY UPDATE;

-- lock_runs_of --
-- The runs that a worker holds, those taken from it without proof, and the parents to be notified.
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
-- Waits for a supervisor that is being dismissed: otherwise its target would stay open for ever.
SELECT id FROM andon.supervisors WHERE state = 'live' ORDER BY id FOR NO KEY UPDATE;

-- lock_stops --
-- Without this lock, two writers that end the last two targets of an order would each see the other open.
SELECT id FROM andon.stops
 WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(ids)s::text::jsonb)))
 ORDER BY id FOR NO KEY UPDATE;

-- members --
-- Every unfinished run that is in the scope or has an ancestor in it, whatever the ancestor's state.
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

-- frozen --
-- Runs that no worker executes but whose processes still exist, frozen.
SELECT r.id FROM andon.workers w JOIN andon.attempts a ON a.worker = w.id
  JOIN andon.runs r ON r.id = a.run_id AND r.fence = a.fence
 WHERE w.state = 'live' AND w.supervisor IS NOT NULL AND left(a.ending, 6) = 'frozen'
   AND r.state IN ('paused', 'queued') ORDER BY r.id;

-- end_entries --
INSERT INTO andon.journal (run_id, seq, kind, state, place, name, key, digest, body, blob, fence, since, at, hash)
SELECT one ->> 0, (one ->> 1)::bigint, 'end', 'cancelled', '', '', NULL, '', %(body)s, NULL,
       (one ->> 3)::bigint, 0, 0, one ->> 2
  FROM jsonb_array_elements(%(runs)s::text::jsonb) one;

-- end_runs --
-- Runs that no worker executes and that have no effect to undo: they end here.
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

-- insert_events --
INSERT INTO andon.events (at, kind, run_id, worker, body)
SELECT andon.now(), %(kind)s, one.id, NULL, %(body)s FROM (SELECT jsonb_array_elements_text(%(run_ids)s::text::jsonb) AS id) one;

-- hold_all --
-- Waiting runs are held until a person resumes them.
UPDATE andon.runs
   SET state = 'killed', error = %(error)s::text, changed_at = andon.now(), waits = NULL, wake_at = NULL,
       undo_at = NULL
 WHERE id = ANY (ARRAY(SELECT id FROM andon.runs WHERE state IN ('queued', 'suspended')
                        ORDER BY id FOR NO KEY UPDATE))
RETURNING id;

-- end_run_targets --
-- Not the targets with a mark: the processes of those have to be looked for.
UPDATE andon.targets SET stage = %(stage)s, evidence = %(evidence)s, ended_at = andon.now()
 WHERE run_id = %(run_id)s AND fence = %(fence)s AND ended_at IS NULL AND mark IS NULL
RETURNING stop_id, run_id;

-- is_ended_by_order --
-- A hard order about the worker, or about one of its runs, ends its process, whichever writer reports it.
SELECT 1 FROM andon.targets t JOIN andon.stops s ON s.id = t.stop_id JOIN andon.workers w ON w.id = t.worker
 WHERE t.worker = %(worker_id)s AND t.stage = 'fenced' AND t.ended_at IS NULL AND t.mark IS NULL AND NOT coalesce(s.spare, w.embedded)
 LIMIT 1;

-- note_stop --
-- Merges new measurements into those that are there.
UPDATE andon.stops SET body = (body::jsonb || %(body)s::text::jsonb)::text WHERE id = %(id)s;

-- end_windows --
UPDATE andon.stops SET escalate_at = NULL
 WHERE id = ANY (ARRAY(SELECT id FROM andon.stops
                        WHERE closed_at IS NULL AND escalate_at <= (SELECT andon.now())
                        ORDER BY id FOR NO KEY UPDATE))
RETURNING id;

-- share_thread --
-- Keeps a prune from deleting pieces that a writer has just found.
SELECT pg_advisory_xact_lock_shared(hashtextextended(%(thread)s, 4701822938610213713));

-- lock_thread --
SELECT pg_advisory_xact_lock(hashtextextended(%(thread)s, 4701822938610213713));

-- known_pieces --
SELECT name FROM andon.graph_pieces
 WHERE thread = %(thread)s
   AND name = ANY (ARRAY(SELECT decode(jsonb_array_elements_text(%(names)s::text::jsonb), 'hex')));

-- graph_channels --
SELECT channel, kind, body FROM andon.graph_channels
 WHERE thread = %(thread)s AND namespace = %(namespace)s
   AND (channel, version) IN (SELECT pair ->> 0, pair ->> 1 FROM jsonb_array_elements(%(pairs)s::text::jsonb) pair);

-- graph_pieces --
SELECT name, body FROM andon.graph_pieces
 WHERE thread = %(thread)s
   AND name = ANY (ARRAY(SELECT decode(jsonb_array_elements_text(%(names)s::text::jsonb), 'hex')));

-- graph_blocks --
-- Each piece, with its body if that refers to other pieces.
SELECT name, CASE WHEN substr(body, 1, 1) <> '\x76'::bytea THEN body END FROM andon.graph_pieces
 WHERE thread = %(thread)s;

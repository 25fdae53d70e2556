-- SQLite. Writers take the one write lock with BEGIN IMMEDIATE, so no row is ever claimed twice.

-- give_back_run --
-- Takes a run back from a worker that is gone. Fruitless: the attempt ended without a finished step.
UPDATE andon_runs
   SET state = :state, returned = 1, worker = NULL, available_at = unixepoch('subsec'),
       changed_at = unixepoch('subsec'), interruptions = interruptions + :interrupted,
       fruitless = :fruitless, error = coalesce(:error, error), fence = fence + 1,
       head_seq = :head_seq, head_hash = :head_hash,
       undo_at = unixepoch('subsec') + {undo_within}
 WHERE id = :run_id AND fence = :fence AND state = 'running'
RETURNING parent_id;

-- wake_due --
UPDATE andon_runs
   SET state = 'queued', returned = 1, available_at = wake_at, changed_at = unixepoch('subsec'),
       undo_at = unixepoch('subsec') + {undo_within}
 WHERE id IN (SELECT id FROM andon_runs
               WHERE state = 'suspended' AND wake_at <= unixepoch('subsec')
               ORDER BY wake_at LIMIT :limit);

-- give_up_overdue --
-- Runs that were not resumed in time: their effects get undone.
UPDATE andon_runs
   SET state = 'queued', returned = 1, available_at = unixepoch('subsec'), undo_at = NULL,
       changed_at = unixepoch('subsec'), undoing = :undoing, fruitless = 0
 WHERE id IN (SELECT id FROM andon_runs
               WHERE undo_at <= unixepoch('subsec')
                 AND state IN ('queued', 'stranded', 'paused', 'dead')
               ORDER BY undo_at LIMIT :limit)
RETURNING id;

-- {claimable} --
-- Ready runs of this worker's versions and queues; runs to be undone of any version. The + makes
-- SQLite use the index of the ORDER BY: with the one of available_at it would sort the whole queue.
r.state = 'queued' AND r.stop IS NULL AND +r.available_at <= unixepoch('subsec')
      AND ((r.agent, r.version) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:agents))
           OR (r.undoing IS NOT NULL
               AND r.agent IN (SELECT value ->> 0 FROM json_each(:agents))))
      AND (:only IS NULL OR r.root_id IN (SELECT value FROM json_each(:only)))
      AND (:queues IS NULL OR r.queue IN (SELECT value FROM json_each(:queues)));

-- {one_suspect} --
-- At most one run that may have killed its workers, and none while this worker holds another one.
(r.fruitless < :suspect_from OR (
        r.id = (SELECT r.id FROM andon_runs r
                 WHERE r.fruitless >= :suspect_from AND {claimable}
                 ORDER BY r.returned DESC, r.priority DESC, r.available_at, r.id LIMIT 1)
        AND NOT EXISTS (SELECT 1 FROM andon_runs h
                         WHERE h.worker = :worker_id AND h.state = 'running'
                           AND h.fruitless >= :suspect_from AND h.progress_seq = h.claimed_seq)));

-- claim_runs --
-- Returned runs first, then by priority and age.
-- `chosen`: only these, which no limit holds back (see candidates).
UPDATE andon_runs
   SET state = 'running', attempt = attempt + 1, fence = fence + 1, worker = :worker_id,
       epoch = (SELECT epoch FROM andon_meta), claimed_seq = progress_seq,
       containment = (SELECT containment FROM andon_workers WHERE id = :worker_id),
       waits = NULL, wake_at = NULL, undo_at = NULL, changed_at = unixepoch('subsec')
 WHERE id IN (
   SELECT r.id FROM andon_runs r
    WHERE {claimable}
      AND (:chosen IS NULL OR r.id IN (SELECT value FROM json_each(:chosen)))
      AND {one_suspect}
    ORDER BY r.returned DESC, r.priority DESC, r.available_at, r.id
    LIMIT :limit)
   AND (SELECT state FROM andon_workers WHERE id = :worker_id AND draining_at IS NULL) = 'live'
RETURNING id, agent, version, attempt, epoch, fence, failures, interruptions, head_seq, head_hash,
          inbox, parent_id, root_id, labels, queue, undoing, trial;

-- candidates --
-- The runs that claim_runs would claim, except those that a limit holds back. `held`: slots that are
-- full, and slots whose rate is spent, which hold back only runs that have not begun.
WITH held AS MATERIALIZED (
  SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(:held)
)
SELECT r.id, r.queue, r.agent, r.labels, r.attempt = 0 AND r.undoing IS NULL
  FROM andon_runs r
 WHERE {claimable}
   AND r.id NOT IN (SELECT value FROM json_each(:taken))
   AND ('queue', r.queue, '', 0) NOT IN held
   AND ('agent', r.agent, '', 0) NOT IN held
   AND (r.attempt > 0 OR r.undoing IS NOT NULL
        OR (('queue', r.queue, '', 1) NOT IN held AND ('agent', r.agent, '', 1) NOT IN held))
   AND (r.labels = '{}' OR NOT EXISTS (
     SELECT 1 FROM json_each(r.labels) l
      WHERE ('label', l.key, l.value, 0) IN held
         OR (r.attempt = 0 AND r.undoing IS NULL
             AND ('label', l.key, l.value, 1) IN held)))
   AND {one_suspect}
 ORDER BY r.returned DESC, r.priority DESC, r.available_at, r.id
 LIMIT :limit;

-- lock_limits, lock_workers, lock_orders, try_orders, share_orders, lock_named_workers, lock_runs_of, lock_supervisors, lock_stops, share_thread, lock_thread --
-- Nothing to lock: the transaction holds the write lock already.
SELECT 1;

-- queues --
SELECT queue, sum(waiting), sum(returned), sum(later), sum(running), min(oldest) FROM (
  SELECT queue, available_at <= unixepoch('subsec') AS waiting,
         available_at <= unixepoch('subsec') AND returned AS returned,
         available_at > unixepoch('subsec') AS later, 0 AS running,
         CASE WHEN available_at <= unixepoch('subsec') THEN available_at END AS oldest
    FROM andon_runs WHERE state = 'queued'
  UNION ALL
  SELECT queue, 0, 0, 0, 1, NULL FROM andon_runs WHERE worker IS NOT NULL AND state = 'running'
) counted GROUP BY queue ORDER BY queue;

-- forsaken --
-- Queued runs that no live worker would claim: none has their version (for runs to be undone: any
-- version), or none serves their queue. The allowance keeps a restart from being reported.
WITH carried AS (
  SELECT a.value ->> 0 AS agent, a.value ->> 1 AS version, w.queues
    FROM andon_workers w, json_each(w.agents) a
   WHERE (w.state = 'live' AND w.draining_at IS NULL AND w.lease_until >= unixepoch('subsec'))
      OR coalesce(w.draining_at, w.ended_at) > unixepoch('subsec') - :allowance
), waiting AS (
  SELECT agent, version, queue, undoing IS NOT NULL AS undone, count(*) AS runs,
         min(available_at) AS oldest
    FROM andon_runs WHERE state = 'queued' AND available_at <= unixepoch('subsec') - :allowance
   GROUP BY agent, version, queue, undoing IS NOT NULL
)
SELECT r.agent, r.version, sum(r.runs), min(r.oldest) FROM waiting r
 WHERE NOT EXISTS (SELECT 1 FROM carried c
                    WHERE c.agent = r.agent AND (c.version = r.version OR r.undone)
                      AND (c.queues IS NULL OR r.queue IN (SELECT value FROM json_each(c.queues))))
 GROUP BY r.agent, r.version ORDER BY r.agent, r.version;

-- begin_attempts --
INSERT INTO andon_attempts (run_id, fence, number, worker, claim, claimed_at)
SELECT value ->> 0, value ->> 1, value ->> 2, :worker_id, :claim, unixepoch('subsec')
  FROM json_each(:runs);

-- look --
-- The facts that a claim needs, in one query: whether this worker is asked to drain, whether there are
-- limits, whether anything is due and when the next thing will be, which of its runs are to be undone,
-- which scopes are held, when an order becomes hard, the orders for this worker, and whether an earlier
-- try of this claim has claimed.
SELECT drain_asked_at IS NOT NULL,
       EXISTS (SELECT 1 FROM andon_limits),
       EXISTS (SELECT 1 FROM andon_workers WHERE state = 'live' AND lease_until < unixepoch('subsec')),
       EXISTS (SELECT 1 FROM andon_runs
                WHERE state = 'suspended' AND wake_at <= unixepoch('subsec')),
       EXISTS (SELECT 1 FROM andon_runs WHERE undo_at <= unixepoch('subsec')
                  AND state IN ('queued', 'stranded', 'paused', 'dead')),
       (SELECT min(due) - unixepoch('subsec') FROM (
          SELECT min(wake_at) AS due FROM andon_runs
           WHERE state = 'suspended' AND wake_at > unixepoch('subsec')
          UNION ALL
          SELECT min(undo_at) FROM andon_runs WHERE undo_at > unixepoch('subsec')
          UNION ALL
          SELECT min(available_at) FROM andon_runs
           WHERE state = 'queued' AND available_at > unixepoch('subsec'))),
       (SELECT json_group_array(id) FROM andon_runs
         WHERE worker = :worker_id AND undoing IS NOT NULL AND state = 'running'),
       (SELECT json_group_array(json_array(scope, name, value, kind)) FROM andon_stops
         WHERE latched AND lifted_at IS NULL),
       (SELECT min(escalate_at) - unixepoch('subsec') FROM andon_stops WHERE closed_at IS NULL),
       -- A parent that waits for a child that is being stopped is notified after the child.
       (SELECT json_group_array(json_object(
                 'stop_id', t.stop_id, 'kind', s.kind, 'target', t.target, 'run_id', t.run_id,
                 'worker', t.worker, 'fence', t.fence, 'hard', t.stage = 'fenced',
                 'by', s.asked_by, 'why', s.why, 'mark', t.mark, 'spare', s.spare))
          FROM andon_targets t JOIN andon_stops s ON s.id = t.stop_id
         WHERE t.worker = :worker_id AND t.ended_at IS NULL
           AND (t.stage = 'fenced' OR NOT EXISTS (
                  SELECT 1 FROM andon_runs c
                   WHERE c.parent_id = t.run_id AND c.stop IS NOT NULL AND c.state = 'running'))),
       EXISTS (SELECT 1 FROM andon_runs r JOIN andon_attempts a ON a.run_id = r.id AND a.fence = r.fence
                WHERE r.worker = :worker_id AND r.state = 'running' AND a.claim = :claim)
  FROM andon_workers WHERE id = :worker_id;

-- lock_runs --
-- The transaction holds the write lock already: this only reads.
SELECT id, state FROM andon_runs
 WHERE id IN (SELECT value FROM json_each(:run_ids) UNION SELECT value FROM json_each(:ending))
 ORDER BY id;

-- start_run --
-- No run is created while everything is halted.
INSERT INTO andon_runs (id, agent, version, queue, state, priority, available_at, labels, parent_id,
                        root_id, head_seq, head_hash, created_at, changed_at)
SELECT :id, :agent, :version, :queue, 'queued', :priority,
       coalesce(:at, unixepoch('subsec') + :delay_seconds), :labels, :parent_id, :root_id,
       0, :hash, unixepoch('subsec'), unixepoch('subsec')
 WHERE NOT EXISTS (SELECT 1 FROM andon_stops
                    WHERE latched AND lifted_at IS NULL AND kind = 'halt')
ON CONFLICT (id) DO NOTHING
RETURNING id;

-- advance_head --
-- The fence check of every append. No row: another worker owns the run, or an earlier try has written it.
UPDATE andon_runs
   SET head_seq = :seq, head_hash = :hash, step = coalesce(:step, step),
       progress_seq = CASE WHEN :progress THEN :seq ELSE progress_seq END
 WHERE id = :run_id AND fence = :fence AND epoch = :epoch AND state = 'running'
   AND head_seq = :before AND (SELECT epoch FROM andon_meta) = :epoch
RETURNING id;

-- save_checkpoint --
INSERT INTO andon_checkpoints (run_id, op, body, progress, at)
SELECT :run_id, :op, :body, :progress, unixepoch('subsec') FROM andon_runs
 WHERE id = :run_id AND fence = :fence AND epoch = :epoch AND state = 'running'
   AND (SELECT epoch FROM andon_meta) = :epoch
ON CONFLICT (run_id, op) DO UPDATE SET body = excluded.body, progress = excluded.progress, at = excluded.at
RETURNING op;

-- move_run --
-- Moves a run that no worker owns. `fresh`: forget its failures.
UPDATE andon_runs
   SET state = :state, returned = 1, available_at = unixepoch('subsec'),
       error = CASE WHEN :forgets THEN NULL ELSE error END,
       changed_at = unixepoch('subsec'), undoing = coalesce(:undoing, undoing),
       version = coalesce(:version, version), trial = :trial, waits = NULL, wake_at = NULL,
       failures = CASE WHEN :fresh THEN 0 ELSE failures END,
       fruitless = CASE WHEN :fresh OR :undoing IS NOT NULL THEN 0 ELSE fruitless END,
       undo_at = CASE WHEN :undo_later THEN unixepoch('subsec') + {undo_within} END,
       head_seq = coalesce(:seq, head_seq), head_hash = coalesce(:hash, head_hash)
 WHERE id = :run_id AND state = :seen AND (:before IS NULL OR head_seq = :before)
   AND stop IS NULL
RETURNING id;

-- inbox --
SELECT run_id, id, kind, name, body FROM andon_inbox
 WHERE run_id IN (SELECT value FROM json_each(:run_ids)) AND taken = 0 ORDER BY id;

-- quiet_fences --
-- Earlier claims whose workers have certainly ended, with every process that they had started.
SELECT a.fence FROM andon_attempts a JOIN andon_workers w ON w.id = a.worker
 WHERE a.run_id = :run_id AND (a.quiet OR w.state = 'dead' OR (w.state = 'gone' AND a.mark IS NULL));

-- runs --
SELECT {run_columns} FROM andon_runs
 WHERE (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
   AND (:agent IS NULL OR agent = :agent)
   AND (:parent_id IS NULL OR parent_id = :parent_id)
   AND (:prefix IS NULL OR substr(id, 1, length(:prefix)) = :prefix)
   AND (:roots IS NULL OR (parent_id IS NULL) = :roots)
   AND (:label IS NULL OR EXISTS (SELECT 1 FROM json_each(labels) l
                                   WHERE l.key = :label AND l.value = :label_value))
   AND (:before_at IS NULL OR (created_at, id) < (:before_at, :before_id))
 ORDER BY created_at DESC, id DESC LIMIT :limit;

-- stranded_versions --
-- The versions whose newest event says that no worker has them.
SELECT agent, version FROM (
  SELECT json_extract(body, '$.agent') AS agent, json_extract(body, '$.version') AS version, kind, max(id)
    FROM andon_events WHERE kind IN ('version.stranded', 'version.carried')
   GROUP BY json_extract(body, '$.agent'), json_extract(body, '$.version'))
 WHERE kind = 'version.stranded';

-- members --
-- Every unfinished run that is in the scope or has an ancestor in it, whatever the ancestor's state.
WITH RECURSIVE up (id, above) AS (
  SELECT id, id FROM andon_runs WHERE state NOT IN ('succeeded', 'failed', 'cancelled', 'dead')
  UNION
  SELECT up.id, r.parent_id FROM up JOIN andon_runs r ON r.id = up.above
   WHERE r.parent_id IS NOT NULL
)
SELECT DISTINCT up.id FROM up JOIN andon_runs a ON a.id = up.above
 WHERE :scope = 'fleet' OR (:scope = 'agent' AND a.agent = :name)
    OR (:scope = 'label' AND EXISTS (SELECT 1 FROM json_each(a.labels) l
                                      WHERE l.key = :name AND l.value = :value))
 ORDER BY up.id;

-- frozen --
-- Runs that no worker executes but whose processes still exist, frozen.
SELECT r.id FROM andon_workers w JOIN andon_attempts a ON a.worker = w.id
  JOIN andon_runs r ON r.id = a.run_id AND r.fence = a.fence
 WHERE w.state = 'live' AND w.supervisor IS NOT NULL AND substr(a.ending, 1, 6) = 'frozen'
   AND r.state IN ('paused', 'queued') ORDER BY r.id;

-- end_entries --
INSERT INTO andon_journal (run_id, seq, kind, state, place, name, key, digest, body, blob, fence, since, at, hash)
SELECT value ->> 0, value ->> 1, 'end', 'cancelled', '', '', NULL, '', :body, NULL,
       value ->> 3, 0, 0, value ->> 2
  FROM json_each(:runs);

-- end_runs --
-- Runs that no worker executes and that have no effect to undo: they end here.
UPDATE andon_runs
   SET state = 'cancelled', error = :error, returned = 1, changed_at = unixepoch('subsec'),
       waits = NULL, wake_at = NULL, fruitless = 0, undo_at = NULL,
       head_seq = g.seq, head_hash = g.hash
  FROM (SELECT value ->> 0 AS id, value ->> 1 AS seq, value ->> 2 AS hash FROM json_each(:runs)) g
 WHERE andon_runs.id = g.id;

-- close_asks_of --
UPDATE andon_asks SET answered_at = unixepoch('subsec')
 WHERE run_id IN (SELECT value ->> 0 FROM json_each(:runs)) AND answered_at IS NULL;

-- insert_events --
INSERT INTO andon_events (at, kind, run_id, worker, body)
SELECT unixepoch('subsec'), :kind, one.id, NULL, :body FROM (SELECT value AS id FROM json_each(:run_ids)) one;

-- hold_all --
-- Waiting runs are held until a person resumes them.
UPDATE andon_runs
   SET state = 'killed', error = :error, changed_at = unixepoch('subsec'), waits = NULL, wake_at = NULL,
       undo_at = NULL
 WHERE state IN ('queued', 'suspended')
RETURNING id;

-- end_run_targets --
-- Not the targets with a mark: the processes of those have to be looked for.
UPDATE andon_targets SET stage = :stage, evidence = :evidence, ended_at = unixepoch('subsec')
 WHERE run_id = :run_id AND fence = :fence AND ended_at IS NULL AND mark IS NULL
RETURNING stop_id, run_id;

-- is_ended_by_order --
-- A hard order about the worker, or about one of its runs, ends its process, whichever writer reports it.
SELECT 1 FROM andon_targets t JOIN andon_stops s ON s.id = t.stop_id JOIN andon_workers w ON w.id = t.worker
 WHERE t.worker = :worker_id AND t.stage = 'fenced' AND t.ended_at IS NULL AND t.mark IS NULL AND NOT coalesce(s.spare, w.embedded)
 LIMIT 1;

-- note_stop --
-- Merges new measurements into those that are there.
UPDATE andon_stops SET body = json_patch(body, :body) WHERE id = :id;

-- end_windows --
UPDATE andon_stops SET escalate_at = NULL
 WHERE closed_at IS NULL AND escalate_at <= unixepoch('subsec')
RETURNING id;

-- known_pieces --
-- CROSS JOIN: SQLite keeps this order, and looks up each name instead of reading all pieces.
SELECT p.name FROM json_each(:names) j
 CROSS JOIN andon_graph_pieces p ON p.thread = :thread AND p.name = unhex(j.value);

-- graph_channels --
SELECT c.channel, c.kind, c.body FROM json_each(:pairs) j
 CROSS JOIN andon_graph_channels c
    ON c.thread = :thread AND c.namespace = :namespace
   AND c.channel = j.value ->> 0 AND c.version = j.value ->> 1;

-- graph_pieces --
SELECT p.name, p.body FROM json_each(:names) j
 CROSS JOIN andon_graph_pieces p ON p.thread = :thread AND p.name = unhex(j.value);

-- graph_blocks --
-- Each piece, with its body if that refers to other pieces.
SELECT name, CASE WHEN substr(body, 1, 1) <> x'76' THEN body END FROM andon_graph_pieces
 WHERE thread = :thread;

-- SQLite. Writers take the one write lock with BEGIN IMMEDIATE, so no row is ever claimed twice.

-- now --
SELECT unixepoch('subsec');

-- epoch --
SELECT epoch FROM andon_meta;

-- renew_epoch --
-- The file is not the one we last wrote: counters may have been rolled back with it.
UPDATE andon_meta SET epoch = epoch + 1, identity = :identity WHERE identity <> :identity
RETURNING epoch;

-- register_worker --
INSERT INTO andon_workers (id, host, boot, namespace, pid, start_ticks, lock, state, lease_until, contact_since, agents, queues, concurrency, started_at, supervisor, containment, beaten_at, embedded)
VALUES (:id, :host, :boot, :namespace, :pid, :start_ticks, :lock, 'live',
        unixepoch('subsec') + :lease_seconds, unixepoch('subsec'), :agents, :queues,
        :concurrency, unixepoch('subsec'), :supervisor, :containment, unixepoch('subsec'), :embedded)
ON CONFLICT (id) DO NOTHING;

-- register_agent --
-- The first registration of a version promotes it, unless its worker was told not to. Later than every
-- other, whatever the clock says.
INSERT INTO andon_agents (name, version, queue, parameters, retries, registered_at, promoted_at, at_most,
                          rate, per_seconds, types)
VALUES (:name, :version, :queue, :parameters, :retries, unixepoch('subsec'),
        CASE WHEN :promote THEN max(unixepoch('subsec'), coalesce((
          SELECT max(promoted_at) FROM andon_agents WHERE name = :name), 0) + 0.000001) END,
        :at_most, :rate, :per_seconds, :types)
ON CONFLICT (name, version) DO UPDATE
   SET queue = excluded.queue, retries = excluded.retries, at_most = excluded.at_most,
       rate = excluded.rate, per_seconds = excluded.per_seconds, types = excluded.types
RETURNING parameters;

-- agents --
-- The promoted version of each first.
SELECT name, version, queue, parameters, retries, registered_at, promoted_at, at_most, rate,
       per_seconds, types
  FROM andon_agents
 WHERE :name IS NULL OR name = :name
 ORDER BY name, promoted_at DESC NULLS LAST, registered_at DESC, version DESC;

-- promote --
UPDATE andon_agents
   SET promoted_at = max(unixepoch('subsec'), coalesce((
         SELECT max(o.promoted_at) FROM andon_agents o WHERE o.name = andon_agents.name), 0) + 0.000001)
 WHERE version = :version AND (:name IS NULL OR name = :name)
RETURNING name;

-- workers --
SELECT id, host, boot, namespace, pid, start_ticks, lock, state, lease_until, agents, started_at,
       concurrency, drain_asked_at, draining_at, ended_at, evidence, drain, queues, supervisor,
       containment, progress, beaten_at, stalled, embedded
  FROM andon_workers WHERE state IN ('live', 'silent') ORDER BY started_at, id;

-- busy_workers --
SELECT DISTINCT worker FROM andon_runs WHERE worker IS NOT NULL;

-- any_waiting --
-- Whether a run waits for a worker now.
SELECT EXISTS (SELECT 1 FROM andon_runs
                WHERE state = 'queued' AND available_at > 0 AND available_at <= unixepoch('subsec'))
    OR EXISTS (SELECT 1 FROM andon_runs WHERE state = 'queued' AND returned);

-- fleet --
-- Also workers that have ended since; newest first.
SELECT id, host, boot, namespace, pid, start_ticks, lock, state, lease_until, agents, started_at,
       concurrency, drain_asked_at, draining_at, ended_at, evidence, drain, queues, supervisor,
       containment, progress, beaten_at, stalled, embedded
  FROM andon_workers WHERE state = 'live' OR ended_at >= :since ORDER BY started_at, id;

-- ask_drain --
UPDATE andon_workers SET drain_asked_at = coalesce(drain_asked_at, unixepoch('subsec'))
 WHERE id = :worker_id AND state = 'live'
RETURNING id;

-- begin_drain --
UPDATE andon_workers
   SET drain_asked_at = coalesce(drain_asked_at, unixepoch('subsec') - :ago),
       draining_at = coalesce(draining_at, unixepoch('subsec')), drain = coalesce(drain, :drain)
 WHERE id = :worker_id AND state = 'live'
RETURNING draining_at;

-- end_drain --
UPDATE andon_workers SET drain = :drain WHERE id = :worker_id;

-- beat --
-- A worker that has missed two beats was out of contact, and says so by a new contact_since.
UPDATE andon_workers
   SET lease_until = unixepoch('subsec') + :lease_seconds, beaten_at = unixepoch('subsec'),
       progress = coalesce(:progress, progress),
       contact_since = CASE WHEN lease_until < unixepoch('subsec') + :lease_seconds / 2.0
                            THEN unixepoch('subsec') ELSE contact_since END
 WHERE id = :worker_id AND state = 'live'
RETURNING unixepoch('subsec');

-- contact --
-- Since when a worker is in contact, unless it has missed two beats: then perhaps everybody has,
-- and leases end one after the other although all are alive.
SELECT contact_since, unixepoch('subsec') FROM andon_workers
 WHERE id = :worker_id AND state = 'live'
   AND lease_until >= unixepoch('subsec') + :lease_seconds / 2.0;

-- overdue_workers --
-- A bounded number at each claim, by every worker: there is no reaper that could die quietly.
SELECT id FROM andon_workers
 WHERE state = 'live' AND lease_until < unixepoch('subsec')
 ORDER BY lease_until LIMIT 8;

-- end_worker --
UPDATE andon_workers SET state = :state, evidence = :evidence, ended_at = unixepoch('subsec') - :ago
 WHERE id = :worker_id AND state IN ('live', 'silent') AND state <> :state
RETURNING id;

-- held_runs --
SELECT id, fence, fruitless, progress_seq > claimed_seq, head_seq, head_hash, step
  FROM andon_runs WHERE worker = :worker_id AND state = 'running' ORDER BY id;

-- held_checkpoints --
SELECT c.run_id, c.op, c.body FROM andon_runs r JOIN andon_checkpoints c ON c.run_id = r.id
 WHERE r.worker = :worker_id AND r.state = 'running';

-- known_digests --
-- Of the attempts since a step was last finished, each of which left a checkpoint: how many, and how
-- many left this one.
SELECT count(*), count(*) FILTER (WHERE checkpoint = :checkpoint) FROM andon_attempts
 WHERE run_id = :run_id AND checkpoint IS NOT NULL
   AND fence > coalesce((SELECT max(fence) FROM andon_attempts
                          WHERE run_id = :run_id AND ended_at IS NOT NULL AND checkpoint IS NULL), 0);

-- keep_digest --
UPDATE andon_attempts SET checkpoint = :checkpoint WHERE run_id = :run_id AND fence = :fence;

-- give_back_run --
-- From a worker that is gone. Fruitless: it ended this attempt without one finished step.
UPDATE andon_runs
   SET state = :state, returned = 1, worker = NULL, available_at = unixepoch('subsec'),
       changed_at = unixepoch('subsec'), interruptions = interruptions + :interrupted,
       fruitless = :fruitless, error = coalesce(:error, error), fence = fence + 1,
       head_seq = :head_seq, head_hash = :head_hash,
       undo_at = unixepoch('subsec') + (SELECT min(undo_within) FROM andon_effects e
                                        WHERE e.run_id = andon_runs.id AND e.state = 'confirmed')
 WHERE id = :run_id AND fence = :fence AND state = 'running'
RETURNING parent_id;

-- end_attempt --
UPDATE andon_attempts SET ended_at = unixepoch('subsec'), ending = :ending
 WHERE run_id = :run_id AND fence = :fence;

-- wake_due --
UPDATE andon_runs
   SET state = 'queued', returned = 1, available_at = wake_at, changed_at = unixepoch('subsec'),
       undo_at = unixepoch('subsec') + (SELECT min(undo_within) FROM andon_effects e
                                        WHERE e.run_id = andon_runs.id AND e.state = 'confirmed')
 WHERE id IN (SELECT id FROM andon_runs
               WHERE state = 'suspended' AND wake_at <= unixepoch('subsec')
               ORDER BY wake_at LIMIT :limit);

-- give_up_overdue --
-- Nobody has resumed them in time: what they did is undone.
UPDATE andon_runs
   SET state = 'queued', returned = 1, available_at = unixepoch('subsec'), undo_at = NULL,
       changed_at = unixepoch('subsec'), undoing = :undoing, fruitless = 0
 WHERE id IN (SELECT id FROM andon_runs
               WHERE undo_at <= unixepoch('subsec')
                 AND state IN ('queued', 'stranded', 'paused', 'dead')
               ORDER BY undo_at LIMIT :limit)
RETURNING id;

-- recall_run --
UPDATE andon_runs SET undoing = :undoing WHERE id = :run_id AND state = 'running' RETURNING id;

-- lock_worker --
-- The first thing of a claim; the write lock is held already.
SELECT state FROM andon_workers WHERE id = :worker_id;

-- claim_runs --
-- Ready runs of the versions this worker carries: what was begun before first, then priority, age.
-- The + keeps it on the index of that order: by available_at it would sort the whole queue.
-- Of the runs that may have killed their workers one at most, and none beside another one.
-- `chosen`: only these, which no limit holds back (see candidates).
UPDATE andon_runs
   SET state = 'running', attempt = attempt + 1, fence = fence + 1, worker = :worker_id,
       epoch = (SELECT epoch FROM andon_meta), claimed_seq = progress_seq,
       containment = (SELECT containment FROM andon_workers WHERE id = :worker_id),
       waits = NULL, wake_at = NULL, undo_at = NULL, changed_at = unixepoch('subsec')
 WHERE id IN (
   SELECT r.id FROM andon_runs r
    WHERE r.state = 'queued' AND r.stop IS NULL AND +r.available_at <= unixepoch('subsec')
      AND ((r.agent, r.version) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:agents))
           OR (r.undoing IS NOT NULL
               AND r.agent IN (SELECT value ->> 0 FROM json_each(:agents))))
      AND (:only IS NULL OR r.root_id IN (SELECT value FROM json_each(:only)))
      AND (:queues IS NULL OR r.queue IN (SELECT value FROM json_each(:queues)))
      AND (:chosen IS NULL OR r.id IN (SELECT value FROM json_each(:chosen)))
      AND (r.fruitless < :suspect_from OR (
        r.id = (SELECT s.id FROM andon_runs s
                 WHERE s.state = 'queued' AND s.fruitless >= :suspect_from
                   AND s.stop IS NULL AND +s.available_at <= unixepoch('subsec')
                   AND ((s.agent, s.version) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:agents))
                        OR (s.undoing IS NOT NULL
                            AND s.agent IN (SELECT value ->> 0 FROM json_each(:agents))))
                   AND (:only IS NULL OR s.root_id IN (SELECT value FROM json_each(:only)))
                   AND (:queues IS NULL OR s.queue IN (SELECT value FROM json_each(:queues)))
                 ORDER BY s.returned DESC, s.priority DESC, s.available_at, s.id LIMIT 1)
        AND NOT EXISTS (SELECT 1 FROM andon_runs h
                         WHERE h.worker = :worker_id AND h.state = 'running'
                           AND h.fruitless >= :suspect_from AND h.progress_seq = h.claimed_seq)))
    ORDER BY r.returned DESC, r.priority DESC, r.available_at, r.id
    LIMIT :limit)
   AND (SELECT state FROM andon_workers WHERE id = :worker_id AND draining_at IS NULL) = 'live'
RETURNING id, agent, version, attempt, epoch, fence, failures, interruptions, head_seq, head_hash,
          inbox, parent_id, root_id, labels, queue, undoing, trial;

-- candidates --
-- What claim_runs would take, without what a limit holds back. `held`: slots that are full, or
-- spent, which hold back only runs that begin.
WITH held AS MATERIALIZED (
  SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(:held)
)
SELECT r.id, r.queue, r.agent, r.labels, r.attempt = 0 AND r.undoing IS NULL
  FROM andon_runs r
 WHERE r.state = 'queued' AND +r.available_at <= unixepoch('subsec')
   AND ((r.agent, r.version) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:agents))
        OR (r.undoing IS NOT NULL
            AND r.agent IN (SELECT value ->> 0 FROM json_each(:agents))))
   AND (:only IS NULL OR r.root_id IN (SELECT value FROM json_each(:only)))
   AND (:queues IS NULL OR r.queue IN (SELECT value FROM json_each(:queues)))
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
   AND (r.fruitless < :suspect_from OR (
     r.id = (SELECT s.id FROM andon_runs s
              WHERE s.state = 'queued' AND s.fruitless >= :suspect_from
                AND s.stop IS NULL AND +s.available_at <= unixepoch('subsec')
                AND ((s.agent, s.version) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:agents))
                     OR (s.undoing IS NOT NULL
                         AND s.agent IN (SELECT value ->> 0 FROM json_each(:agents))))
                AND (:only IS NULL OR s.root_id IN (SELECT value FROM json_each(:only)))
                AND (:queues IS NULL OR s.queue IN (SELECT value FROM json_each(:queues)))
              ORDER BY s.returned DESC, s.priority DESC, s.available_at, s.id LIMIT 1)
     AND NOT EXISTS (SELECT 1 FROM andon_runs h
                      WHERE h.worker = :worker_id AND h.state = 'running'
                        AND h.fruitless >= :suspect_from AND h.progress_seq = h.claimed_seq)))
 ORDER BY r.returned DESC, r.priority DESC, r.available_at, r.id
 LIMIT :limit;

-- lock_limits --
-- Nothing to do: the write lock is held already.
SELECT 1;

-- lock_workers --
-- Nothing to do: the write lock is held already.
SELECT 1;

-- limits --
SELECT scope, name, at_most, rate, per_seconds, set_by, set_at FROM andon_limits ORDER BY scope, name;

-- set_limit --
INSERT INTO andon_limits (scope, name, at_most, rate, per_seconds, set_by, set_at)
VALUES (:scope, :name, :at_most, :rate, :per_seconds, :set_by, unixepoch('subsec'))
ON CONFLICT (scope, name) DO UPDATE
   SET at_most = excluded.at_most, rate = excluded.rate, per_seconds = excluded.per_seconds,
       set_by = excluded.set_by, set_at = excluded.set_at;

-- drop_limit --
DELETE FROM andon_limits WHERE scope = :scope AND name = :name RETURNING name;

-- running --
-- By everything that a limit may look at.
SELECT queue, agent, labels, count(*) FROM andon_runs
 WHERE worker IS NOT NULL AND state = 'running' GROUP BY queue, agent, labels;

-- buckets --
SELECT scope, name, value, unspent, filled_at FROM andon_buckets;

-- fill_bucket --
INSERT INTO andon_buckets (scope, name, value, unspent, filled_at)
VALUES (:scope, :name, :value, :unspent, :filled_at)
ON CONFLICT (scope, name, value) DO UPDATE
   SET unspent = excluded.unspent, filled_at = excluded.filled_at;

-- sweep_buckets --
-- Those that are full again say nothing: a bucket is full a period after it was last spent from.
DELETE FROM andon_buckets
 WHERE NOT EXISTS (SELECT 1 FROM andon_limits l
                    WHERE l.scope = andon_buckets.scope AND l.name = andon_buckets.name
                      AND l.rate IS NOT NULL AND filled_at + l.per_seconds > unixepoch('subsec'));

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

-- unfinished --
SELECT agent, version, state, count(*) FROM andon_runs
 WHERE state NOT IN ('succeeded', 'failed', 'cancelled', 'dead')
   AND (:agent IS NULL OR agent = :agent)
 GROUP BY agent, version, state;

-- run_count --
SELECT count(*) FROM andon_runs;

-- forsaken --
-- Queued runs that no worker would take: nobody carries their version (for those to be undone, any
-- version), or serves their queue. With an allowance, so that a restart goes unnoticed.
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

-- claimed_before --
-- What this very claim has claimed already (its commit's outcome was unknown).
SELECT r.id, r.agent, r.version, r.attempt, r.epoch, r.fence, r.failures, r.interruptions,
       r.head_seq, r.head_hash, r.inbox, r.parent_id, r.root_id, r.labels, r.queue, r.undoing, r.trial
  FROM andon_runs r JOIN andon_attempts a ON a.run_id = r.id AND a.fence = r.fence
 WHERE r.worker = :worker_id AND r.state = 'running' AND a.claim = :claim ORDER BY r.id;

-- begin_attempts --
INSERT INTO andon_attempts (run_id, fence, number, worker, claim, claimed_at)
SELECT value ->> 0, value ->> 1, value ->> 2, :worker_id, :claim, unixepoch('subsec')
  FROM json_each(:runs);

-- look --
-- What a claim has to know, in one: whether this worker shall go, whether there are limits, whether
-- anything has become due, when the next thing will, which of its runs somebody wants undone, which
-- scopes are held, when an order becomes hard, which orders there are for it, and whether this very
-- claim has claimed before.
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
       -- Who waits for a child that is being stopped hears of it after the child.
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
-- The write lock is held already: this only reads.
SELECT id, state FROM andon_runs
 WHERE id IN (SELECT value FROM json_each(:run_ids) UNION SELECT value FROM json_each(:ending))
 ORDER BY id;

-- start_run --
-- Nothing begins while everything is halted.
INSERT INTO andon_runs (id, agent, version, queue, state, priority, available_at, labels, parent_id,
                        root_id, head_seq, head_hash, created_at, changed_at)
SELECT :id, :agent, :version, :queue, 'queued', :priority,
       coalesce(:at, unixepoch('subsec') + :delay_seconds), :labels, :parent_id, :root_id,
       0, :hash, unixepoch('subsec'), unixepoch('subsec')
 WHERE NOT EXISTS (SELECT 1 FROM andon_stops
                    WHERE latched AND lifted_at IS NULL AND kind = 'halt')
ON CONFLICT (id) DO NOTHING
RETURNING id;

-- insert_entry --
INSERT INTO andon_journal (run_id, seq, kind, state, place, name, key, digest, body, blob, fence, since, at, hash)
VALUES (:run_id, :seq, :kind, :state, :place, :name, :key, :digest, :body, :blob, :fence, :since, :at, :hash);

-- advance_head --
-- The fence check of every append. No row: somebody else owns the run, or this is already written.
UPDATE andon_runs
   SET head_seq = :seq, head_hash = :hash, step = coalesce(:step, step),
       progress_seq = CASE WHEN :progress THEN :seq ELSE progress_seq END
 WHERE id = :run_id AND fence = :fence AND epoch = :epoch AND state = 'running'
   AND head_seq = :before AND (SELECT epoch FROM andon_meta) = :epoch
RETURNING id;

-- entry_hash --
SELECT hash FROM andon_journal WHERE run_id = :run_id AND seq = :seq;

-- upsert_effect --
INSERT INTO andon_effects (run_id, name, key, place, kind, state, seq, fence, quiet, undo, undo_within)
VALUES (:run_id, :name, :key, :place, :kind, :state, :seq, :fence, :quiet, :undo, :undo_within)
ON CONFLICT (run_id, name, key) DO UPDATE
   SET place = excluded.place, kind = excluded.kind, state = excluded.state, seq = excluded.seq,
       fence = excluded.fence, quiet = excluded.quiet, undo = excluded.undo,
       undo_within = excluded.undo_within;

-- insert_blob --
INSERT INTO andon_blobs (name, body) VALUES (:name, :body) ON CONFLICT (name) DO NOTHING;

-- insert_ask --
INSERT INTO andon_asks (run_id, id, about, question, value, choices, asked_at, expires_at)
VALUES (:run_id, :id, :about, :question, :value, :choices, unixepoch('subsec'), :expires_at)
ON CONFLICT (run_id, id) DO NOTHING;

-- answer_ask --
UPDATE andon_asks SET answer = :answer, answered_at = unixepoch('subsec')
 WHERE run_id = :run_id AND id = :id AND answered_at IS NULL
RETURNING id;

-- close_asks --
UPDATE andon_asks SET answered_at = unixepoch('subsec')
 WHERE run_id = :run_id AND answered_at IS NULL;

-- take_message --
UPDATE andon_inbox SET taken = 1 WHERE id = :id;

-- give_message_back --
UPDATE andon_inbox SET taken = 0 WHERE id = :id;

-- drop_checkpoint --
DELETE FROM andon_checkpoints WHERE run_id = :run_id AND op = :op;

-- save_checkpoint --
INSERT INTO andon_checkpoints (run_id, op, body, progress, at)
SELECT :run_id, :op, :body, :progress, unixepoch('subsec') FROM andon_runs
 WHERE id = :run_id AND fence = :fence AND epoch = :epoch AND state = 'running'
   AND (SELECT epoch FROM andon_meta) = :epoch
ON CONFLICT (run_id, op) DO UPDATE SET body = excluded.body, progress = excluded.progress, at = excluded.at
RETURNING op;

-- settle_run --
-- A message that arrived since the run was read keeps it from going to sleep; and the wish that it
-- be undone, from being over.
UPDATE andon_runs
   SET state = CASE WHEN :sleeps AND inbox > :seen_inbox THEN :awake_state
                    WHEN :over AND NOT :undone AND undoing IS NOT NULL THEN 'queued'
                    ELSE :state END,
       returned = CASE WHEN :keeps_place THEN returned
                       ELSE (:returned OR (:sleeps AND inbox > :seen_inbox)
                             OR (:over AND NOT :undone AND undoing IS NOT NULL)) END,
       worker = NULL,
       available_at = CASE WHEN :keeps_place THEN available_at
                           ELSE unixepoch('subsec') + :delay_seconds END,
       changed_at = unixepoch('subsec'), waits = :waits, wake_at = :wake_at, error = :error, failures = failures + :failed,
       fruitless = 0, trial = CASE WHEN :tried THEN NULL ELSE trial END, version = coalesce(:version, version),
       undoing = CASE WHEN :undone THEN NULL ELSE undoing END,
       undo_at = CASE WHEN :undo_later OR (:sleeps AND inbox > :seen_inbox)
                      THEN unixepoch('subsec') + :delay_seconds + (
                        SELECT min(undo_within) FROM andon_effects e
                         WHERE e.run_id = andon_runs.id AND e.state = 'confirmed') END,
       head_seq = coalesce(:seq, head_seq), head_hash = coalesce(:hash, head_hash)
 WHERE id = :run_id AND fence = :fence AND epoch = :epoch AND state = 'running'
   AND (SELECT epoch FROM andon_meta) = :epoch
   AND (:before IS NULL OR head_seq = :before)
RETURNING id, state, parent_id, stop;

-- is_settled --
-- Whether this very settlement was already written (its commit's outcome was unknown).
SELECT 1 FROM andon_attempts
 WHERE run_id = :run_id AND fence = :fence AND ended_at IS NOT NULL AND ending = :ending;

-- deliver --
-- The counter is changed even while the run works, so that it cannot go to sleep past the message.
UPDATE andon_runs
   SET inbox = inbox + 1,
       returned = CASE WHEN state = 'suspended' THEN 1 ELSE returned END,
       available_at = CASE WHEN state = 'suspended' THEN unixepoch('subsec') ELSE available_at END,
       changed_at = CASE WHEN state = 'suspended' THEN unixepoch('subsec') ELSE changed_at END,
       undo_at = CASE WHEN state = 'suspended' THEN
         unixepoch('subsec') + (SELECT min(undo_within) FROM andon_effects e
                                        WHERE e.run_id = andon_runs.id AND e.state = 'confirmed') ELSE undo_at END,
       state = CASE WHEN state = 'suspended' THEN 'queued' ELSE state END
 WHERE id = :run_id AND state NOT IN ('succeeded', 'failed', 'cancelled', 'dead')
RETURNING state;

-- is_delivered --
SELECT 1 FROM andon_inbox WHERE run_id = :run_id AND message_id = :message_id;

-- move_run --
-- By somebody who does not own it: nobody does. `fresh`: as if it had never failed.
UPDATE andon_runs
   SET state = :state, returned = 1, available_at = unixepoch('subsec'),
       error = CASE WHEN :forgets THEN NULL ELSE error END,
       changed_at = unixepoch('subsec'), undoing = coalesce(:undoing, undoing),
       version = coalesce(:version, version), trial = :trial, waits = NULL, wake_at = NULL,
       failures = CASE WHEN :fresh THEN 0 ELSE failures END,
       fruitless = CASE WHEN :fresh OR :undoing IS NOT NULL THEN 0 ELSE fruitless END,
       undo_at = CASE WHEN :undo_later THEN
         unixepoch('subsec') + (SELECT min(undo_within) FROM andon_effects e
                                        WHERE e.run_id = andon_runs.id AND e.state = 'confirmed') END,
       head_seq = coalesce(:seq, head_seq), head_hash = coalesce(:hash, head_hash)
 WHERE id = :run_id AND state = :seen AND (:before IS NULL OR head_seq = :before)
   AND stop IS NULL
RETURNING id;

-- insert_message --
INSERT INTO andon_inbox (run_id, kind, name, body, message_id, at)
VALUES (:run_id, :kind, :name, :body, :message_id, unixepoch('subsec'))
ON CONFLICT (run_id, message_id) DO NOTHING
RETURNING id;

-- insert_log --
INSERT INTO andon_logs (run_id, attempt, at, level, text) VALUES (:run_id, :attempt, :at, :level, :text);

-- start_entry --
SELECT seq, kind, state, place, name, key, digest, body, blob, fence, since, at, hash
  FROM andon_journal WHERE run_id = :run_id AND seq = 0;

-- start_entries --
SELECT run_id, seq, kind, state, place, name, key, digest, body, blob, fence, since, at, hash
  FROM andon_journal WHERE run_id IN (SELECT value FROM json_each(:run_ids)) AND seq = 0;

-- load_entries --
-- From the last snapshot on: replay never reads what a snapshot has made unnecessary.
SELECT seq, kind, state, place, name, key, digest, body, blob, fence, since, at, hash
  FROM andon_journal
 WHERE run_id = :run_id
   AND seq >= coalesce((SELECT max(seq) FROM andon_journal
                         WHERE run_id = :run_id AND kind = 'snapshot'), 0)
 ORDER BY seq;

-- journal --
SELECT seq, kind, state, place, name, key, digest, body, blob, fence, since, at, hash
  FROM andon_journal WHERE run_id = :run_id AND seq > :after ORDER BY seq LIMIT :limit;

-- last_entry --
SELECT seq, kind, state, place, name, key, digest, body, blob, fence, since, at, hash
  FROM andon_journal WHERE run_id = :run_id ORDER BY seq DESC LIMIT 1;

-- sent --
SELECT body FROM andon_inbox
 WHERE run_id = :run_id AND kind = 'event' AND name = :name ORDER BY id;

-- inbox --
SELECT run_id, id, kind, name, body FROM andon_inbox
 WHERE run_id IN (SELECT value FROM json_each(:run_ids)) AND taken = 0 ORDER BY id;

-- progress --
-- Of runs that are not over, the step that spoke last first.
SELECT c.run_id, c.progress FROM andon_checkpoints c JOIN andon_runs r ON r.id = c.run_id
 WHERE c.progress IS NOT NULL AND r.state NOT IN ('succeeded', 'failed', 'cancelled', 'dead')
 ORDER BY c.at DESC;

-- checkpoints --
SELECT op, body FROM andon_checkpoints WHERE run_id = :run_id;

-- quiet_fences --
-- Earlier claims whose workers certainly execute nothing any more, nor does what they have started.
SELECT a.fence FROM andon_attempts a JOIN andon_workers w ON w.id = a.worker
 WHERE a.run_id = :run_id AND (a.quiet OR w.state = 'dead' OR (w.state = 'gone' AND a.mark IS NULL));

-- run --
SELECT id, agent, version, queue, state, priority, labels, attempt, failures, interruptions, epoch,
       fence, worker, parent_id, root_id, step, error, waits, wake_at, available_at, created_at,
       changed_at, head_seq, head_hash, undoing, undo_at, trial, stop, containment
  FROM andon_runs WHERE id = :run_id;

-- runs_among --
SELECT id, agent, version, queue, state, priority, labels, attempt, failures, interruptions, epoch,
       fence, worker, parent_id, root_id, step, error, waits, wake_at, available_at, created_at,
       changed_at, head_seq, head_hash, undoing, undo_at, trial, stop, containment
  FROM andon_runs
 WHERE id IN (SELECT value FROM json_each(:run_ids))
   AND state IN (SELECT value FROM json_each(:states));

-- runs --
SELECT id, agent, version, queue, state, priority, labels, attempt, failures, interruptions, epoch,
       fence, worker, parent_id, root_id, step, error, waits, wake_at, available_at, created_at,
       changed_at, head_seq, head_hash, undoing, undo_at, trial, stop, containment
  FROM andon_runs
 WHERE (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
   AND (:agent IS NULL OR agent = :agent)
   AND (:parent_id IS NULL OR parent_id = :parent_id)
   AND (:prefix IS NULL OR substr(id, 1, length(:prefix)) = :prefix)
   AND (:roots IS NULL OR (parent_id IS NULL) = :roots)
   AND (:label IS NULL OR EXISTS (SELECT 1 FROM json_each(labels) l
                                   WHERE l.key = :label AND l.value = :label_value))
   AND (:before_at IS NULL OR (created_at, id) < (:before_at, :before_id))
 ORDER BY created_at DESC, id DESC LIMIT :limit;

-- ledger --
SELECT name, key, place, kind, state, seq, fence, quiet, undo, undo_within FROM andon_effects
 WHERE run_id = :run_id ORDER BY seq;

-- obligations --
-- What would have to be undone if its run went no further.
SELECT e.run_id, r.agent, r.version, r.state, e.name, e.key, e.state, e.seq, e.undo, e.undo_within,
       r.undo_at
  FROM andon_effects e JOIN andon_runs r ON r.id = e.run_id
 WHERE e.undo IS NOT NULL AND e.state IN ('confirmed', 'undoing') AND r.state <> 'succeeded'
   AND (:run_id IS NULL OR e.run_id = :run_id)
 ORDER BY r.undo_at IS NULL, r.undo_at, e.run_id, e.seq LIMIT :limit;

-- insert_event --
INSERT INTO andon_events (at, kind, run_id, worker, body)
VALUES (unixepoch('subsec'), :kind, :run_id, :worker, :body);

-- events --
SELECT id, at, kind, run_id, worker, body FROM andon_events
 WHERE id > :after ORDER BY id LIMIT :limit;

-- waiting --
-- What waits for a worker now, and what is put aside. Counted from the oldest on and not beyond
-- the limit: it is asked every few seconds.
SELECT state, queue, agent, version, count(*), max(0, unixepoch('subsec') - min(available_at))
  FROM (SELECT * FROM (SELECT state, queue, agent, version, available_at FROM andon_runs
                        WHERE state = 'queued' AND available_at <= unixepoch('subsec')
                        ORDER BY available_at LIMIT :limit)
         UNION ALL
        SELECT * FROM (SELECT state, queue, agent, version, available_at FROM andon_runs
                        WHERE state = 'stranded' LIMIT :limit))
 GROUP BY state, queue, agent, version ORDER BY state, queue, agent, version;

-- stranded_versions --
-- Those of which the last word is that nobody carries them.
SELECT agent, version FROM (
  SELECT json_extract(body, '$.agent') AS agent, json_extract(body, '$.version') AS version, kind, max(id)
    FROM andon_events WHERE kind IN ('version.stranded', 'version.carried')
   GROUP BY json_extract(body, '$.agent'), json_extract(body, '$.version'))
 WHERE kind = 'version.stranded';

-- last_event --
SELECT coalesce(max(id), 0) FROM andon_events;

-- last_event_before --
SELECT coalesce((SELECT id FROM andon_events WHERE at < :before ORDER BY at DESC, id DESC LIMIT 1), 0);

-- slowest_steps --
-- How long steps took, by the newest runs: the journal of them all may be large.
SELECT r.agent, j.name, count(*), count(*) FILTER (WHERE j.at - j.since > :longer_than),
       max(j.at - j.since)
  FROM (SELECT id, agent FROM andon_runs ORDER BY created_at DESC, id DESC LIMIT :runs) r
  JOIN andon_journal j ON j.run_id = r.id
 WHERE j.kind IN ('step', 'effect') AND j.state IN ('done', 'confirmed')
   AND j.since > 0 AND j.at >= :since
 GROUP BY r.agent, j.name ORDER BY 5 DESC, 1, 2 LIMIT 1000;

-- attempts --
SELECT number, fence, worker, claimed_at, ended_at, ending FROM andon_attempts
 WHERE run_id = :run_id ORDER BY fence;

-- held_by --
-- What a worker had in its hands since a time, and what became of it.
SELECT a.run_id, a.number, a.fence, a.worker, a.claimed_at, a.ended_at, a.ending, r.state,
       (SELECT min(n.claimed_at) FROM andon_attempts n
         WHERE n.run_id = a.run_id AND n.fence > a.fence),
       (SELECT j.at FROM andon_journal j
         WHERE j.run_id = a.run_id AND j.fence <= a.fence AND j.at > 0 ORDER BY j.seq DESC LIMIT 1)
  FROM andon_attempts a JOIN andon_runs r ON r.id = a.run_id
 WHERE a.worker = :worker_id AND (a.ended_at IS NULL OR a.ended_at >= :since)
 ORDER BY a.claimed_at, a.run_id;

-- asks --
SELECT run_id, id, about, question, value, choices, asked_at, expires_at, answer, answered_at
  FROM andon_asks
 WHERE (:run_id IS NULL OR run_id = :run_id) AND (NOT :open_only OR answered_at IS NULL)
 ORDER BY asked_at, id;

-- logs --
SELECT id, at, level, text FROM andon_logs WHERE run_id = :run_id AND id > :after ORDER BY id LIMIT 1000;

-- blob --
SELECT body FROM andon_blobs WHERE name = :name;

-- lock_orders --
-- Nothing to do: the write lock is held already.
SELECT 1;

-- try_orders --
-- Nothing to do: the write lock is held already.
SELECT 1;

-- share_orders --
-- Nothing to do: the write lock is held already.
SELECT 1;

-- lock_named_workers --
-- Nothing to do: the write lock is held already.
SELECT 1;

-- lock_runs_of --
-- Nothing to do: the write lock is held already.
SELECT 1;

-- lock_supervisors --
-- Nothing to do: the write lock is held already.
SELECT 1;

-- lock_stops --
-- Nothing to do: the write lock is held already.
SELECT 1;

-- stop_in_force --
-- The same order, given again, is the same order. Newest first.
SELECT id FROM andon_stops
 WHERE id = :id
    OR (kind = :kind AND scope = :scope AND name = :name AND value = :value
        AND (closed_at IS NULL OR (latched AND lifted_at IS NULL)))
 ORDER BY id = :id DESC, epoch DESC LIMIT 1;

-- insert_stop --
INSERT INTO andon_stops (id, epoch, kind, scope, name, value, within, asked_by, why, via, asked_at,
                         escalate_at, latched, spare)
VALUES (:id, (SELECT coalesce(max(epoch), 0) + 1 FROM andon_stops), :kind, :scope, :name, :value,
        :within, :by, :why, :via, unixepoch('subsec'),
        CASE WHEN :polite THEN unixepoch('subsec') + :within END, :latched, :spare)
RETURNING epoch;

-- descendants --
-- A run and everybody it has started, whatever has become of those between; parents first. Over: also those
-- that have ended, and may have left something.
WITH RECURSIVE family (id, depth) AS (
  SELECT id, 0 FROM andon_runs WHERE id = :run_id
  UNION
  SELECT r.id, f.depth + 1 FROM andon_runs r JOIN family f ON r.parent_id = f.id
)
SELECT r.id FROM andon_runs r JOIN family f ON r.id = f.id
 WHERE r.state NOT IN ('succeeded', 'failed', 'cancelled', 'dead')
    OR (:over AND EXISTS (SELECT 1 FROM andon_attempts a WHERE a.run_id = r.id AND a.mark IS NOT NULL AND NOT a.quiet))
 ORDER BY f.depth, r.id;

-- members --
-- Every unfinished run that is in the scope, or has an ancestor in it, whatever has become of that.
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

-- executing --
-- Also what another order has fenced, and may not have ended yet.
SELECT id FROM andon_runs WHERE worker IS NOT NULL AND state = 'running'
 UNION SELECT run_id FROM andon_targets WHERE run_id IS NOT NULL AND ended_at IS NULL ORDER BY 1;

-- frozen --
-- Nobody executes them, and their processes are there all the same.
SELECT r.id FROM andon_workers w JOIN andon_attempts a ON a.worker = w.id
  JOIN andon_runs r ON r.id = a.run_id AND r.fence = a.fence
 WHERE w.state = 'live' AND w.supervisor IS NOT NULL AND substr(a.ending, 1, 6) = 'frozen'
   AND r.state IN ('paused', 'queued') ORDER BY r.id;

-- stop_rows --
-- What an order has to know of its runs; they are locked until it commits.
SELECT r.id, r.state, r.worker, r.fence, r.head_seq, r.head_hash, r.parent_id, r.stop,
       EXISTS (SELECT 1 FROM andon_effects e
                WHERE e.run_id = r.id AND e.undo IS NOT NULL
                  AND e.state IN ('confirmed', 'undoing', 'started', 'in_doubt')),
       (SELECT w.supervisor FROM andon_workers w WHERE w.id = r.worker),
       (SELECT a.worker FROM andon_attempts a JOIN andon_workers w ON w.id = a.worker
         WHERE a.run_id = r.id AND a.fence = r.fence AND substr(a.ending, 1, 6) = 'frozen' AND w.state = 'live')
  FROM andon_runs r WHERE r.id IN (SELECT value FROM json_each(:run_ids)) ORDER BY r.id;

-- ask_run --
-- Its worker hears of it by its next claim.
UPDATE andon_runs SET stop = :stop WHERE id = :run_id AND state = 'running' RETURNING id;

-- fence_run --
-- Nothing that its worker writes is taken any more.
UPDATE andon_runs
   SET state = 'killed', fence = fence + 1, worker = NULL, stop = :stop, undo_at = NULL,
       changed_at = unixepoch('subsec')
 WHERE id = :run_id AND fence = :fence AND state = 'running'
RETURNING id;

-- fence_frozen --
-- Its process is not to be thawed any more, and has to be ended.
UPDATE andon_runs
   SET state = 'killed', fence = fence + 1, stop = :stop, undo_at = NULL, changed_at = unixepoch('subsec')
 WHERE id = :run_id AND fence = :fence AND state IN ('paused', 'queued');

-- stop_run --
-- Nobody executes it: it becomes what the order says.
UPDATE andon_runs
   SET state = :state, stop = NULL, worker = NULL, error = :error, returned = 1,
       undoing = coalesce(undoing, :undoing), changed_at = unixepoch('subsec'),
       waits = NULL, wake_at = NULL, fruitless = 0,
       available_at = CASE WHEN :state = 'queued' THEN unixepoch('subsec') ELSE available_at END,
       undo_at = CASE WHEN :undo_later THEN
         unixepoch('subsec') + (SELECT min(undo_within) FROM andon_effects e
                                 WHERE e.run_id = andon_runs.id AND e.state = 'confirmed') END,
       head_seq = coalesce(:seq, head_seq), head_hash = coalesce(:hash, head_hash)
 WHERE id = :run_id
RETURNING parent_id;

-- end_entries --
INSERT INTO andon_journal (run_id, seq, kind, state, place, name, key, digest, body, blob, fence, since, at, hash)
SELECT value ->> 0, value ->> 1, 'end', 'cancelled', '', '', NULL, '', :body, NULL,
       value ->> 3, 0, 0, value ->> 2
  FROM json_each(:runs);

-- end_runs --
-- Nobody executes them, and they owe nothing: they are over.
UPDATE andon_runs
   SET state = 'cancelled', error = :error, returned = 1, changed_at = unixepoch('subsec'),
       waits = NULL, wake_at = NULL, fruitless = 0, undo_at = NULL,
       head_seq = g.seq, head_hash = g.hash
  FROM (SELECT value ->> 0 AS id, value ->> 1 AS seq, value ->> 2 AS hash FROM json_each(:runs)) g
 WHERE andon_runs.id = g.id;

-- close_asks_of --
UPDATE andon_asks SET answered_at = unixepoch('subsec')
 WHERE run_id IN (SELECT value ->> 0 FROM json_each(:runs)) AND answered_at IS NULL;

-- undo_runs --
-- Nobody executes them, and they owe an undo: whoever claims them next sees to that.
UPDATE andon_runs
   SET state = 'queued', error = NULL, returned = 1, changed_at = unixepoch('subsec'),
       undoing = coalesce(undoing, :undoing), waits = NULL, wake_at = NULL, fruitless = 0,
       available_at = unixepoch('subsec'), undo_at = NULL
 WHERE id IN (SELECT value FROM json_each(:run_ids));

-- insert_events --
INSERT INTO andon_events (at, kind, run_id, worker, body)
SELECT unixepoch('subsec'), :kind, one.id, NULL, :body FROM (SELECT value AS id FROM json_each(:run_ids)) one;

-- hold_runs --
-- Those that nobody executes, many at once.
UPDATE andon_runs
   SET state = :state, error = :error, changed_at = unixepoch('subsec'), waits = NULL, wake_at = NULL,
       undo_at = CASE WHEN :undo_later THEN
         unixepoch('subsec') + (SELECT min(undo_within) FROM andon_effects e
                                 WHERE e.run_id = andon_runs.id AND e.state = 'confirmed') END
 WHERE id IN (SELECT value FROM json_each(:run_ids))
   AND state IN (SELECT value FROM json_each(:states)) AND stop IS NULL
RETURNING id;

-- hold_all --
-- What waits anywhere stays away until somebody resumes it.
UPDATE andon_runs
   SET state = 'killed', error = :error, changed_at = unixepoch('subsec'), waits = NULL, wake_at = NULL,
       undo_at = NULL
 WHERE state IN ('queued', 'suspended')
RETURNING id;

-- forget_windows --
-- What nobody had resumed when everything was stopped is not undone by itself afterwards.
UPDATE andon_runs SET undo_at = NULL
 WHERE undo_at IS NOT NULL AND state IN ('stranded', 'paused', 'dead');

-- resume_runs --
-- Later, if they were to begin later.
UPDATE andon_runs
   SET state = 'queued', returned = 1, error = NULL, changed_at = unixepoch('subsec'),
       available_at = max(available_at, unixepoch('subsec')),
       undo_at = unixepoch('subsec') + (SELECT min(undo_within) FROM andon_effects e
                                        WHERE e.run_id = andon_runs.id AND e.state = 'confirmed')
 WHERE id IN (SELECT value FROM json_each(:run_ids)) AND state IN ('paused', 'killed') AND stop IS NULL
   AND agent NOT IN (SELECT value FROM json_each(:besides))
RETURNING id;

-- clear_stop --
UPDATE andon_runs SET stop = NULL WHERE id = :run_id;

-- insert_target --
INSERT INTO andon_targets (stop_id, target, run_id, worker, supervisor, fence, stage, mark, requested_at, fenced_at)
VALUES (:stop_id, :target, :run_id, :worker, :supervisor, :fence, :stage, :mark, unixepoch('subsec'),
        CASE WHEN :stage = 'fenced' THEN unixepoch('subsec') END)
ON CONFLICT (stop_id, target) DO NOTHING;

-- join_targets --
-- An order about a run that another order has fenced before waits for all that this one waits for.
INSERT INTO andon_targets (stop_id, target, run_id, worker, supervisor, fence, stage, mark, requested_at, fenced_at)
SELECT DISTINCT :stop_id, target, run_id, worker, supervisor, fence, stage, mark, unixepoch('subsec'), unixepoch('subsec')
  FROM andon_targets WHERE run_id = :run_id AND ended_at IS NULL AND stage = 'fenced'
ON CONFLICT (stop_id, target) DO NOTHING;

-- is_awaited --
-- Whether an end of this run is still to be proved.
SELECT 1 FROM andon_targets WHERE run_id = :run_id AND ended_at IS NULL LIMIT 1;

-- fence_targets --
UPDATE andon_targets SET stage = 'fenced', fenced_at = unixepoch('subsec')
 WHERE run_id = :run_id AND ended_at IS NULL AND stage <> 'fenced';

-- hear --
UPDATE andon_targets SET stage = 'acknowledged', acknowledged_at = unixepoch('subsec')
 WHERE worker = :worker_id AND ended_at IS NULL AND stage = 'requested'
   AND run_id IN (SELECT value FROM json_each(:run_ids));

-- quieten --
UPDATE andon_attempts SET quiet = 1 WHERE run_id = :run_id AND fence = :fence;

-- end_run_targets --
-- What it had started has to be looked for.
UPDATE andon_targets SET stage = :stage, evidence = :evidence, ended_at = unixepoch('subsec')
 WHERE run_id = :run_id AND fence = :fence AND ended_at IS NULL AND mark IS NULL
RETURNING stop_id, run_id;

-- word_targets --
-- What a worker's word is about, and whether the worker's process is to be ended.
SELECT t.stop_id, t.target, s.kind, s.spare, w.embedded
  FROM andon_targets t JOIN andon_stops s ON s.id = t.stop_id JOIN andon_workers w ON w.id = t.worker
 WHERE t.run_id = :run_id AND t.worker = :worker_id AND t.fence = :fence AND t.ended_at IS NULL
   AND t.stage = 'fenced';

-- start_of_attempt --
-- What it has started carries this mark. From now on somebody has to look whether that has ended.
UPDATE andon_attempts SET mark = :mark, threads = max(threads, :threads), quiet = 0
 WHERE run_id = :run_id AND fence = :fence;

-- started_by --
-- Attempts whose processes or threads may go on, although nobody executes the attempt any more; and
-- those of silent workers, which may still execute them: their process has to be ended. Of
-- those in hand only what spares its worker is looked at: else that is ended, with all it started.
SELECT a.run_id, a.fence, a.worker, w.supervisor, CASE WHEN (a.threads AND w.state = 'live') OR w.state = 'silent' THEN NULL ELSE a.mark END
  FROM andon_attempts a JOIN andon_workers w ON w.id = a.worker JOIN andon_runs r ON r.id = a.run_id
 WHERE a.run_id IN (SELECT value FROM json_each(:run_ids)) AND NOT a.quiet
   AND (a.mark IS NOT NULL OR (w.state = 'silent' AND a.ending = 'interrupted'))
   AND w.state <> 'dead' AND ((:hard AND coalesce(:spare, w.embedded)) OR a.fence <> r.fence OR r.state <> 'running')
 ORDER BY a.run_id, a.fence;

-- has_started --
SELECT 1 FROM andon_attempts WHERE worker = :worker_id AND mark IS NOT NULL AND NOT quiet LIMIT 1;

-- is_ended_by_order --
-- A hard order about it, or about one of its runs, ends its whole process: whoever says first that it is dead.
SELECT 1 FROM andon_targets t JOIN andon_stops s ON s.id = t.stop_id JOIN andon_workers w ON w.id = t.worker
 WHERE t.worker = :worker_id AND t.stage = 'fenced' AND t.ended_at IS NULL AND t.mark IS NULL AND NOT coalesce(s.spare, w.embedded)
 LIMIT 1;

-- hold_started --
-- Nobody executes it, and something of it may go on.
UPDATE andon_runs
   SET state = 'killed', fence = fence + 1, stop = :stop, undo_at = NULL, waits = NULL, wake_at = NULL,
       changed_at = unixepoch('subsec')
 WHERE id = :run_id AND fence = :fence AND state IN ('queued', 'suspended', 'paused', 'stranded', 'killed');

-- end_worker_targets --
-- What could not be proved may be later. Polite: of hard stops, and of what it has started, its word proves nothing.
UPDATE andon_targets SET stage = :stage, evidence = :evidence || CASE WHEN stage = 'fenced' AND evidence IS NOT NULL THEN '; ' || evidence ELSE '' END, ended_at = unixepoch('subsec')
 WHERE worker = :worker_id
   AND (ended_at IS NULL OR (stage = 'unproved' AND :stage = 'verified'))
   AND NOT (:polite AND (mark IS NOT NULL OR EXISTS (
              SELECT 1 FROM andon_stops s WHERE s.id = stop_id AND s.kind IN ('kill', 'halt'))))
RETURNING stop_id, run_id;

-- hard_targets_of --
SELECT t.stop_id, t.target, t.supervisor, t.run_id FROM andon_targets t JOIN andon_stops s ON s.id = t.stop_id
 WHERE t.worker = :worker_id AND t.ended_at IS NULL AND (t.mark IS NOT NULL OR s.kind IN ('kill', 'halt'));

-- forsaken_targets --
-- What was started on a host where nobody looks: its worker has ended, and no supervisor is there.
SELECT t.stop_id, t.target, t.run_id, w.host
  FROM andon_targets t JOIN andon_workers w ON w.id = t.worker
 WHERE (t.mark IS NOT NULL OR w.state = 'silent') AND t.ended_at IS NULL AND w.state IN ('silent', 'gone')
   AND t.fenced_at + :seconds <= unixepoch('subsec')
   AND NOT EXISTS (SELECT 1 FROM andon_supervisors s WHERE s.id = t.supervisor AND s.state = 'live')
 ORDER BY t.stop_id, t.target;

-- quieten_all --
UPDATE andon_attempts SET quiet = 1 WHERE worker = :worker_id AND mark IS NOT NULL;

-- report_target --
-- What several have ended of what an attempt had started is told of all of them.
UPDATE andon_targets
   SET stage = :stage,
       evidence = CASE WHEN mark IS NOT NULL AND :stage = 'verified' AND stage = 'fenced'
                       THEN coalesce(:evidence || '; ' || evidence, :evidence, evidence)
                       ELSE coalesce(:evidence, evidence) END,
       acknowledged_at = coalesce(acknowledged_at, CASE WHEN :stage = 'acknowledged' THEN unixepoch('subsec') END),
       fenced_at = coalesce(fenced_at, CASE WHEN :stage = 'fenced' THEN unixepoch('subsec') END),
       ended_at = CASE WHEN :ends THEN unixepoch('subsec') END
 WHERE stop_id = :stop_id AND target = :target
   AND (ended_at IS NULL OR (stage = 'unproved' AND :stage = 'verified'))
RETURNING run_id, fence, mark;

-- note_stop --
-- What somebody measured, beside what others have.
UPDATE andon_stops SET body = json_patch(body, :body) WHERE id = :id;

-- count_waiting --
UPDATE andon_stops SET waiting = waiting + :runs WHERE id = :id;

-- close_stops --
-- Those of which every target is proved, or cannot be.
UPDATE andon_stops SET closed_at = unixepoch('subsec'), escalate_at = NULL
 WHERE id IN (SELECT value FROM json_each(:ids)) AND closed_at IS NULL
   AND NOT EXISTS (SELECT 1 FROM andon_targets t
                    WHERE t.stop_id = andon_stops.id AND t.ended_at IS NULL)
RETURNING id, kind, (SELECT count(*) FROM andon_targets t
                      WHERE t.stop_id = andon_stops.id AND t.stage = 'unproved');

-- overdue_targets --
-- Of polite orders whose time is over.
SELECT DISTINCT t.run_id FROM andon_stops s JOIN andon_targets t ON t.stop_id = s.id
 WHERE s.closed_at IS NULL AND s.escalate_at <= unixepoch('subsec')
   AND t.ended_at IS NULL AND t.run_id IS NOT NULL ORDER BY t.run_id;

-- end_windows --
UPDATE andon_stops SET escalate_at = NULL
 WHERE closed_at IS NULL AND escalate_at <= unixepoch('subsec')
RETURNING id;

-- shorten_window --
-- Given again with less time: the stop comes earlier, never later.
UPDATE andon_stops SET escalate_at = unixepoch('subsec') + :within, within = :within
 WHERE id = :id AND closed_at IS NULL AND escalate_at > unixepoch('subsec') + :within;

-- lift --
UPDATE andon_stops SET lifted_at = unixepoch('subsec'), lifted_by = :by, lifted_why = :why
 WHERE latched AND lifted_at IS NULL AND scope = :scope AND name = :name AND value = :value
   AND kind IN (SELECT value FROM json_each(:kinds))
RETURNING id;

-- newest_latch --
SELECT epoch FROM andon_stops
 WHERE latched AND lifted_at IS NULL AND scope = :scope AND name = :name AND value = :value
   AND kind IN (SELECT value FROM json_each(:kinds))
 ORDER BY epoch DESC LIMIT 1;

-- is_lifted --
-- Whether this very reauthorization was already written (its commit's outcome was unknown).
SELECT 1 FROM andon_stops
 WHERE epoch = :epoch AND scope = :scope AND name = :name AND value = :value
   AND lifted_by = :by AND lifted_why = :why;

-- stops --
SELECT id, epoch, kind, scope, name, value, within, asked_by, why, via, asked_at, escalate_at, closed_at,
       latched, lifted_at, lifted_by, lifted_why, waiting, body, spare
  FROM andon_stops ORDER BY epoch DESC LIMIT :limit;

-- stop --
SELECT id, epoch, kind, scope, name, value, within, asked_by, why, via, asked_at, escalate_at, closed_at,
       latched, lifted_at, lifted_by, lifted_why, waiting, body, spare
  FROM andon_stops WHERE id = :id;

-- latches --
SELECT id, epoch, kind, scope, name, value, within, asked_by, why, via, asked_at, escalate_at, closed_at,
       latched, lifted_at, lifted_by, lifted_why, waiting, body, spare
  FROM andon_stops WHERE latched AND lifted_at IS NULL ORDER BY epoch DESC;

-- targets --
SELECT stop_id, target, run_id, worker, supervisor, fence, stage, evidence, requested_at,
       acknowledged_at, fenced_at, ended_at, mark
  FROM andon_targets WHERE stop_id = :stop_id ORDER BY target;

-- unproved --
-- What nobody could prove, of whichever order.
SELECT stop_id, target, run_id, worker, supervisor, fence, stage, evidence, requested_at,
       acknowledged_at, fenced_at, ended_at, mark
  FROM andon_targets WHERE stage = 'unproved' ORDER BY requested_at DESC, target LIMIT 1000;

-- enlist --
INSERT INTO andon_supervisors (id, host, boot, namespace, pid, start_ticks, home, state, lease_until, grades, body, started_at)
VALUES (:id, :host, :boot, :namespace, :pid, :start_ticks, :home, 'live',
        unixepoch('subsec') + :lease_seconds, :grades, :body, unixepoch('subsec'))
ON CONFLICT (id) DO UPDATE
   SET state = 'live', lease_until = excluded.lease_until, grades = excluded.grades,
       body = excluded.body, ended_at = NULL, evidence = NULL;

-- attend --
UPDATE andon_supervisors SET lease_until = unixepoch('subsec') + :lease_seconds, body = :body
 WHERE id = :supervisor_id AND state = 'live'
RETURNING id;

-- dismiss --
UPDATE andon_supervisors SET state = :state, evidence = :evidence, ended_at = unixepoch('subsec')
 WHERE id = :supervisor_id AND state IN ('live', 'silent') AND state <> :state
RETURNING id;

-- overdue_supervisors --
SELECT id FROM andon_supervisors
 WHERE state = 'live' AND lease_until < unixepoch('subsec') AND id <> :supervisor_id LIMIT 8;

-- told_supervisor --
-- What is to be ended from outside, and the supervisor's own rows.
SELECT t.stop_id, s.kind, t.target, t.run_id, t.worker, t.fence, t.stage = 'fenced', s.asked_by, s.why,
       t.mark, s.spare
  FROM andon_targets t JOIN andon_stops s ON s.id = t.stop_id
 WHERE t.supervisor = :supervisor_id AND t.ended_at IS NULL
   AND (t.stage = 'fenced' OR t.run_id IS NULL OR t.worker IS NULL)
 ORDER BY s.epoch, t.target;

-- next_window --
SELECT min(escalate_at) - unixepoch('subsec') FROM andon_stops WHERE closed_at IS NULL;

-- supervisors --
SELECT id, host, boot, namespace, pid, start_ticks, home, state, lease_until, grades, body, started_at,
       ended_at, evidence
  FROM andon_supervisors WHERE state = 'live' OR ended_at >= :since ORDER BY started_at, id;

-- stall_worker --
UPDATE andon_workers SET stalled = :stalled
 WHERE id = :worker_id AND state = 'live' AND (stalled IS NULL) <> (:stalled IS NULL)
RETURNING id;

-- fence_mark --
-- It is fenced already; a later order decides what becomes of it.
UPDATE andon_runs SET stop = :stop WHERE id = :run_id AND state = 'killed';

-- end_named_targets --
UPDATE andon_targets SET stage = :stage, evidence = :evidence, ended_at = unixepoch('subsec')
 WHERE target = :target AND ended_at IS NULL
RETURNING stop_id;

-- graph_fence --
-- The write lock is held already: nobody can claim the run before this is committed.
SELECT 1 FROM andon_runs
 WHERE id = :run_id AND fence = :fence AND epoch = :epoch AND state = 'running'
   AND (SELECT epoch FROM andon_meta) = :epoch;

-- share_thread --
-- Nothing to do: the write lock is held already.
SELECT 1;

-- lock_thread --
-- Nothing to do: the write lock is held already.
SELECT 1;

-- known_pieces --
-- CROSS: SQLite keeps the order, and looks each name up instead of all pieces of the thread.
SELECT p.name FROM json_each(:names) j
 CROSS JOIN andon_graph_pieces p ON p.thread = :thread AND p.name = unhex(j.value);

-- insert_piece --
INSERT INTO andon_graph_pieces (thread, name, body) VALUES (:thread, :name, :body)
ON CONFLICT (thread, name) DO NOTHING;

-- save_graph_checkpoint --
INSERT INTO andon_graph_checkpoints (thread, namespace, id, parent, kind, body, versions, metadata, graph_run)
VALUES (:thread, :namespace, :id, :parent, :kind, :body, :versions, :metadata, :graph_run)
ON CONFLICT (thread, namespace, id) DO UPDATE
   SET parent = excluded.parent, kind = excluded.kind, body = excluded.body,
       versions = excluded.versions, metadata = excluded.metadata, graph_run = excluded.graph_run;

-- save_graph_channel --
INSERT INTO andon_graph_channels (thread, namespace, channel, version, kind, body)
VALUES (:thread, :namespace, :channel, :version, :kind, :body)
ON CONFLICT (thread, namespace, channel, version) DO UPDATE
   SET kind = excluded.kind, body = excluded.body;

-- save_graph_write --
-- The first one counts, and of special ones the last.
INSERT INTO andon_graph_writes (thread, namespace, checkpoint, task, idx, channel, path, kind, body)
VALUES (:thread, :namespace, :checkpoint, :task, :idx, :channel, :path, :kind, :body)
ON CONFLICT (thread, namespace, checkpoint, task, idx) DO UPDATE
   SET channel = excluded.channel, path = excluded.path, kind = excluded.kind, body = excluded.body
 WHERE excluded.idx < 0;

-- graph_checkpoint --
SELECT thread, namespace, id, parent, kind, body, versions, metadata FROM andon_graph_checkpoints
 WHERE thread = :thread AND namespace = :namespace AND id = :id;

-- graph_latest --
SELECT thread, namespace, id, parent, kind, body, versions, metadata FROM andon_graph_checkpoints
 WHERE thread = :thread AND namespace = :namespace ORDER BY id DESC LIMIT 1;

-- graph_checkpoints --
SELECT thread, namespace, id, metadata FROM andon_graph_checkpoints
 WHERE thread = :thread AND (:namespace IS NULL OR namespace = :namespace)
   AND (:id IS NULL OR id = :id) AND (:before IS NULL OR id < :before)
 ORDER BY id DESC, namespace LIMIT :limit;

-- all_graph_checkpoints --
SELECT thread, namespace, id, metadata FROM andon_graph_checkpoints
 WHERE (:before IS NULL OR id < :before)
 ORDER BY id DESC, thread, namespace LIMIT :limit;

-- graph_checkpoints_of --
SELECT thread, namespace, id, metadata FROM andon_graph_checkpoints
 WHERE graph_run IN (SELECT value FROM json_each(:runs)) ORDER BY thread, namespace, id;

-- graph_channels --
SELECT c.channel, c.kind, c.body FROM json_each(:pairs) j
 CROSS JOIN andon_graph_channels c
    ON c.thread = :thread AND c.namespace = :namespace
   AND c.channel = j.value ->> 0 AND c.version = j.value ->> 1;

-- graph_writes --
-- In the order in which LangGraph applies the writes of a step.
SELECT task, channel, kind, body FROM andon_graph_writes
 WHERE thread = :thread AND namespace = :namespace AND checkpoint = :id
 ORDER BY path, task, idx;

-- graph_pieces --
SELECT p.name, p.body FROM json_each(:names) j
 CROSS JOIN andon_graph_pieces p ON p.thread = :thread AND p.name = unhex(j.value);

-- drop_graph_checkpoint --
DELETE FROM andon_graph_checkpoints WHERE thread = :thread AND namespace = :namespace AND id = :id;

-- drop_graph_writes --
DELETE FROM andon_graph_writes WHERE thread = :thread AND namespace = :namespace AND checkpoint = :id;

-- graph_versions --
SELECT namespace, versions FROM andon_graph_checkpoints WHERE thread = :thread;

-- graph_channel_keys --
SELECT namespace, channel, version FROM andon_graph_channels WHERE thread = :thread;

-- drop_graph_channel --
DELETE FROM andon_graph_channels
 WHERE thread = :thread AND namespace = :namespace AND channel = :channel AND version = :version;

-- graph_parted --
-- The values that are in pieces.
SELECT kind, body FROM andon_graph_channels WHERE thread = :thread AND kind IN ('@piece', '@list')
UNION ALL
SELECT kind, body FROM andon_graph_writes WHERE thread = :thread AND kind IN ('@piece', '@list');

-- graph_blocks --
-- Each piece, with its body if that names others.
SELECT name, CASE WHEN substr(body, 1, 1) <> x'76' THEN body END FROM andon_graph_pieces
 WHERE thread = :thread;

-- drop_graph_piece --
DELETE FROM andon_graph_pieces WHERE thread = :thread AND name = :name;

-- drop_thread_checkpoints --
DELETE FROM andon_graph_checkpoints WHERE thread = :thread;

-- drop_thread_channels --
DELETE FROM andon_graph_channels WHERE thread = :thread;

-- drop_thread_writes --
DELETE FROM andon_graph_writes WHERE thread = :thread;

-- drop_thread_pieces --
DELETE FROM andon_graph_pieces WHERE thread = :thread;

-- copy_thread_checkpoints --
INSERT INTO andon_graph_checkpoints (thread, namespace, id, parent, kind, body, versions, metadata, graph_run)
SELECT :target, namespace, id, parent, kind, body, versions, metadata, graph_run
  FROM andon_graph_checkpoints WHERE thread = :source
ON CONFLICT (thread, namespace, id) DO NOTHING;

-- copy_thread_channels --
INSERT INTO andon_graph_channels (thread, namespace, channel, version, kind, body)
SELECT :target, namespace, channel, version, kind, body
  FROM andon_graph_channels WHERE thread = :source
ON CONFLICT (thread, namespace, channel, version) DO NOTHING;

-- copy_thread_writes --
INSERT INTO andon_graph_writes (thread, namespace, checkpoint, task, idx, channel, path, kind, body)
SELECT :target, namespace, checkpoint, task, idx, channel, path, kind, body
  FROM andon_graph_writes WHERE thread = :source
ON CONFLICT (thread, namespace, checkpoint, task, idx) DO NOTHING;

-- copy_thread_pieces --
INSERT INTO andon_graph_pieces (thread, name, body)
SELECT :target, name, body FROM andon_graph_pieces WHERE thread = :source
ON CONFLICT (thread, name) DO NOTHING;

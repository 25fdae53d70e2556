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
INSERT INTO andon_workers (id, host, boot, namespace, pid, start_ticks, lock, state, lease_until, contact_since, agents, queues, concurrency, started_at)
VALUES (:id, :host, :boot, :namespace, :pid, :start_ticks, :lock, 'live',
        unixepoch('subsec') + :lease_seconds, unixepoch('subsec'), :agents, :queues,
        :concurrency, unixepoch('subsec'))
ON CONFLICT (id) DO NOTHING;

-- register_agent --
-- The first registration of a version promotes it, unless its worker was told not to.
INSERT INTO andon_agents (name, version, queue, parameters, retries, registered_at, promoted_at, at_most,
                          rate, per_seconds)
VALUES (:name, :version, :queue, :parameters, :retries, unixepoch('subsec'),
        CASE WHEN :promote THEN unixepoch('subsec') END, :at_most, :rate, :per_seconds)
ON CONFLICT (name, version) DO UPDATE
   SET queue = excluded.queue, retries = excluded.retries, at_most = excluded.at_most,
       rate = excluded.rate, per_seconds = excluded.per_seconds
RETURNING parameters;

-- agents --
-- The promoted version of each first.
SELECT name, version, queue, parameters, retries, registered_at, promoted_at, at_most, rate,
       per_seconds
  FROM andon_agents
 WHERE :name IS NULL OR name = :name
 ORDER BY name, promoted_at DESC NULLS LAST, registered_at DESC, version DESC;

-- promote --
UPDATE andon_agents SET promoted_at = unixepoch('subsec')
 WHERE version = :version AND (:name IS NULL OR name = :name)
RETURNING name;

-- workers --
SELECT id, host, boot, namespace, pid, start_ticks, lock, state, lease_until, agents, started_at,
       concurrency, drain_asked_at, draining_at, ended_at, evidence, drain, queues
  FROM andon_workers WHERE state IN ('live', 'silent') ORDER BY started_at, id;

-- fleet --
-- Also workers that have ended since; newest first.
SELECT id, host, boot, namespace, pid, start_ticks, lock, state, lease_until, agents, started_at,
       concurrency, drain_asked_at, draining_at, ended_at, evidence, drain, queues
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
   SET lease_until = unixepoch('subsec') + :lease_seconds,
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
UPDATE andon_workers SET state = :state, evidence = :evidence, ended_at = unixepoch('subsec')
 WHERE id = :worker_id AND state IN ('live', 'silent') AND state <> :state
RETURNING id;

-- held_runs --
SELECT id, fence, fruitless, progress_seq > claimed_seq, head_seq, head_hash, step
  FROM andon_runs WHERE worker = :worker_id AND state = 'running' ORDER BY id;

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
       waits = NULL, wake_at = NULL, undo_at = NULL, changed_at = unixepoch('subsec')
 WHERE id IN (
   SELECT r.id FROM andon_runs r
    WHERE r.state = 'queued' AND +r.available_at <= unixepoch('subsec')
      AND ((r.agent, r.version) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:agents))
           OR (r.undoing IS NOT NULL
               AND r.agent IN (SELECT value ->> 0 FROM json_each(:agents))))
      AND (:only IS NULL OR r.root_id IN (SELECT value FROM json_each(:only)))
      AND (:queues IS NULL OR r.queue IN (SELECT value FROM json_each(:queues)))
      AND (:chosen IS NULL OR r.id IN (SELECT value FROM json_each(:chosen)))
      AND (r.fruitless < :suspect_from OR (
        r.id = (SELECT s.id FROM andon_runs s
                 WHERE s.state = 'queued' AND s.fruitless >= :suspect_from
                   AND +s.available_at <= unixepoch('subsec')
                   AND (s.agent, s.version) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:agents))
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
                AND +s.available_at <= unixepoch('subsec')
                AND (s.agent, s.version) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:agents))
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
-- anything has become due, when the next thing will, and which of its runs somebody wants undone.
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
         WHERE worker = :worker_id AND undoing IS NOT NULL AND state = 'running')
  FROM andon_workers WHERE id = :worker_id;

-- lock_runs --
-- The write lock is held already: this only reads.
SELECT id, state FROM andon_runs
 WHERE id IN (SELECT value FROM json_each(:run_ids) UNION SELECT value FROM json_each(:ending))
 ORDER BY id;

-- start_run --
INSERT INTO andon_runs (id, agent, version, queue, state, priority, available_at, labels, parent_id,
                        root_id, head_seq, head_hash, created_at, changed_at)
VALUES (:id, :agent, :version, :queue, 'queued', :priority,
        coalesce(:at, unixepoch('subsec') + :delay_seconds), :labels, :parent_id, :root_id,
        0, :hash, unixepoch('subsec'), unixepoch('subsec'))
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

-- take_letter --
UPDATE andon_inbox SET taken = 1 WHERE id = :id;

-- drop_checkpoint --
DELETE FROM andon_checkpoints WHERE run_id = :run_id AND op = :op;

-- save_checkpoint --
INSERT INTO andon_checkpoints (run_id, op, body, at)
SELECT :run_id, :op, :body, unixepoch('subsec') FROM andon_runs
 WHERE id = :run_id AND fence = :fence AND epoch = :epoch AND state = 'running'
   AND (SELECT epoch FROM andon_meta) = :epoch
ON CONFLICT (run_id, op) DO UPDATE SET body = excluded.body, at = excluded.at
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
RETURNING state, parent_id;

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
RETURNING id;

-- insert_letter --
INSERT INTO andon_inbox (run_id, kind, name, body, message_id, at)
VALUES (:run_id, :kind, :name, :body, :message_id, unixepoch('subsec'))
ON CONFLICT (run_id, message_id) DO NOTHING
RETURNING id;

-- insert_log --
INSERT INTO andon_logs (run_id, attempt, at, level, text) VALUES (:run_id, :attempt, :at, :level, :text);

-- start_entry --
SELECT seq, kind, state, place, name, key, digest, body, blob, fence, since, at, hash
  FROM andon_journal WHERE run_id = :run_id AND seq = 0;

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

-- letters --
SELECT run_id, id, kind, name, body FROM andon_inbox
 WHERE run_id IN (SELECT value FROM json_each(:run_ids)) AND taken = 0 ORDER BY id;

-- checkpoints --
SELECT op, body FROM andon_checkpoints WHERE run_id = :run_id;

-- quiet_fences --
-- Earlier claims whose workers certainly execute nothing any more.
SELECT a.fence FROM andon_attempts a JOIN andon_workers w ON w.id = a.worker
 WHERE a.run_id = :run_id AND w.state IN ('gone', 'dead');

-- run --
SELECT id, agent, version, queue, state, priority, labels, attempt, failures, interruptions, epoch,
       fence, worker, parent_id, root_id, step, error, waits, wake_at, available_at, created_at,
       changed_at, head_seq, head_hash, undoing, undo_at, trial
  FROM andon_runs WHERE id = :run_id;

-- runs --
SELECT id, agent, version, queue, state, priority, labels, attempt, failures, interruptions, epoch,
       fence, worker, parent_id, root_id, step, error, waits, wake_at, available_at, created_at,
       changed_at, head_seq, head_hash, undoing, undo_at, trial
  FROM andon_runs
 WHERE (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
   AND (:agent IS NULL OR agent = :agent)
   AND (:parent_id IS NULL OR parent_id = :parent_id)
   AND (:prefix IS NULL OR substr(id, 1, length(:prefix)) = :prefix)
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
         WHERE n.run_id = a.run_id AND n.fence > a.fence)
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

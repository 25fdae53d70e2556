-- Queries that both databases execute. For SQLite, queries.py replaces the schema andon. by the prefix
-- andon_ and andon.now() by its clock, and drops casts and row locks. Queries that differ are in the
-- dialects' files, and so are a few equal ones: make verify plants bugs in one database only there.

-- {undo_within} --
-- A run not resumed within so many seconds has its effects undone; NULL if none needs undoing.
(SELECT min(undo_within) FROM andon.effects e
          WHERE e.run_id = andon.runs.id AND e.state = 'confirmed');

-- {run_columns} --
id, agent, version, queue, state, priority, labels, attempt, failures, interruptions, epoch,
       fence, worker, parent_id, root_id, step, error, waits, wake_at, available_at, created_at,
       changed_at, head_seq, head_hash, undoing, undo_at, trial, stop, containment;

-- {worker_columns} --
id, host, boot, namespace, pid, start_ticks, lock, state, lease_until, agents, started_at,
       concurrency, drain_asked_at, draining_at, ended_at, evidence, drain, queues, supervisor,
       containment, progress, beaten_at, stalled, embedded;

-- {stop_columns} --
id, epoch, kind, scope, name, value, within, asked_by, why, via, asked_at, escalate_at, closed_at,
       latched, lifted_at, lifted_by, lifted_why, waiting, body, spare;

-- {target_columns} --
stop_id, target, run_id, worker, supervisor, fence, stage, evidence, requested_at,
       acknowledged_at, fenced_at, ended_at, mark;

-- now --
SELECT andon.now();

-- epoch --
SELECT epoch FROM andon.meta;

-- renew_epoch --
-- This is not the database we last wrote to: a restore may have rolled its counters back.
UPDATE andon.meta SET epoch = epoch + 1, identity = :identity WHERE identity <> :identity
RETURNING epoch;

-- register_worker --
INSERT INTO andon.workers (id, host, boot, namespace, pid, start_ticks, lock, state, lease_until, contact_since, agents, queues, concurrency, started_at, supervisor, containment, beaten_at, embedded)
VALUES (:id, :host, :boot, :namespace, :pid, :start_ticks, :lock, 'live',
        andon.now() + :lease_seconds::float8, andon.now(), :agents, :queues, :concurrency,
        andon.now(), :supervisor, :containment, andon.now(), :embedded)
ON CONFLICT (id) DO NOTHING;

-- agents --
-- The promoted version of each agent comes first.
SELECT name, version, queue, parameters, retries, registered_at, promoted_at, at_most, rate,
       per_seconds, types
  FROM andon.agents
 WHERE :name::text IS NULL OR name = :name
 ORDER BY name, promoted_at DESC NULLS LAST, registered_at DESC, version DESC;

-- workers --
SELECT {worker_columns} FROM andon.workers WHERE state IN ('live', 'silent') ORDER BY started_at, id;

-- busy_workers --
SELECT DISTINCT worker FROM andon.runs WHERE worker IS NOT NULL;

-- any_waiting --
-- Whether a run waits for a worker now.
SELECT EXISTS (SELECT 1 FROM andon.runs
                WHERE state = 'queued' AND available_at > 0 AND available_at <= (SELECT andon.now()))
    OR EXISTS (SELECT 1 FROM andon.runs WHERE state = 'queued' AND returned);

-- fleet --
-- Includes workers that have ended since; newest first.
SELECT {worker_columns} FROM andon.workers WHERE state = 'live' OR ended_at >= :since::float8 ORDER BY started_at, id;

-- ask_drain --
UPDATE andon.workers SET drain_asked_at = coalesce(drain_asked_at, andon.now())
 WHERE id = :worker_id AND state = 'live'
RETURNING id;

-- begin_drain --
UPDATE andon.workers
   SET drain_asked_at = coalesce(drain_asked_at, andon.now() - :ago::float8),
       draining_at = coalesce(draining_at, andon.now()), drain = coalesce(drain, :drain)
 WHERE id = :worker_id AND state = 'live'
RETURNING draining_at;

-- end_drain --
UPDATE andon.workers SET drain = :drain WHERE id = :worker_id;

-- beat --
-- A worker that missed two heartbeats was out of contact: it gets a new contact_since.
UPDATE andon.workers
   SET lease_until = andon.now() + :lease_seconds::float8,
       beaten_at = andon.now(), progress = coalesce(:progress::text, progress),
       contact_since = CASE WHEN lease_until < andon.now() + :lease_seconds::float8 / 2.0
                            THEN andon.now() ELSE contact_since END
 WHERE id = :worker_id AND state = 'live'
RETURNING andon.now();

-- contact --
-- Since when a worker is in contact. No row if it missed two heartbeats: then perhaps every worker
-- did, and leases end one after the other although all workers are alive.
SELECT contact_since, andon.now() FROM andon.workers
 WHERE id = :worker_id AND state = 'live'
   AND lease_until >= andon.now() + :lease_seconds::float8 / 2.0;

-- overdue_workers --
-- Each claim of every worker expires a bounded number: there is no reaper that could die unnoticed.
-- Locked, because a heartbeat in between would be accepted although the worker is given up.
SELECT id FROM andon.workers
 WHERE state = 'live' AND lease_until < (SELECT andon.now())
 ORDER BY lease_until LIMIT 8 FOR UPDATE SKIP LOCKED;

-- held_runs --
-- Locked, because an owner that is still alive must not move the head before give_back_run.
SELECT id, fence, fruitless, progress_seq > claimed_seq, head_seq, head_hash, step
  FROM andon.runs WHERE worker = :worker_id AND state = 'running'
 ORDER BY id FOR NO KEY UPDATE;

-- lock_worker --
-- The first query of a claim. It excludes end_worker: a worker given up in between would keep runs
-- that no other worker takes back. It also makes a repeated claim wait until the first try commits;
-- the repeated one then finds the runs that the first one claimed.
SELECT state FROM andon.workers WHERE id = :worker_id FOR NO KEY UPDATE;

-- end_worker --
-- Of two writers that end the same worker, the second one waits here and gets no row.
UPDATE andon.workers SET state = :state, evidence = :evidence, ended_at = andon.now() - :ago::float8
 WHERE id = :worker_id AND state IN ('live', 'silent') AND state <> :state
RETURNING id;

-- held_checkpoints --
SELECT c.run_id, c.op, c.body FROM andon.runs r JOIN andon.checkpoints c ON c.run_id = r.id
 WHERE r.worker = :worker_id AND r.state = 'running';

-- known_digests --
-- The attempts since the last finished step that left a checkpoint: how many there are, and how many
-- of them left this same checkpoint.
SELECT count(*), count(*) FILTER (WHERE checkpoint = :checkpoint) FROM andon.attempts
 WHERE run_id = :run_id AND checkpoint IS NOT NULL
   AND fence > coalesce((SELECT max(fence) FROM andon.attempts
                          WHERE run_id = :run_id AND ended_at IS NOT NULL AND checkpoint IS NULL), 0);

-- keep_digest --
UPDATE andon.attempts SET checkpoint = :checkpoint WHERE run_id = :run_id AND fence = :fence;

-- end_attempt --
UPDATE andon.attempts SET ended_at = andon.now(), ending = :ending
 WHERE run_id = :run_id AND fence = :fence;

-- recall_run --
UPDATE andon.runs SET undoing = :undoing WHERE id = :run_id AND state = 'running' RETURNING id;

-- limits --
SELECT scope, name, at_most, rate, per_seconds, set_by, set_at FROM andon.limits ORDER BY scope, name;

-- set_limit --
INSERT INTO andon.limits (scope, name, at_most, rate, per_seconds, set_by, set_at)
VALUES (:scope, :name, :at_most, :rate, :per_seconds, :set_by, andon.now())
ON CONFLICT (scope, name) DO UPDATE
   SET at_most = excluded.at_most, rate = excluded.rate, per_seconds = excluded.per_seconds,
       set_by = excluded.set_by, set_at = excluded.set_at;

-- drop_limit --
DELETE FROM andon.limits WHERE scope = :scope AND name = :name RETURNING name;

-- running --
-- Grouped by all columns that a limit can refer to.
SELECT queue, agent, labels, count(*) FROM andon.runs
 WHERE worker IS NOT NULL AND state = 'running' GROUP BY queue, agent, labels;

-- buckets --
SELECT scope, name, value, unspent, filled_at FROM andon.buckets;

-- fill_bucket --
INSERT INTO andon.buckets (scope, name, value, unspent, filled_at)
VALUES (:scope, :name, :value, :unspent, :filled_at)
ON CONFLICT (scope, name, value) DO UPDATE
   SET unspent = excluded.unspent, filled_at = excluded.filled_at;

-- sweep_buckets --
-- A bucket is full again one period after it was last spent from; a full bucket needs no row.
DELETE FROM andon.buckets
 WHERE NOT EXISTS (SELECT 1 FROM andon.limits l
                    WHERE l.scope = andon.buckets.scope AND l.name = andon.buckets.name
                      AND l.rate IS NOT NULL AND filled_at + l.per_seconds > (SELECT andon.now()));

-- unfinished --
SELECT agent, version, state, count(*) FROM andon.runs
 WHERE state NOT IN ('succeeded', 'failed', 'cancelled', 'dead')
   AND (:agent::text IS NULL OR agent = :agent)
 GROUP BY agent, version, state;

-- run_count --
SELECT count(*) FROM andon.runs;

-- claimed_before --
-- The runs that an earlier try of this claim has claimed (the outcome of its commit was unknown).
SELECT r.id, r.agent, r.version, r.attempt, r.epoch, r.fence, r.failures, r.interruptions,
       r.head_seq, r.head_hash, r.inbox, r.parent_id, r.root_id, r.labels, r.queue, r.undoing, r.trial
  FROM andon.runs r JOIN andon.attempts a ON a.run_id = r.id AND a.fence = r.fence
 WHERE r.worker = :worker_id AND r.state = 'running' AND a.claim = :claim ORDER BY r.id;

-- insert_entry --
INSERT INTO andon.journal (run_id, seq, kind, state, place, name, key, digest, body, blob, fence, since, at, hash)
VALUES (:run_id, :seq, :kind, :state, :place, :name, :key, :digest,
        :body, :blob, :fence, :since, :at, :hash);

-- entry_hash --
SELECT hash FROM andon.journal WHERE run_id = :run_id AND seq = :seq;

-- upsert_effect --
INSERT INTO andon.effects (run_id, name, key, place, kind, state, seq, fence, quiet, undo, undo_within)
VALUES (:run_id, :name, :key, :place, :kind, :state, :seq, :fence,
        :quiet::boolean, :undo, :undo_within)
ON CONFLICT (run_id, name, key) DO UPDATE
   SET place = excluded.place, kind = excluded.kind, state = excluded.state, seq = excluded.seq,
       fence = excluded.fence, quiet = excluded.quiet, undo = excluded.undo,
       undo_within = excluded.undo_within;

-- insert_blob --
INSERT INTO andon.blobs (name, body) VALUES (:name, :body) ON CONFLICT (name) DO NOTHING;

-- insert_ask --
INSERT INTO andon.asks (run_id, id, about, question, value, choices, asked_at, expires_at)
VALUES (:run_id, :id, :about, :question, :value, :choices, andon.now(),
        :expires_at)
ON CONFLICT (run_id, id) DO NOTHING;

-- answer_ask --
UPDATE andon.asks SET answer = :answer, answered_at = andon.now()
 WHERE run_id = :run_id AND id = :id AND answered_at IS NULL
RETURNING id;

-- close_asks --
UPDATE andon.asks SET answered_at = andon.now()
 WHERE run_id = :run_id AND answered_at IS NULL;

-- take_message --
UPDATE andon.inbox SET taken = true WHERE id = :id;

-- give_message_back --
UPDATE andon.inbox SET taken = false WHERE id = :id;

-- drop_checkpoint --
DELETE FROM andon.checkpoints WHERE run_id = :run_id AND op = :op;

-- is_settled --
-- Whether an earlier try has written this settlement (the outcome of its commit was unknown).
SELECT 1 FROM andon.attempts
 WHERE run_id = :run_id AND fence = :fence AND ended_at IS NOT NULL AND ending = :ending;

-- is_delivered --
SELECT 1 FROM andon.inbox WHERE run_id = :run_id AND message_id = :message_id;

-- insert_message --
INSERT INTO andon.inbox (run_id, kind, name, body, message_id, at)
VALUES (:run_id, :kind, :name, :body, :message_id, andon.now())
ON CONFLICT (run_id, message_id) DO NOTHING
RETURNING id;

-- insert_log --
INSERT INTO andon.logs (run_id, attempt, at, level, text)
VALUES (:run_id, :attempt, :at, :level, :text);

-- start_entry --
SELECT seq, kind, state, place, name, key, digest, body, blob, fence, since, at, hash
  FROM andon.journal WHERE run_id = :run_id AND seq = 0;

-- start_entries --
SELECT run_id, seq, kind, state, place, name, key, digest, body, blob, fence, since, at, hash
  FROM andon.journal
 WHERE run_id = ANY (ARRAY(SELECT jsonb_array_elements_text(:run_ids::text::jsonb))) AND seq = 0;

-- load_entries --
-- From the last snapshot on: replay needs no earlier entry.
SELECT seq, kind, state, place, name, key, digest, body, blob, fence, since, at, hash
  FROM andon.journal
 WHERE run_id = :run_id
   AND seq >= coalesce((SELECT max(seq) FROM andon.journal
                         WHERE run_id = :run_id AND kind = 'snapshot'), 0)
 ORDER BY seq;

-- journal --
SELECT seq, kind, state, place, name, key, digest, body, blob, fence, since, at, hash
  FROM andon.journal WHERE run_id = :run_id AND seq > :after ORDER BY seq LIMIT :limit;

-- last_entry --
SELECT seq, kind, state, place, name, key, digest, body, blob, fence, since, at, hash
  FROM andon.journal WHERE run_id = :run_id ORDER BY seq DESC LIMIT 1;

-- sent --
SELECT body FROM andon.inbox
 WHERE run_id = :run_id AND kind = 'event' AND name = :name ORDER BY id;

-- progress --
-- The progress of unfinished runs; the step that reported last comes first.
SELECT c.run_id, c.progress FROM andon.checkpoints c JOIN andon.runs r ON r.id = c.run_id
 WHERE c.progress IS NOT NULL AND r.state NOT IN ('succeeded', 'failed', 'cancelled', 'dead')
 ORDER BY c.at DESC;

-- checkpoints --
SELECT op, body FROM andon.checkpoints WHERE run_id = :run_id;

-- run --
SELECT {run_columns} FROM andon.runs WHERE id = :run_id;

-- runs_among --
SELECT {run_columns} FROM andon.runs
 WHERE id IN (SELECT jsonb_array_elements_text(:run_ids::text::jsonb))
   AND state IN (SELECT jsonb_array_elements_text(:states::text::jsonb));

-- ledger --
SELECT name, key, place, kind, state, seq, fence, quiet, undo, undo_within FROM andon.effects
 WHERE run_id = :run_id ORDER BY seq;

-- obligations --
-- Effects to undo if their run does not go on.
SELECT e.run_id, r.agent, r.version, r.state, e.name, e.key, e.state, e.seq, e.undo, e.undo_within,
       r.undo_at
  FROM andon.effects e JOIN andon.runs r ON r.id = e.run_id
 WHERE e.undo IS NOT NULL AND e.state IN ('confirmed', 'undoing') AND r.state <> 'succeeded'
   AND (:run_id::text IS NULL OR e.run_id = :run_id)
 ORDER BY r.undo_at IS NULL, r.undo_at, e.run_id, e.seq LIMIT :limit;

-- insert_event --
INSERT INTO andon.events (at, kind, run_id, worker, body)
VALUES (andon.now(), :kind, :run_id, :worker, :body);

-- events --
SELECT id, at, kind, run_id, worker, body FROM andon.events
 WHERE id > :after ORDER BY id LIMIT :limit;

-- last_event --
SELECT coalesce(max(id), 0) FROM andon.events;

-- last_event_before --
SELECT coalesce((SELECT id FROM andon.events WHERE at < :before::float8
                  ORDER BY at DESC, id DESC LIMIT 1), 0);

-- slowest_steps --
-- How long the steps of the newest runs took; all journals together may be large.
SELECT r.agent, j.name, count(*),
       count(*) FILTER (WHERE j.at - j.since > :longer_than::float8), max(j.at - j.since)
  FROM (SELECT id, agent FROM andon.runs ORDER BY created_at DESC, id DESC LIMIT :runs) r
  JOIN andon.journal j ON j.run_id = r.id
 WHERE j.kind IN ('step', 'effect') AND j.state IN ('done', 'confirmed')
   AND j.since > 0 AND j.at >= :since::float8
 GROUP BY r.agent, j.name ORDER BY 5 DESC, 1, 2 LIMIT 1000;

-- attempts --
SELECT number, fence, worker, claimed_at, ended_at, ending FROM andon.attempts
 WHERE run_id = :run_id ORDER BY fence;

-- held_by --
-- The runs that a worker has held since a time, and how each attempt ended.
SELECT a.run_id, a.number, a.fence, a.worker, a.claimed_at, a.ended_at, a.ending, r.state,
       (SELECT min(n.claimed_at) FROM andon.attempts n
         WHERE n.run_id = a.run_id AND n.fence > a.fence),
       (SELECT j.at FROM andon.journal j
         WHERE j.run_id = a.run_id AND j.fence <= a.fence AND j.at > 0 ORDER BY j.seq DESC LIMIT 1)
  FROM andon.attempts a JOIN andon.runs r ON r.id = a.run_id
 WHERE a.worker = :worker_id AND (a.ended_at IS NULL OR a.ended_at >= :since::float8)
 ORDER BY a.claimed_at, a.run_id;

-- asks --
SELECT run_id, id, about, question, value, choices, asked_at, expires_at, answer, answered_at
  FROM andon.asks
 WHERE (:run_id::text IS NULL OR run_id = :run_id)
   AND (NOT :open_only::boolean OR answered_at IS NULL)
 ORDER BY asked_at, id;

-- logs --
SELECT id, at, level, text FROM andon.logs
 WHERE run_id = :run_id AND id > :after ORDER BY id LIMIT 1000;

-- blob --
SELECT body FROM andon.blobs WHERE name = :name;

-- stop_in_force --
-- An order that is given again joins the order that is in force. Newest first.
SELECT id FROM andon.stops
 WHERE id = :id
    OR (kind = :kind AND scope = :scope AND name = :name AND value = :value
        AND (closed_at IS NULL OR (latched AND lifted_at IS NULL)))
 ORDER BY id = :id DESC, epoch DESC LIMIT 1;

-- insert_stop --
INSERT INTO andon.stops (id, epoch, kind, scope, name, value, within, asked_by, why, via, asked_at,
                         escalate_at, latched, spare)
VALUES (:id, (SELECT coalesce(max(epoch), 0) + 1 FROM andon.stops), :kind, :scope, :name, :value,
        :within, :by, :why, :via, andon.now(),
        CASE WHEN :polite::boolean THEN andon.now() + :within::float8 END, :latched, :spare)
RETURNING epoch;

-- descendants --
-- A run and its descendants, whatever the state of the runs in between; parents first. `over` adds
-- ended runs whose processes may still exist.
WITH RECURSIVE family (id, depth) AS (
  SELECT id, 0 FROM andon.runs WHERE id = :run_id
  UNION
  SELECT r.id, f.depth + 1 FROM andon.runs r JOIN family f ON r.parent_id = f.id
)
SELECT r.id FROM andon.runs r JOIN family f ON r.id = f.id
 WHERE r.state NOT IN ('succeeded', 'failed', 'cancelled', 'dead')
    OR (:over::boolean AND EXISTS (SELECT 1 FROM andon.attempts a WHERE a.run_id = r.id AND a.mark IS NOT NULL AND NOT a.quiet))
 ORDER BY f.depth, r.id;

-- executing --
-- Includes runs that another order has fenced and that may not have ended yet.
SELECT id FROM andon.runs WHERE worker IS NOT NULL AND state = 'running'
 UNION SELECT run_id FROM andon.targets WHERE run_id IS NOT NULL AND ended_at IS NULL ORDER BY 1;

-- ask_run --
-- The next claim of its worker returns the order.
UPDATE andon.runs SET stop = :stop WHERE id = :run_id AND state = 'running' RETURNING id;

-- fence_run --
-- From now on every write of its worker is refused.
UPDATE andon.runs
   SET state = 'killed', fence = fence + 1, worker = NULL, stop = :stop, undo_at = NULL,
       changed_at = andon.now()
 WHERE id = :run_id AND fence = :fence AND state = 'running'
RETURNING id;

-- fence_frozen --
-- The process must not be thawed again; it has to be ended.
UPDATE andon.runs
   SET state = 'killed', fence = fence + 1, stop = :stop, undo_at = NULL, changed_at = andon.now()
 WHERE id = :run_id AND fence = :fence AND state IN ('paused', 'queued');

-- stop_run --
-- No worker executes the run: it gets the state that the order asks for.
UPDATE andon.runs
   SET state = :state, stop = NULL, worker = NULL, error = :error::text, returned = true,
       undoing = coalesce(undoing, :undoing::text), changed_at = andon.now(),
       waits = NULL, wake_at = NULL, fruitless = 0,
       available_at = CASE WHEN :state::text = 'queued' THEN andon.now() ELSE available_at END,
       undo_at = CASE WHEN :undo_later::boolean THEN andon.now() + {undo_within} END,
       head_seq = coalesce(:seq::bigint, head_seq), head_hash = coalesce(:hash::text, head_hash)
 WHERE id = :run_id
RETURNING parent_id;

-- undo_runs --
-- No worker executes these runs, and they have effects to undo: the next worker undoes them.
UPDATE andon.runs
   SET state = 'queued', error = NULL, returned = true, changed_at = andon.now(),
       undoing = coalesce(undoing, :undoing::text), waits = NULL, wake_at = NULL, fruitless = 0,
       available_at = andon.now(), undo_at = NULL
 WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text(:run_ids::text::jsonb)));

-- hold_runs --
-- Many runs that no worker executes, in one statement.
UPDATE andon.runs
   SET state = :state, error = :error::text, changed_at = andon.now(), waits = NULL, wake_at = NULL,
       undo_at = CASE WHEN :undo_later::boolean THEN andon.now() + {undo_within} END
 WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text(:run_ids::text::jsonb)))
   AND state = ANY (ARRAY(SELECT jsonb_array_elements_text(:states::text::jsonb))) AND stop IS NULL
RETURNING id;

-- forget_windows --
-- Runs that were stopped by a halt are not undone on their own afterwards.
UPDATE andon.runs SET undo_at = NULL
 WHERE undo_at IS NOT NULL AND state IN ('stranded', 'paused', 'dead');

-- resume_runs --
-- A run that was scheduled for later keeps its time.
UPDATE andon.runs
   SET state = 'queued', returned = true, error = NULL, changed_at = andon.now(),
       available_at = greatest(available_at, andon.now()),
       undo_at = andon.now() + {undo_within}
 WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text(:run_ids::text::jsonb))) AND state IN ('paused', 'killed') AND stop IS NULL
   AND agent NOT IN (SELECT jsonb_array_elements_text(:besides::text::jsonb))
RETURNING id;

-- clear_stop --
UPDATE andon.runs SET stop = NULL WHERE id = :run_id;

-- insert_target --
INSERT INTO andon.targets (stop_id, target, run_id, worker, supervisor, fence, stage, mark, requested_at, fenced_at)
VALUES (:stop_id, :target, :run_id, :worker, :supervisor, :fence, :stage, :mark, andon.now(),
        CASE WHEN :stage::text = 'fenced' THEN andon.now() END)
ON CONFLICT (stop_id, target) DO NOTHING;

-- join_targets --
-- An order about a run that an earlier order has fenced waits for the same targets.
INSERT INTO andon.targets (stop_id, target, run_id, worker, supervisor, fence, stage, mark, requested_at, fenced_at)
SELECT DISTINCT :stop_id, target, run_id, worker, supervisor, fence, stage, mark, andon.now(), andon.now()
  FROM andon.targets WHERE run_id = :run_id AND ended_at IS NULL AND stage = 'fenced'
ON CONFLICT (stop_id, target) DO NOTHING;

-- is_awaited --
-- Whether an end of this run remains to be proved.
SELECT 1 FROM andon.targets WHERE run_id = :run_id AND ended_at IS NULL LIMIT 1;

-- fence_targets --
UPDATE andon.targets SET stage = 'fenced', fenced_at = andon.now()
 WHERE run_id = :run_id AND ended_at IS NULL AND stage <> 'fenced';

-- acknowledge_targets --
UPDATE andon.targets SET stage = 'acknowledged', acknowledged_at = andon.now()
 WHERE worker = :worker_id AND ended_at IS NULL AND stage = 'requested'
   AND run_id = ANY (ARRAY(SELECT jsonb_array_elements_text(:run_ids::text::jsonb)));

-- quieten --
UPDATE andon.attempts SET quiet = true WHERE run_id = :run_id AND fence = :fence;

-- word_targets --
-- The targets that a worker's report is about, and whether the worker's process must end too.
SELECT t.stop_id, t.target, s.kind, s.spare, w.embedded
  FROM andon.targets t JOIN andon.stops s ON s.id = t.stop_id JOIN andon.workers w ON w.id = t.worker
 WHERE t.run_id = :run_id AND t.worker = :worker_id AND t.fence = :fence AND t.ended_at IS NULL
   AND t.stage = 'fenced';

-- started_by --
-- Attempts whose processes or threads may go on although no worker executes the attempt any more, and
-- attempts of silent workers, whose process has to be ended. An attempt in hand counts only if the
-- order spares its worker: otherwise the worker is ended with all that it has started.
SELECT a.run_id, a.fence, a.worker, w.supervisor, CASE WHEN (a.threads AND w.state = 'live') OR w.state = 'silent' THEN NULL ELSE a.mark END
  FROM andon.attempts a JOIN andon.workers w ON w.id = a.worker JOIN andon.runs r ON r.id = a.run_id
 WHERE a.run_id = ANY (ARRAY(SELECT jsonb_array_elements_text(:run_ids::text::jsonb))) AND NOT a.quiet
   AND (a.mark IS NOT NULL OR (w.state = 'silent' AND a.ending = 'interrupted'))
   AND w.state <> 'dead' AND ((:hard::boolean AND coalesce(:spare::boolean, w.embedded)) OR a.fence <> r.fence OR r.state <> 'running')
 ORDER BY a.run_id, a.fence;

-- left_behind --
-- The mark of an attempt whose processes may go on; NULL for a thread: it ends with its worker only.
SELECT CASE WHEN a.threads AND w.state = 'live' THEN NULL ELSE a.mark END
  FROM andon.attempts a JOIN andon.workers w ON w.id = a.worker
 WHERE a.run_id = :run_id AND a.fence = :fence AND a.mark IS NOT NULL AND NOT a.quiet;

-- keep_targets --
-- The attempt has ended, and processes or threads that it started may go on: from now on the target is these.
UPDATE andon.targets SET target = 'run:' || run_id || ':' || fence, stage = 'fenced', mark = :mark, evidence = :evidence,
       fenced_at = coalesce(fenced_at, andon.now())
 WHERE run_id = :run_id AND fence = :fence AND ended_at IS NULL AND mark IS NULL;

-- has_started --
SELECT 1 FROM andon.attempts WHERE worker = :worker_id AND mark IS NOT NULL AND NOT quiet LIMIT 1;

-- hold_started --
-- No worker executes the run, but its processes may go on.
UPDATE andon.runs
   SET state = 'killed', fence = fence + 1, stop = :stop, undo_at = NULL, waits = NULL, wake_at = NULL,
       changed_at = andon.now()
 WHERE id = :run_id AND fence = :fence AND state IN ('queued', 'suspended', 'paused', 'stranded', 'killed');

-- end_worker_targets --
-- An unproved target can be proved later. `polite`: the worker's own report proves neither a hard stop
-- nor the end of a process that it has started.
UPDATE andon.targets SET stage = :stage, evidence = :evidence::text || CASE WHEN stage = 'fenced' AND evidence IS NOT NULL THEN '; ' || evidence ELSE '' END, ended_at = andon.now()
 WHERE worker = :worker_id
   AND (ended_at IS NULL OR (stage = 'unproved' AND :stage::text = 'verified'))
   AND NOT (:polite::boolean AND (mark IS NOT NULL OR EXISTS (
              SELECT 1 FROM andon.stops s WHERE s.id = stop_id AND s.kind IN ('kill', 'halt'))))
RETURNING stop_id, run_id;

-- hard_targets_of --
SELECT t.stop_id, t.target, t.supervisor, t.run_id FROM andon.targets t JOIN andon.stops s ON s.id = t.stop_id
 WHERE t.worker = :worker_id AND t.ended_at IS NULL AND (t.mark IS NOT NULL OR s.kind IN ('kill', 'halt'));

-- forsaken_targets --
-- Targets on hosts where no process looks: the worker has ended, and there is no supervisor.
SELECT t.stop_id, t.target, t.run_id, w.host
  FROM andon.targets t JOIN andon.workers w ON w.id = t.worker
 WHERE (t.mark IS NOT NULL OR w.state = 'silent') AND t.ended_at IS NULL AND w.state IN ('silent', 'gone')
   AND t.fenced_at + :seconds <= andon.now()
   AND NOT EXISTS (SELECT 1 FROM andon.supervisors s WHERE s.id = t.supervisor AND s.state = 'live')
 ORDER BY t.stop_id, t.target;

-- quieten_all --
UPDATE andon.attempts SET quiet = true WHERE worker = :worker_id AND mark IS NOT NULL;

-- report_target --
-- If several parties end processes of one attempt, the evidence names all of them.
UPDATE andon.targets
   SET stage = :stage,
       evidence = CASE WHEN mark IS NOT NULL AND :stage::text = 'verified' AND stage = 'fenced'
                       THEN coalesce(:evidence::text || '; ' || evidence, :evidence::text, evidence)
                       ELSE coalesce(:evidence::text, evidence) END,
       acknowledged_at = coalesce(acknowledged_at, CASE WHEN :stage::text = 'acknowledged' THEN andon.now() END),
       fenced_at = coalesce(fenced_at, CASE WHEN :stage::text = 'fenced' THEN andon.now() END),
       ended_at = CASE WHEN :ends::boolean THEN andon.now() END
 WHERE stop_id = :stop_id AND target = :target
   AND (ended_at IS NULL OR (stage = 'unproved' AND :stage::text = 'verified'))
RETURNING run_id, fence, mark;

-- count_waiting --
UPDATE andon.stops SET waiting = waiting + :runs WHERE id = :id;

-- overdue_targets --
-- Targets of polite orders whose window is over.
SELECT DISTINCT t.run_id FROM andon.stops s JOIN andon.targets t ON t.stop_id = s.id
 WHERE s.closed_at IS NULL AND s.escalate_at <= andon.now()
   AND t.ended_at IS NULL AND t.run_id IS NOT NULL ORDER BY t.run_id;

-- stop_rows --
-- The facts that an order needs about its runs, which stay locked until it commits.
SELECT r.id, r.state, r.worker, r.fence, r.head_seq, r.head_hash, r.parent_id, r.stop,
       EXISTS (SELECT 1 FROM andon.effects e
                WHERE e.run_id = r.id AND e.undo IS NOT NULL
                  AND e.state IN ('confirmed', 'undoing', 'started', 'in_doubt')),
       (SELECT w.supervisor FROM andon.workers w WHERE w.id = r.worker),
       (SELECT a.worker FROM andon.attempts a JOIN andon.workers w ON w.id = a.worker
         WHERE a.run_id = r.id AND a.fence = r.fence AND substr(a.ending, 1, 6) = 'frozen' AND w.state = 'live')
  FROM andon.runs r WHERE r.id = ANY (ARRAY(SELECT jsonb_array_elements_text(:run_ids::text::jsonb)))
 ORDER BY r.id FOR NO KEY UPDATE OF r;

-- close_stops --
-- The orders of which every target is proved or cannot be proved.
UPDATE andon.stops SET closed_at = andon.now(), escalate_at = NULL
 WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::text::jsonb))) AND closed_at IS NULL
   AND NOT EXISTS (SELECT 1 FROM andon.targets t
                    WHERE t.stop_id = andon.stops.id AND t.ended_at IS NULL)
RETURNING id, kind, (SELECT count(*) FROM andon.targets t
                      WHERE t.stop_id = andon.stops.id AND t.stage = 'unproved');

-- shorten_window --
-- An order given again with a shorter window ends sooner, never later.
UPDATE andon.stops SET escalate_at = andon.now() + :within::float8, within = :within
 WHERE id = :id AND closed_at IS NULL AND escalate_at > andon.now() + :within::float8;

-- lift --
UPDATE andon.stops SET lifted_at = andon.now(), lifted_by = :by, lifted_why = :why
 WHERE latched AND lifted_at IS NULL AND scope = :scope AND name = :name AND value = :value
   AND kind = ANY (ARRAY(SELECT jsonb_array_elements_text(:kinds::text::jsonb)))
RETURNING id;

-- newest_latch --
SELECT epoch FROM andon.stops
 WHERE latched AND lifted_at IS NULL AND scope = :scope AND name = :name AND value = :value
   AND kind = ANY (ARRAY(SELECT jsonb_array_elements_text(:kinds::text::jsonb)))
 ORDER BY epoch DESC LIMIT 1;

-- is_lifted --
-- Whether an earlier try has written this reauthorization (the outcome of its commit was unknown).
SELECT 1 FROM andon.stops
 WHERE epoch = :epoch AND scope = :scope AND name = :name AND value = :value
   AND lifted_by = :by AND lifted_why = :why;

-- stops --
SELECT {stop_columns} FROM andon.stops ORDER BY epoch DESC LIMIT :limit;

-- stop --
SELECT {stop_columns} FROM andon.stops WHERE id = :id;

-- latches --
SELECT {stop_columns} FROM andon.stops WHERE latched AND lifted_at IS NULL ORDER BY epoch DESC;

-- targets --
SELECT {target_columns} FROM andon.targets WHERE stop_id = :stop_id ORDER BY target;

-- unproved --
-- Unproved targets of all orders.
SELECT {target_columns} FROM andon.targets WHERE stage = 'unproved' ORDER BY requested_at DESC, target LIMIT 1000;

-- enlist --
INSERT INTO andon.supervisors (id, host, boot, namespace, pid, start_ticks, home, state, lease_until, grades, body, started_at)
VALUES (:id, :host, :boot, :namespace, :pid, :start_ticks, :home, 'live',
        andon.now() + :lease_seconds::float8, :grades, :body, andon.now())
ON CONFLICT (id) DO UPDATE
   SET state = 'live', lease_until = excluded.lease_until, grades = excluded.grades,
       body = excluded.body, ended_at = NULL, evidence = NULL;

-- attend --
UPDATE andon.supervisors SET lease_until = andon.now() + :lease_seconds::float8, body = :body
 WHERE id = :supervisor_id AND state = 'live'
RETURNING id;

-- dismiss --
UPDATE andon.supervisors SET state = :state, evidence = :evidence, ended_at = andon.now()
 WHERE id = :supervisor_id AND state IN ('live', 'silent') AND state <> :state
RETURNING id;

-- overdue_supervisors --
SELECT id FROM andon.supervisors
 WHERE state = 'live' AND lease_until < andon.now() AND id <> :supervisor_id
 LIMIT 8 FOR NO KEY UPDATE SKIP LOCKED;

-- targets_of_supervisor --
-- Targets that have to be ended from outside, and those of the supervisor itself.
SELECT t.stop_id, s.kind, t.target, t.run_id, t.worker, t.fence, t.stage = 'fenced', s.asked_by, s.why,
       t.mark, s.spare
  FROM andon.targets t JOIN andon.stops s ON s.id = t.stop_id
 WHERE t.supervisor = :supervisor_id AND t.ended_at IS NULL
   AND (t.stage = 'fenced' OR t.run_id IS NULL OR t.worker IS NULL)
 ORDER BY s.epoch, t.target;

-- next_window --
SELECT min(escalate_at) - andon.now() FROM andon.stops WHERE closed_at IS NULL;

-- supervisors --
SELECT id, host, boot, namespace, pid, start_ticks, home, state, lease_until, grades, body, started_at,
       ended_at, evidence
  FROM andon.supervisors WHERE state = 'live' OR ended_at >= :since::float8 ORDER BY started_at, id;

-- stall_worker --
UPDATE andon.workers SET stalled = :stalled
 WHERE id = :worker_id AND state = 'live' AND (stalled IS NULL) <> (:stalled::text IS NULL)
RETURNING id;

-- fence_mark --
-- The run is fenced already; a later order decides its state.
UPDATE andon.runs SET stop = :stop WHERE id = :run_id AND state = 'killed';

-- end_named_targets --
UPDATE andon.targets SET stage = :stage, evidence = :evidence, ended_at = andon.now()
 WHERE target = :target AND ended_at IS NULL
RETURNING stop_id;

-- graph_fence --
-- The row (on SQLite: the file) is locked already: no worker can claim the run before this commits.
SELECT 1 FROM andon.runs
 WHERE id = :run_id AND fence = :fence AND epoch = :epoch AND state = 'running'
   AND (SELECT epoch FROM andon.meta) = :epoch;

-- insert_piece --
INSERT INTO andon.graph_pieces (thread, name, body) VALUES (:thread, :name, :body)
ON CONFLICT (thread, name) DO NOTHING;

-- save_graph_checkpoint --
INSERT INTO andon.graph_checkpoints (thread, namespace, id, parent, kind, body, versions, metadata, graph_run)
VALUES (:thread, :namespace, :id, :parent, :kind, :body, :versions, :metadata, :graph_run)
ON CONFLICT (thread, namespace, id) DO UPDATE
   SET parent = excluded.parent, kind = excluded.kind, body = excluded.body,
       versions = excluded.versions, metadata = excluded.metadata, graph_run = excluded.graph_run;

-- save_graph_channel --
INSERT INTO andon.graph_channels (thread, namespace, channel, version, kind, body)
VALUES (:thread, :namespace, :channel, :version, :kind, :body)
ON CONFLICT (thread, namespace, channel, version) DO UPDATE
   SET kind = excluded.kind, body = excluded.body;

-- save_graph_write --
-- The first write counts; of special writes the last one.
INSERT INTO andon.graph_writes (thread, namespace, checkpoint, task, idx, channel, path, kind, body)
VALUES (:thread, :namespace, :checkpoint, :task, :idx, :channel, :path, :kind, :body)
ON CONFLICT (thread, namespace, checkpoint, task, idx) DO UPDATE
   SET channel = excluded.channel, path = excluded.path, kind = excluded.kind, body = excluded.body
 WHERE excluded.idx < 0;

-- graph_checkpoint --
SELECT thread, namespace, id, parent, kind, body, versions, metadata FROM andon.graph_checkpoints
 WHERE thread = :thread AND namespace = :namespace AND id = :id;

-- graph_latest --
SELECT thread, namespace, id, parent, kind, body, versions, metadata FROM andon.graph_checkpoints
 WHERE thread = :thread AND namespace = :namespace ORDER BY id DESC LIMIT 1;

-- graph_checkpoints --
SELECT thread, namespace, id, metadata FROM andon.graph_checkpoints
 WHERE thread = :thread AND (:namespace::text IS NULL OR namespace = :namespace)
   AND (:id::text IS NULL OR id = :id) AND (:before::text IS NULL OR id < :before)
 ORDER BY id DESC, namespace LIMIT :limit;

-- all_graph_checkpoints --
SELECT thread, namespace, id, metadata FROM andon.graph_checkpoints
 WHERE (:before::text IS NULL OR id < :before)
 ORDER BY id DESC, thread, namespace LIMIT :limit;

-- graph_checkpoints_of --
SELECT thread, namespace, id, metadata FROM andon.graph_checkpoints
 WHERE graph_run = ANY (ARRAY(SELECT jsonb_array_elements_text(:runs::text::jsonb))) ORDER BY thread, namespace, id;

-- graph_writes --
-- In the order in which LangGraph applies the writes of a step.
SELECT task, channel, kind, body FROM andon.graph_writes
 WHERE thread = :thread AND namespace = :namespace AND checkpoint = :id
 ORDER BY path, task, idx;

-- drop_graph_checkpoint --
DELETE FROM andon.graph_checkpoints WHERE thread = :thread AND namespace = :namespace AND id = :id;

-- drop_graph_writes --
DELETE FROM andon.graph_writes WHERE thread = :thread AND namespace = :namespace AND checkpoint = :id;

-- graph_versions --
SELECT namespace, versions FROM andon.graph_checkpoints WHERE thread = :thread;

-- graph_channel_keys --
SELECT namespace, channel, version FROM andon.graph_channels WHERE thread = :thread;

-- drop_graph_channel --
DELETE FROM andon.graph_channels
 WHERE thread = :thread AND namespace = :namespace AND channel = :channel AND version = :version;

-- graph_parted --
-- The values that are stored in pieces.
SELECT kind, body FROM andon.graph_channels WHERE thread = :thread AND kind IN ('@piece', '@list')
UNION ALL
SELECT kind, body FROM andon.graph_writes WHERE thread = :thread AND kind IN ('@piece', '@list');

-- drop_graph_piece --
DELETE FROM andon.graph_pieces WHERE thread = :thread AND name = :name;

-- drop_thread_checkpoints --
DELETE FROM andon.graph_checkpoints WHERE thread = :thread;

-- drop_thread_channels --
DELETE FROM andon.graph_channels WHERE thread = :thread;

-- drop_thread_writes --
DELETE FROM andon.graph_writes WHERE thread = :thread;

-- drop_thread_pieces --
DELETE FROM andon.graph_pieces WHERE thread = :thread;

-- copy_thread_checkpoints --
INSERT INTO andon.graph_checkpoints (thread, namespace, id, parent, kind, body, versions, metadata, graph_run)
SELECT :target::text, namespace, id, parent, kind, body, versions, metadata, graph_run
  FROM andon.graph_checkpoints WHERE thread = :source
ON CONFLICT (thread, namespace, id) DO NOTHING;

-- copy_thread_channels --
INSERT INTO andon.graph_channels (thread, namespace, channel, version, kind, body)
SELECT :target::text, namespace, channel, version, kind, body
  FROM andon.graph_channels WHERE thread = :source
ON CONFLICT (thread, namespace, channel, version) DO NOTHING;

-- copy_thread_writes --
INSERT INTO andon.graph_writes (thread, namespace, checkpoint, task, idx, channel, path, kind, body)
SELECT :target::text, namespace, checkpoint, task, idx, channel, path, kind, body
  FROM andon.graph_writes WHERE thread = :source
ON CONFLICT (thread, namespace, checkpoint, task, idx) DO NOTHING;

-- copy_thread_pieces --
INSERT INTO andon.graph_pieces (thread, name, body)
SELECT :target::text, name, body FROM andon.graph_pieces WHERE thread = :source
ON CONFLICT (thread, name) DO NOTHING;

-- deliver --
-- The counter changes even while the run executes, so that it cannot suspend and miss the message.
UPDATE andon.runs
   SET inbox = inbox + 1,
       returned = returned OR state = 'suspended',
       available_at = CASE WHEN state = 'suspended' THEN andon.now() ELSE available_at END,
       changed_at = CASE WHEN state = 'suspended' THEN andon.now() ELSE changed_at END,
       undo_at = CASE WHEN state = 'suspended' THEN
         andon.now() + {undo_within} ELSE undo_at END,
       state = CASE WHEN state = 'suspended' THEN 'queued' ELSE state END
 WHERE id = :run_id AND state NOT IN ('succeeded', 'failed', 'cancelled', 'dead')
RETURNING state;

-- waiting --
-- Runs that wait for a worker now, and stranded ones. Counted from the oldest on, up to a limit, as
-- the query is executed every few seconds.
SELECT state, queue, agent, version, count(*), greatest(0, andon.now() - min(available_at))
  FROM (SELECT * FROM (SELECT state, queue, agent, version, available_at FROM andon.runs
                        WHERE state = 'queued' AND available_at <= andon.now()
                        ORDER BY available_at LIMIT :limit) q
         UNION ALL
        SELECT * FROM (SELECT state, queue, agent, version, available_at FROM andon.runs
                        WHERE state = 'stranded' LIMIT :limit) s) w
 GROUP BY state, queue, agent, version ORDER BY state, queue, agent, version;

-- promote --
UPDATE andon.agents AS a
   SET promoted_at = greatest(andon.now(), coalesce((
         SELECT max(o.promoted_at) FROM andon.agents o WHERE o.name = a.name), 0) + 0.000001)
 WHERE version = :version AND (:name::text IS NULL OR name = :name)
RETURNING name;

-- register_agent --
-- The first registration of a version promotes it unless `promote` is false, at a time later than
-- every other promotion, even if the clock went back.
INSERT INTO andon.agents (name, version, queue, parameters, retries, registered_at, promoted_at, at_most,
                          rate, per_seconds, types)
VALUES (:name, :version, :queue, :parameters, :retries, andon.now(),
        CASE WHEN :promote::boolean THEN greatest(andon.now(), coalesce((
          SELECT max(promoted_at) FROM andon.agents WHERE name = :name), 0) + 0.000001) END,
        :at_most, :rate, :per_seconds, :types)
ON CONFLICT (name, version) DO UPDATE
   SET queue = excluded.queue, retries = excluded.retries, at_most = excluded.at_most,
       rate = excluded.rate, per_seconds = excluded.per_seconds, types = excluded.types
RETURNING parameters;

-- start_of_attempt --
-- The processes of the attempt carry this mark. From now on their end has to be checked.
UPDATE andon.attempts SET mark = :mark, threads = threads OR :threads::boolean, quiet = false
 WHERE run_id = :run_id AND fence = :fence;

-- settle_run --
-- A message that arrived since the run was read keeps it from being suspended: `inbox` is compared
-- after the row is locked, and deliver locks it too. In the same way a request to undo the run keeps
-- it from ending.
UPDATE andon.runs
   SET state = CASE WHEN :sleeps::boolean AND inbox > :seen_inbox THEN :awake_state
                    WHEN :over::boolean AND NOT :undone::boolean AND undoing IS NOT NULL
                    THEN 'queued' ELSE :state END,
       returned = CASE WHEN :keeps_place::boolean THEN returned ELSE
         (:returned::boolean OR (:sleeps::boolean AND inbox > :seen_inbox)
          OR (:over::boolean AND NOT :undone::boolean AND undoing IS NOT NULL)) END,
       worker = NULL,
       available_at = CASE WHEN :keeps_place::boolean THEN available_at
                           ELSE andon.now() + :delay_seconds::float8 END,
       changed_at = andon.now(), waits = :waits, wake_at = :wake_at, error = :error,
       failures = failures + :failed, fruitless = 0,
       trial = CASE WHEN :tried::boolean THEN NULL ELSE trial END,
       version = coalesce(:version, version),
       undoing = CASE WHEN :undone::boolean THEN NULL ELSE undoing END,
       undo_at = CASE WHEN :undo_later::boolean OR (:sleeps::boolean AND inbox > :seen_inbox)
                      THEN andon.now() + :delay_seconds::float8 + {undo_within} END,
       head_seq = coalesce(:seq::bigint, head_seq), head_hash = coalesce(:hash::text, head_hash)
 WHERE id = :run_id AND fence = :fence AND epoch = :epoch AND state = 'running'
   AND (SELECT epoch FROM andon.meta) = :epoch
   AND (:before::bigint IS NULL OR head_seq = :before::bigint)
RETURNING id, state, parent_id, stop;

-- Drains, versions, obligations, limits and events.

ALTER TABLE andon_workers ADD COLUMN concurrency INTEGER NOT NULL DEFAULT 0;
ALTER TABLE andon_workers ADD COLUMN drain_asked_at REAL;  -- somebody wants it to go
ALTER TABLE andon_workers ADD COLUMN draining_at REAL;     -- since then it takes nothing any more
ALTER TABLE andon_workers ADD COLUMN ended_at REAL;
ALTER TABLE andon_workers ADD COLUMN drain TEXT;           -- JSON: how the drain went
ALTER TABLE andon_workers ADD COLUMN queues TEXT;          -- JSON list; of all queues if not given
CREATE INDEX andon_workers_ended ON andon_workers (ended_at) WHERE ended_at IS NOT NULL;

ALTER TABLE andon_runs ADD COLUMN undoing TEXT;            -- JSON: why its effects are to be undone
ALTER TABLE andon_runs ADD COLUMN undo_at REAL;            -- when they will be, if nobody resumes it
ALTER TABLE andon_runs ADD COLUMN trial TEXT;              -- JSON: the version it came from, until the new one fits
CREATE INDEX andon_runs_undo ON andon_runs (undo_at) WHERE undo_at IS NOT NULL;
CREATE INDEX andon_runs_recalled ON andon_runs (worker) WHERE undoing IS NOT NULL AND state = 'running';

CREATE INDEX andon_runs_stranded ON andon_runs (agent, version) WHERE state = 'stranded';

ALTER TABLE andon_effects ADD COLUMN undo TEXT;            -- the function that undoes it
ALTER TABLE andon_effects ADD COLUMN undo_within REAL;
CREATE INDEX andon_effects_owed ON andon_effects (run_id)
 WHERE undo IS NOT NULL AND state IN ('confirmed', 'undoing');

ALTER TABLE andon_agents ADD COLUMN promoted_at REAL;
UPDATE andon_agents SET promoted_at = registered_at;
-- What its code says about the agent; the promoted version's word is in the limits.
ALTER TABLE andon_agents ADD COLUMN at_most INTEGER;
ALTER TABLE andon_agents ADD COLUMN rate INTEGER;
ALTER TABLE andon_agents ADD COLUMN per_seconds REAL;

CREATE INDEX andon_attempts_worker ON andon_attempts (worker, claimed_at);

CREATE TABLE andon_limits (
  scope TEXT NOT NULL,  -- queue, agent, label
  name TEXT NOT NULL,
  at_most INTEGER,      -- runs at once
  rate INTEGER,         -- runs begun
  per_seconds REAL,     -- in that time
  set_by TEXT NOT NULL,
  set_at REAL NOT NULL,
  PRIMARY KEY (scope, name)
) STRICT;

CREATE TABLE andon_buckets (
  scope TEXT NOT NULL,
  name TEXT NOT NULL,
  value TEXT NOT NULL,  -- of a label; else empty
  unspent REAL NOT NULL,
  filled_at REAL NOT NULL,
  PRIMARY KEY (scope, name, value)
) STRICT;

CREATE TABLE andon_events (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  at REAL NOT NULL,
  kind TEXT NOT NULL,
  run_id TEXT,
  worker TEXT,
  body TEXT NOT NULL  -- JSON
) STRICT;
CREATE INDEX andon_events_at ON andon_events (at);
CREATE INDEX andon_events_version ON andon_events (id) WHERE kind IN ('version.stranded', 'version.carried');

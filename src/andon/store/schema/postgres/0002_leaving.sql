-- Drains, versions, obligations, limits and events.

ALTER TABLE andon.workers ADD COLUMN concurrency bigint NOT NULL DEFAULT 0;
ALTER TABLE andon.workers ADD COLUMN drain_asked_at double precision;  -- somebody wants it to go
ALTER TABLE andon.workers ADD COLUMN draining_at double precision;     -- since then it takes nothing any more
ALTER TABLE andon.workers ADD COLUMN ended_at double precision;
ALTER TABLE andon.workers ADD COLUMN drain text;           -- JSON: how the drain went
ALTER TABLE andon.workers ADD COLUMN queues text;          -- JSON list; of all queues if not given
CREATE INDEX workers_ended ON andon.workers (ended_at) WHERE ended_at IS NOT NULL;

ALTER TABLE andon.runs ADD COLUMN undoing text;            -- JSON: why its effects are to be undone
ALTER TABLE andon.runs ADD COLUMN undo_at double precision;            -- when they will be, if nobody resumes it
ALTER TABLE andon.runs ADD COLUMN trial text;              -- JSON: the version it came from, until the new one fits
CREATE INDEX runs_undo ON andon.runs (undo_at) WHERE undo_at IS NOT NULL;
CREATE INDEX runs_recalled ON andon.runs (worker) WHERE undoing IS NOT NULL AND state = 'running';

CREATE INDEX runs_stranded ON andon.runs (agent, version) WHERE state = 'stranded';

-- For `look` alone: a claim that used it would have to sort the queue, and does not say > 0.
DROP INDEX andon.runs_available;
CREATE INDEX runs_available ON andon.runs (available_at) WHERE state = 'queued' AND available_at > 0;

ALTER TABLE andon.effects ADD COLUMN undo text;            -- the function that undoes it
ALTER TABLE andon.effects ADD COLUMN undo_within double precision;
CREATE INDEX effects_owed ON andon.effects (run_id)
 WHERE undo IS NOT NULL AND state IN ('confirmed', 'undoing');

ALTER TABLE andon.agents ADD COLUMN promoted_at double precision;
UPDATE andon.agents SET promoted_at = registered_at;
-- What its code says about the agent; the promoted version's word is in the limits.
ALTER TABLE andon.agents ADD COLUMN at_most bigint;
ALTER TABLE andon.agents ADD COLUMN rate bigint;
ALTER TABLE andon.agents ADD COLUMN per_seconds double precision;

CREATE INDEX attempts_worker ON andon.attempts (worker, claimed_at);

CREATE TABLE andon.limits (
  scope text NOT NULL,  -- queue, agent, label
  name text NOT NULL,
  at_most bigint,      -- runs at once
  rate bigint,         -- runs begun
  per_seconds double precision,     -- in that time
  set_by text NOT NULL,
  set_at double precision NOT NULL,
  PRIMARY KEY (scope, name)
);

CREATE TABLE andon.buckets (
  scope text NOT NULL,
  name text NOT NULL,
  value text NOT NULL,  -- of a label; else empty
  unspent double precision NOT NULL,
  filled_at double precision NOT NULL,
  PRIMARY KEY (scope, name, value)
);

CREATE TABLE andon.events (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at double precision NOT NULL,
  kind text NOT NULL,
  run_id text,
  worker text,
  body text NOT NULL  -- JSON
);
CREATE INDEX events_at ON andon.events (at);
CREATE INDEX events_version ON andon.events (id) WHERE kind IN ('version.stranded', 'version.carried');

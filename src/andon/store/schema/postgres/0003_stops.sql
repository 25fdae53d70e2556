-- Stops: orders, their targets, supervisors.

ALTER TABLE andon.runs ADD COLUMN stop text;         -- JSON: the order that is stopping it, until that is proved
ALTER TABLE andon.runs ADD COLUMN containment text;  -- JSON: how surely it could be stopped when it was last claimed

ALTER TABLE andon.attempts ADD COLUMN quiet boolean NOT NULL DEFAULT false;  -- nothing of it executes, its worker says

ALTER TABLE andon.workers ADD COLUMN supervisor text;   -- the parent of its process
ALTER TABLE andon.workers ADD COLUMN containment text;  -- JSON
ALTER TABLE andon.workers ADD COLUMN progress text;     -- JSON: what it was doing at its last heartbeat
ALTER TABLE andon.workers ADD COLUMN beaten_at double precision;
ALTER TABLE andon.workers ADD COLUMN stalled text;      -- JSON: since when, why, and the evidence

CREATE TABLE andon.stops (
  id text NOT NULL PRIMARY KEY,
  epoch bigint NOT NULL UNIQUE,  -- grows with every order
  kind text NOT NULL,             -- pause, cancel, kill, halt
  scope text NOT NULL,            -- run, agent, label, fleet
  name text NOT NULL,
  value text NOT NULL,            -- of a label; else empty
  within double precision NOT NULL,
  asked_by text NOT NULL,
  why text NOT NULL,
  via text NOT NULL,
  asked_at double precision NOT NULL,
  escalate_at double precision,               -- when it becomes hard by itself
  closed_at double precision,                 -- since then every target is proved, or cannot be
  latched boolean NOT NULL,       -- it holds its scope until it is lifted
  lifted_at double precision,
  lifted_by text,
  lifted_why text,
  waiting bigint NOT NULL DEFAULT 0,  -- runs it reached that nobody executed
  body text NOT NULL DEFAULT '{}'      -- JSON: what supervisors measured
);
CREATE INDEX stops_latched ON andon.stops (epoch) WHERE latched AND lifted_at IS NULL;
CREATE INDEX stops_open ON andon.stops (escalate_at) WHERE closed_at IS NULL;

CREATE TABLE andon.targets (
  stop_id text NOT NULL,
  target text NOT NULL,  -- run:ID, worker:ID or supervisor:ID
  run_id text,
  worker text,
  supervisor text,
  fence bigint NOT NULL DEFAULT 0,
  stage text NOT NULL,
  evidence text,
  requested_at double precision NOT NULL,
  acknowledged_at double precision,
  fenced_at double precision,
  ended_at double precision,         -- verified, or given up as unproved
  PRIMARY KEY (stop_id, target)
);
CREATE INDEX targets_worker ON andon.targets (worker);
CREATE INDEX targets_run ON andon.targets (run_id) WHERE ended_at IS NULL;
CREATE INDEX targets_supervisor ON andon.targets (supervisor) WHERE ended_at IS NULL;

CREATE TABLE andon.supervisors (
  id text NOT NULL PRIMARY KEY,
  host text NOT NULL,
  boot text NOT NULL,
  namespace text NOT NULL,
  pid bigint NOT NULL,
  start_ticks bigint NOT NULL,
  home text NOT NULL,
  state text NOT NULL,   -- live, gone, dead, silent
  lease_until double precision NOT NULL,
  grades text NOT NULL,  -- JSON: how surely it can kill, pause, and be survived by nothing
  body text NOT NULL DEFAULT '{}',  -- JSON: its children, its latch
  started_at double precision NOT NULL,
  ended_at double precision,
  evidence text
);
CREATE INDEX supervisors_live ON andon.supervisors (lease_until) WHERE state = 'live';

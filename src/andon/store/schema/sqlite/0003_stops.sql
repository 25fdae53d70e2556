-- Stops: orders, their targets, supervisors.

ALTER TABLE andon_runs ADD COLUMN stop TEXT;         -- JSON: the order that is stopping it, until that is proved
ALTER TABLE andon_runs ADD COLUMN containment TEXT;  -- JSON: how surely it could be stopped when it was last claimed

ALTER TABLE andon_attempts ADD COLUMN quiet INTEGER NOT NULL DEFAULT 0;  -- nothing of it executes, its worker says

ALTER TABLE andon_workers ADD COLUMN supervisor TEXT;   -- the parent of its process
ALTER TABLE andon_workers ADD COLUMN containment TEXT;  -- JSON
ALTER TABLE andon_workers ADD COLUMN progress TEXT;     -- JSON: what it was doing at its last heartbeat
ALTER TABLE andon_workers ADD COLUMN beaten_at REAL;
ALTER TABLE andon_workers ADD COLUMN stalled TEXT;      -- JSON: since when, why, and the evidence

CREATE TABLE andon_stops (
  id TEXT NOT NULL PRIMARY KEY,
  epoch INTEGER NOT NULL UNIQUE,  -- grows with every order
  kind TEXT NOT NULL,             -- pause, cancel, kill, halt
  scope TEXT NOT NULL,            -- run, agent, label, fleet
  name TEXT NOT NULL,
  value TEXT NOT NULL,            -- of a label; else empty
  within REAL NOT NULL,
  asked_by TEXT NOT NULL,
  why TEXT NOT NULL,
  via TEXT NOT NULL,
  asked_at REAL NOT NULL,
  escalate_at REAL,               -- when it becomes hard by itself
  closed_at REAL,                 -- since then every target is proved, or cannot be
  latched INTEGER NOT NULL,       -- it holds its scope until it is lifted
  lifted_at REAL,
  lifted_by TEXT,
  lifted_why TEXT,
  waiting INTEGER NOT NULL DEFAULT 0,  -- runs it reached that nobody executed
  body TEXT NOT NULL DEFAULT '{}'      -- JSON: what supervisors measured
) STRICT;
CREATE INDEX andon_stops_latched ON andon_stops (epoch) WHERE latched AND lifted_at IS NULL;
CREATE INDEX andon_stops_open ON andon_stops (escalate_at) WHERE closed_at IS NULL;

CREATE TABLE andon_targets (
  stop_id TEXT NOT NULL,
  target TEXT NOT NULL,  -- run:ID, worker:ID or supervisor:ID
  run_id TEXT,
  worker TEXT,
  supervisor TEXT,
  fence INTEGER NOT NULL DEFAULT 0,
  stage TEXT NOT NULL,
  evidence TEXT,
  requested_at REAL NOT NULL,
  acknowledged_at REAL,
  fenced_at REAL,
  ended_at REAL,         -- verified, or given up as unproved
  PRIMARY KEY (stop_id, target)
) STRICT;
CREATE INDEX andon_targets_worker ON andon_targets (worker);
CREATE INDEX andon_targets_run ON andon_targets (run_id) WHERE ended_at IS NULL;
CREATE INDEX andon_targets_supervisor ON andon_targets (supervisor) WHERE ended_at IS NULL;

CREATE TABLE andon_supervisors (
  id TEXT NOT NULL PRIMARY KEY,
  host TEXT NOT NULL,
  boot TEXT NOT NULL,
  namespace TEXT NOT NULL,
  pid INTEGER NOT NULL,
  start_ticks INTEGER NOT NULL,
  home TEXT NOT NULL,
  state TEXT NOT NULL,   -- live, gone, dead, silent
  lease_until REAL NOT NULL,
  grades TEXT NOT NULL,  -- JSON: how surely it can kill, pause, and be survived by nothing
  body TEXT NOT NULL DEFAULT '{}',  -- JSON: its children, its latch
  started_at REAL NOT NULL,
  ended_at REAL,
  evidence TEXT
) STRICT;
CREATE INDEX andon_supervisors_live ON andon_supervisors (lease_until) WHERE state = 'live';

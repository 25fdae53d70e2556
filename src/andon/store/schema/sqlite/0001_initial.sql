-- Times are seconds since 1970 by this machine's clock, which is the store's.

CREATE TABLE andon_meta (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  epoch INTEGER NOT NULL,
  identity TEXT NOT NULL,
  created_at REAL NOT NULL
) STRICT;

CREATE TABLE andon_runs (
  id TEXT NOT NULL PRIMARY KEY,
  agent TEXT NOT NULL,
  version TEXT NOT NULL,
  queue TEXT NOT NULL,
  state TEXT NOT NULL,
  priority INTEGER NOT NULL,
  returned INTEGER NOT NULL DEFAULT 0,
  available_at REAL NOT NULL,
  labels TEXT NOT NULL,
  parent_id TEXT,
  root_id TEXT NOT NULL,
  attempt INTEGER NOT NULL DEFAULT 0,
  failures INTEGER NOT NULL DEFAULT 0,
  interruptions INTEGER NOT NULL DEFAULT 0,
  fruitless INTEGER NOT NULL DEFAULT 0,
  epoch INTEGER NOT NULL DEFAULT 0,
  fence INTEGER NOT NULL DEFAULT 0,
  worker TEXT,
  head_seq INTEGER NOT NULL,
  head_hash TEXT NOT NULL,
  progress_seq INTEGER NOT NULL DEFAULT 0,  -- head when a step last finished
  claimed_seq INTEGER NOT NULL DEFAULT 0,   -- progress_seq when it was last claimed
  inbox INTEGER NOT NULL DEFAULT 0,         -- messages ever delivered
  waits TEXT,
  wake_at REAL,
  step TEXT,
  error TEXT,
  created_at REAL NOT NULL,
  changed_at REAL NOT NULL
) STRICT;
CREATE INDEX andon_runs_queued ON andon_runs (returned DESC, priority DESC, available_at, id) WHERE state = 'queued';
CREATE INDEX andon_runs_available ON andon_runs (available_at) WHERE state = 'queued';
CREATE INDEX andon_runs_held ON andon_runs (worker) WHERE worker IS NOT NULL;
CREATE INDEX andon_runs_due ON andon_runs (wake_at) WHERE state = 'suspended' AND wake_at IS NOT NULL;
CREATE INDEX andon_runs_created ON andon_runs (created_at DESC, id DESC);
CREATE INDEX andon_runs_parent ON andon_runs (parent_id) WHERE parent_id IS NOT NULL;

CREATE TABLE andon_journal (
  run_id TEXT NOT NULL,
  seq INTEGER NOT NULL,
  kind TEXT NOT NULL,
  state TEXT NOT NULL,
  place TEXT NOT NULL,
  name TEXT NOT NULL,
  key TEXT,
  digest TEXT NOT NULL,
  body TEXT,
  blob TEXT,
  fence INTEGER NOT NULL,
  since REAL NOT NULL,
  at REAL NOT NULL,
  hash TEXT NOT NULL,
  -- A rowid table on purpose: rows of all runs go to the same last pages, so that a batch of a
  -- hundred runs dirties a few pages and not a hundred.
  PRIMARY KEY (run_id, seq)
) STRICT;
CREATE INDEX andon_journal_snapshots ON andon_journal (run_id, seq) WHERE kind = 'snapshot';

CREATE TABLE andon_effects (
  run_id TEXT NOT NULL,
  name TEXT NOT NULL,
  key TEXT NOT NULL,
  place TEXT NOT NULL,
  kind TEXT NOT NULL,
  state TEXT NOT NULL,
  seq INTEGER NOT NULL,
  fence INTEGER NOT NULL,
  quiet INTEGER NOT NULL,
  PRIMARY KEY (run_id, name, key)
) STRICT;
CREATE INDEX andon_effects_open ON andon_effects (run_id) WHERE state IN ('started', 'in_doubt');

CREATE TABLE andon_blobs (
  name TEXT NOT NULL PRIMARY KEY,
  body TEXT NOT NULL
) STRICT;

CREATE TABLE andon_checkpoints (
  run_id TEXT NOT NULL,
  op TEXT NOT NULL,
  body TEXT NOT NULL,
  at REAL NOT NULL,
  PRIMARY KEY (run_id, op)
) STRICT;

CREATE TABLE andon_inbox (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  run_id TEXT NOT NULL,
  kind TEXT NOT NULL,
  name TEXT NOT NULL,
  body TEXT NOT NULL,
  message_id TEXT NOT NULL,
  at REAL NOT NULL,
  taken INTEGER NOT NULL DEFAULT 0,
  UNIQUE (run_id, message_id)
) STRICT;
CREATE INDEX andon_inbox_new ON andon_inbox (run_id, id) WHERE taken = 0;

CREATE TABLE andon_asks (
  run_id TEXT NOT NULL,
  id TEXT NOT NULL,
  about TEXT NOT NULL,
  question TEXT NOT NULL,
  value TEXT,
  choices TEXT NOT NULL,
  asked_at REAL NOT NULL,
  expires_at REAL,
  answer TEXT,
  answered_at REAL,
  PRIMARY KEY (run_id, id)
) STRICT;
CREATE INDEX andon_asks_open ON andon_asks (asked_at) WHERE answered_at IS NULL;

CREATE TABLE andon_attempts (
  run_id TEXT NOT NULL,
  fence INTEGER NOT NULL,
  number INTEGER NOT NULL,
  worker TEXT NOT NULL,
  claim INTEGER NOT NULL DEFAULT 0,  -- the worker's number of the claim that began it
  claimed_at REAL NOT NULL,
  ended_at REAL,
  ending TEXT,
  PRIMARY KEY (run_id, fence)
) STRICT;

CREATE TABLE andon_workers (
  id TEXT NOT NULL PRIMARY KEY,
  host TEXT NOT NULL,
  boot TEXT NOT NULL,
  namespace TEXT NOT NULL,
  pid INTEGER NOT NULL,
  start_ticks INTEGER NOT NULL,
  lock TEXT,
  state TEXT NOT NULL,  -- live, gone (it said so), dead (certainly), silent (its lease ended)
  evidence TEXT,
  lease_until REAL NOT NULL,
  contact_since REAL NOT NULL,
  agents TEXT NOT NULL,
  started_at REAL NOT NULL
) STRICT;
CREATE INDEX andon_workers_live ON andon_workers (lease_until) WHERE state IN ('live', 'silent');

CREATE TABLE andon_agents (
  name TEXT NOT NULL,
  version TEXT NOT NULL,
  queue TEXT NOT NULL,
  parameters TEXT NOT NULL,
  retries INTEGER NOT NULL,
  registered_at REAL NOT NULL,
  PRIMARY KEY (name, version)
) STRICT;

CREATE TABLE andon_logs (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  run_id TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  at REAL NOT NULL,
  level TEXT NOT NULL,
  text TEXT NOT NULL
) STRICT;
CREATE INDEX andon_logs_of_run ON andon_logs (run_id, id);

-- Everything lives in the schema andon, so that no name clashes with the user's tables.
-- Text that is compared or ordered has the collation "C": the order of Python and SQLite.

-- IF NOT EXISTS would ask for the right to create schemas even where an administrator made this one.
DO $$ BEGIN
  IF to_regnamespace('andon') IS NULL THEN CREATE SCHEMA andon; END IF;
END $$;

-- Times are seconds since 1970 by the server's clock. As (SELECT andon.now()) a query reads it once
-- and may use an index on the answer.
CREATE FUNCTION andon.now() RETURNS double precision LANGUAGE sql VOLATILE
  AS $$ SELECT extract(epoch FROM clock_timestamp())::double precision $$;

CREATE TABLE andon.schema (version INTEGER NOT NULL);
INSERT INTO andon.schema VALUES (0);

CREATE TABLE andon.meta (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  epoch BIGINT NOT NULL,
  identity TEXT NOT NULL,
  created_at DOUBLE PRECISION NOT NULL
);

-- A third of each page stays free, and no index knows head_seq, head_hash, step or progress_seq: an
-- append then changes the row within its page and no index (a HOT update).
CREATE TABLE andon.runs (
  id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  agent TEXT COLLATE "C" NOT NULL,
  version TEXT COLLATE "C" NOT NULL,
  queue TEXT COLLATE "C" NOT NULL,
  state TEXT COLLATE "C" NOT NULL,
  priority BIGINT NOT NULL,
  returned BOOLEAN NOT NULL DEFAULT false,
  available_at DOUBLE PRECISION NOT NULL,
  labels TEXT NOT NULL,
  parent_id TEXT COLLATE "C",
  root_id TEXT COLLATE "C" NOT NULL,
  attempt BIGINT NOT NULL DEFAULT 0,
  failures BIGINT NOT NULL DEFAULT 0,
  interruptions BIGINT NOT NULL DEFAULT 0,
  fruitless BIGINT NOT NULL DEFAULT 0,
  epoch BIGINT NOT NULL DEFAULT 0,
  fence BIGINT NOT NULL DEFAULT 0,
  worker TEXT COLLATE "C",
  head_seq BIGINT NOT NULL,
  head_hash TEXT NOT NULL,
  progress_seq BIGINT NOT NULL DEFAULT 0,  -- head when a step last finished
  claimed_seq BIGINT NOT NULL DEFAULT 0,   -- progress_seq when it was last claimed
  inbox BIGINT NOT NULL DEFAULT 0,         -- messages ever delivered
  waits TEXT,
  wake_at DOUBLE PRECISION,
  step TEXT,
  error TEXT,
  created_at DOUBLE PRECISION NOT NULL,
  changed_at DOUBLE PRECISION NOT NULL
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX runs_queued ON andon.runs (returned DESC, priority DESC, available_at, id) WHERE state = 'queued';
CREATE INDEX runs_available ON andon.runs (available_at) WHERE state = 'queued';
CREATE INDEX runs_held ON andon.runs (worker) WHERE worker IS NOT NULL;
CREATE INDEX runs_due ON andon.runs (wake_at) WHERE state = 'suspended' AND wake_at IS NOT NULL;
CREATE INDEX runs_created ON andon.runs (created_at DESC, id DESC);
CREATE INDEX runs_parent ON andon.runs (parent_id) WHERE parent_id IS NOT NULL;

CREATE TABLE andon.journal (
  run_id TEXT COLLATE "C" NOT NULL,
  seq BIGINT NOT NULL,
  kind TEXT NOT NULL,
  state TEXT NOT NULL,
  place TEXT NOT NULL,
  name TEXT NOT NULL,
  key TEXT,
  digest TEXT NOT NULL,
  body TEXT,
  blob TEXT,
  fence BIGINT NOT NULL,
  since DOUBLE PRECISION NOT NULL,
  at DOUBLE PRECISION NOT NULL,
  hash TEXT NOT NULL,
  PRIMARY KEY (run_id, seq)
);
CREATE INDEX journal_snapshots ON andon.journal (run_id, seq) WHERE kind = 'snapshot';

CREATE TABLE andon.effects (
  run_id TEXT COLLATE "C" NOT NULL,
  name TEXT COLLATE "C" NOT NULL,
  key TEXT COLLATE "C" NOT NULL,
  place TEXT NOT NULL,
  kind TEXT NOT NULL,
  state TEXT NOT NULL,
  seq BIGINT NOT NULL,
  fence BIGINT NOT NULL,
  quiet BOOLEAN NOT NULL,
  PRIMARY KEY (run_id, name, key)
) WITH (fillfactor = 80);
CREATE INDEX effects_open ON andon.effects (run_id) WHERE state IN ('started', 'in_doubt');

CREATE TABLE andon.blobs (
  name TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  body TEXT NOT NULL
);

CREATE TABLE andon.checkpoints (
  run_id TEXT COLLATE "C" NOT NULL,
  op TEXT COLLATE "C" NOT NULL,
  body TEXT NOT NULL,
  at DOUBLE PRECISION NOT NULL,
  PRIMARY KEY (run_id, op)
) WITH (fillfactor = 50);

CREATE TABLE andon.inbox (
  id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  run_id TEXT COLLATE "C" NOT NULL,
  kind TEXT NOT NULL,
  name TEXT NOT NULL,
  body TEXT NOT NULL,
  message_id TEXT COLLATE "C" NOT NULL,
  at DOUBLE PRECISION NOT NULL,
  taken BOOLEAN NOT NULL DEFAULT false,
  UNIQUE (run_id, message_id)
);
CREATE INDEX inbox_new ON andon.inbox (run_id, id) WHERE NOT taken;

CREATE TABLE andon.asks (
  run_id TEXT COLLATE "C" NOT NULL,
  id TEXT COLLATE "C" NOT NULL,
  about TEXT NOT NULL,
  question TEXT NOT NULL,
  value TEXT,
  choices TEXT NOT NULL,
  asked_at DOUBLE PRECISION NOT NULL,
  expires_at DOUBLE PRECISION,
  answer TEXT,
  answered_at DOUBLE PRECISION,
  PRIMARY KEY (run_id, id)
);
CREATE INDEX asks_open ON andon.asks (asked_at) WHERE answered_at IS NULL;

CREATE TABLE andon.attempts (
  run_id TEXT COLLATE "C" NOT NULL,
  fence BIGINT NOT NULL,
  number BIGINT NOT NULL,
  worker TEXT COLLATE "C" NOT NULL,
  claim BIGINT NOT NULL DEFAULT 0,  -- the worker's number of the claim that began it
  claimed_at DOUBLE PRECISION NOT NULL,
  ended_at DOUBLE PRECISION,
  ending TEXT,
  PRIMARY KEY (run_id, fence)
) WITH (fillfactor = 80);

CREATE TABLE andon.workers (
  id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  host TEXT NOT NULL,
  boot TEXT NOT NULL,
  namespace TEXT NOT NULL,
  pid BIGINT NOT NULL,
  start_ticks BIGINT NOT NULL,
  lock TEXT,
  state TEXT NOT NULL,  -- live, gone (it said so), dead (certainly), silent (its lease ended)
  evidence TEXT,
  lease_until DOUBLE PRECISION NOT NULL,
  contact_since DOUBLE PRECISION NOT NULL,
  agents TEXT NOT NULL,
  started_at DOUBLE PRECISION NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
-- By state only: a heartbeat changes lease_until and must not change an index.
CREATE INDEX workers_live ON andon.workers (id) WHERE state IN ('live', 'silent');

CREATE TABLE andon.agents (
  name TEXT COLLATE "C" NOT NULL,
  version TEXT COLLATE "C" NOT NULL,
  queue TEXT NOT NULL,
  parameters TEXT NOT NULL,
  retries BIGINT NOT NULL,
  registered_at DOUBLE PRECISION NOT NULL,
  PRIMARY KEY (name, version)
);

CREATE TABLE andon.logs (
  id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  run_id TEXT COLLATE "C" NOT NULL,
  attempt BIGINT NOT NULL,
  at DOUBLE PRECISION NOT NULL,
  level TEXT NOT NULL,
  text TEXT NOT NULL
);
CREATE INDEX logs_of_run ON andon.logs (run_id, id);

-- What LangGraph saves of its threads. Large values are in pieces, under the hash of their content.

CREATE TABLE andon.graph_checkpoints (
  thread text COLLATE "C" NOT NULL,
  namespace text COLLATE "C" NOT NULL,
  id text COLLATE "C" NOT NULL,  -- they sort by age
  parent text,
  kind text NOT NULL,      -- of the body: what the serializer calls it
  body bytea NOT NULL,
  versions text NOT NULL,  -- JSON object: channel → version
  metadata text NOT NULL,  -- JSON object
  graph_run text COLLATE "C",  -- LangGraph's run_id
  PRIMARY KEY (thread, namespace, id)
);
CREATE INDEX graph_checkpoints_run ON andon.graph_checkpoints (graph_run) WHERE graph_run IS NOT NULL;

CREATE TABLE andon.graph_channels (
  thread text COLLATE "C" NOT NULL,
  namespace text COLLATE "C" NOT NULL,
  channel text COLLATE "C" NOT NULL,
  version text COLLATE "C" NOT NULL,
  kind text NOT NULL,      -- of the body; @piece and @list: see core/values/pieces.py
  body bytea NOT NULL,
  PRIMARY KEY (thread, namespace, channel, version)
);

CREATE TABLE andon.graph_writes (
  thread text COLLATE "C" NOT NULL,
  namespace text COLLATE "C" NOT NULL,
  checkpoint text COLLATE "C" NOT NULL,
  task text COLLATE "C" NOT NULL,
  idx bigint NOT NULL,     -- below 0: special, the last one counts
  channel text NOT NULL,
  path text COLLATE "C" NOT NULL,
  kind text NOT NULL,
  body bytea NOT NULL,
  PRIMARY KEY (thread, namespace, checkpoint, task, idx)
);

CREATE TABLE andon.graph_pieces (
  thread text COLLATE "C" NOT NULL,
  name bytea NOT NULL,
  body bytea NOT NULL,
  PRIMARY KEY (thread, name)
);

-- What LangGraph saves of its threads. Large values are in pieces, under the hash of their content.

CREATE TABLE andon_graph_checkpoints (
  thread TEXT NOT NULL,
  namespace TEXT NOT NULL,
  id TEXT NOT NULL,        -- they sort by age
  parent TEXT,
  kind TEXT NOT NULL,      -- of the body: what the serializer calls it
  body BLOB NOT NULL,
  versions TEXT NOT NULL,  -- JSON object: channel → version
  metadata TEXT NOT NULL,  -- JSON object
  graph_run TEXT,          -- LangGraph's run_id
  PRIMARY KEY (thread, namespace, id)
) STRICT;
CREATE INDEX andon_graph_checkpoints_run ON andon_graph_checkpoints (graph_run) WHERE graph_run IS NOT NULL;

-- Rows of these two are small; as an index by themselves they need no other.
CREATE TABLE andon_graph_channels (
  thread TEXT NOT NULL,
  namespace TEXT NOT NULL,
  channel TEXT NOT NULL,
  version TEXT NOT NULL,
  kind TEXT NOT NULL,      -- of the body; @piece and @list: see core/values/pieces.py
  body BLOB NOT NULL,
  PRIMARY KEY (thread, namespace, channel, version)
) STRICT, WITHOUT ROWID;

CREATE TABLE andon_graph_writes (
  thread TEXT NOT NULL,
  namespace TEXT NOT NULL,
  checkpoint TEXT NOT NULL,
  task TEXT NOT NULL,
  idx INTEGER NOT NULL,    -- below 0: special, the last one counts
  channel TEXT NOT NULL,
  path TEXT NOT NULL,
  kind TEXT NOT NULL,
  body BLOB NOT NULL,
  PRIMARY KEY (thread, namespace, checkpoint, task, idx)
) STRICT, WITHOUT ROWID;

-- Not so these: from 1000 bytes on a row without a rowid takes a page by itself.
CREATE TABLE andon_graph_pieces (
  thread TEXT NOT NULL,
  name BLOB NOT NULL,
  body BLOB NOT NULL,
  PRIMARY KEY (thread, name)
) STRICT;

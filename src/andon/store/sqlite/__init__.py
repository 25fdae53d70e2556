"""The SQLite store: one local file, no server, accessed through apsw."""

"""The PostgreSQL store, for more than one machine. It needs the driver psycopg, an extra."""

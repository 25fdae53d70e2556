"""SQL logic shared by both databases, one module per noun; dialects differ only in the queries."""

"""What both databases do with messages: named queries, one file per noun."""

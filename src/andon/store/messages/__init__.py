"""Messages to a store and the rows that it answers. Values only."""

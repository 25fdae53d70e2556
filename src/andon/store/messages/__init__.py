"""Messages to a store and the rows it returns. Modules here hold values only, no I/O."""

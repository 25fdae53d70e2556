"""The command line: parses, calls one function of `control`, prints. Nothing else prints."""

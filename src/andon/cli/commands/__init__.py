"""The commands, one file per section of `andon --help`; each parses, calls `control` and prints."""

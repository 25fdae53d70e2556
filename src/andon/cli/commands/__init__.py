"""The commands, one file for each section of `andon --help`."""

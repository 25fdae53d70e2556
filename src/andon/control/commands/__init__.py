"""The commands of the command line, a file for each section of `andon --help`."""

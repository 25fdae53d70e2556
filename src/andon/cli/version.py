"""The version, as a constant: asking the installed package for it takes 50 ms."""

VERSION = "0.1.0"

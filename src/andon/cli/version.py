"""The version, as a constant: reading it from the installed package takes 50 ms."""

VERSION = "0.1.0"

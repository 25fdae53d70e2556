"""Decisions about workers, supervised processes and deploys. Pure, like all of `core`."""

"""Decisions about workers, supervised processes and deploys; pure, like all of `core`."""

"""Stored values: strict JSON, split into content-addressed pieces when they are large."""

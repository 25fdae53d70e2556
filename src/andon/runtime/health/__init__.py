"""Probes and metrics of a worker over HTTP."""

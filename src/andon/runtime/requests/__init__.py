"""Requests of programs about runs: plain calls on a store, shared by the Client and control.

A rule about a request lives here once; its callers add none.
"""

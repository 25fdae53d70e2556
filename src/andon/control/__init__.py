"""Queries and commands of the control plane, one module per noun.

Functions take values and return values. They print nothing and know nothing of HTTP: the command
line and the server translate.
"""

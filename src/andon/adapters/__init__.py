"""Adapters for agent frameworks, one file or folder each.

Nothing else in andon imports a framework, and nothing else imports this package.
"""

"""Frameworks by name, one file each: what they call, in andon's words.

Nothing else in andon imports a framework, and nothing else imports this package.
"""

"""Checks of this host and its store (`andon doctor`), and a rehearsal of the halt (`andon drill`).

Nothing here changes the user's runs: checks roll back their writes, and a drill runs in a folder of
its own.
"""

"""Fault injection for andon, in layers, with a canary for each fault a layer has to catch."""

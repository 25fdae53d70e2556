"""`andon top`: the fleet on a screen, redrawn while it changes."""

"""`andon work` and `andon run`: a worker in the foreground of a terminal or container."""

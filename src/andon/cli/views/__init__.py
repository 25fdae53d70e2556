"""Views of what `control` returns, for the terminal, one file per noun; views only print."""

"""`andon top`: the fleet on a screen, redrawn as it changes; `frame` is pure layout."""

"""How answers of `control` look on a terminal, one file per noun."""

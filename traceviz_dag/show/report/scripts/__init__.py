"""The page's own scripts and style sheet: data of this package, joined by ``bundle``."""

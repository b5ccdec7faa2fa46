"""Questions with checkable answers, for whoever answers them by the tools; ``score.py`` is the program."""

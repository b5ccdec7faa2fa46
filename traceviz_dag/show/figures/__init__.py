"""The figures, a file a kind."""

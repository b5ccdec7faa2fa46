"""Foreign formats become typed columnar events; one module a format."""

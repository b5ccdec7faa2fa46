"""Foreign formats become typed columnar events; a folder a format."""

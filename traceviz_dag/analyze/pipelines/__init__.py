"""Bubbles, periods and replays of pipeline groups."""

"""Dagster sensors: a file a thing that is watched."""

"""Homes that earlier commits wrote."""

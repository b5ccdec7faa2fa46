"""Traces and queries for Perfetto."""

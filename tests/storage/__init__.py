"""Traces and tables in object storage."""

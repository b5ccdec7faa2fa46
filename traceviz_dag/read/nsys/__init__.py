"""Nsight Systems exports: SQLite or Parquet to typed columns."""

"""The memory between the steps: Parquet partitions, the DuckDB catalogue, named queries."""

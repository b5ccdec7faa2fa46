"""When the work runs: host and streams."""

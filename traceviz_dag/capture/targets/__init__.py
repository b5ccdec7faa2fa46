"""A module for each place that a profiling configuration is written for."""

"""The traces and the truth that a simulated job writes."""

"""The Dagster side of a home: its instance, runs, services and web server."""

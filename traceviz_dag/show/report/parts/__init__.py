"""The parts of a report, a file each: what a tab of the page shows."""

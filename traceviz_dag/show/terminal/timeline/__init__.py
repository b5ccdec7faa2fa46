"""The timeline of a run or a profile in a terminal."""

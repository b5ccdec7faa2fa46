"""What a step's time hangs on: a graph of its work, replayed with other durations."""

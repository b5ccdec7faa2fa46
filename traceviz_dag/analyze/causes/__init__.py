"""What limits a step's time: a graph of its work, replayed with other durations."""

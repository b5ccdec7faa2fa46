"""The lane model: lanes, slices, links, counters and gaps, their names, words and colours; all surfaces draw these."""

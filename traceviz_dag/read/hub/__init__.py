"""Files of a data set on a hub, fetched."""

"""Which rank sits where: groups, coordinates, pipelines, replicas, each with its source."""

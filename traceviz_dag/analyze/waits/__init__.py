"""Who waits for whom in matched communications."""

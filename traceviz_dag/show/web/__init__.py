"""What every page of ours that is served has in common."""

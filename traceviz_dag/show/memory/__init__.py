"""Pages of GPU memory."""

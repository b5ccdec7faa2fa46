"""``traceviz nsys``: what Nsight Systems profiles show, a small file a subcommand."""

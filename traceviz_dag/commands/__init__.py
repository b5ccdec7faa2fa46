"""The traceviz command line, a small file a subcommand."""

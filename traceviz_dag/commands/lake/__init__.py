"""Subcommands of ``traceviz lake``."""

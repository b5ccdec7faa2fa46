"""Subcommands of ``traceviz memory``."""

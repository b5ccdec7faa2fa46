"""Dagster assets: a file per stage of the way from trace files to tables."""

import warnings

from dagster import BetaWarning

# Partition mappings between one and two dimensions, and observable sources, are beta there and pinned by our lock file;
# a line per use on every start would hide what a user must read.
warnings.filterwarnings("ignore", category=BetaWarning)

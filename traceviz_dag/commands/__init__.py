"""The traceviz command line, a small file a subcommand."""

import gc

# Python looks for garbage after every 700 objects, and what is imported stays: a tenth of the time of `--help`. A
# command that reads a home makes fewer than these, and leaves none.
gc.set_threshold(200_000)

"""Mutators that know the structure of each input format, and the whole way that each input takes."""

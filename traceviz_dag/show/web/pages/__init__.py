"""The pages of ``traceviz serve``, one file each: its routes, from the home that it shows."""

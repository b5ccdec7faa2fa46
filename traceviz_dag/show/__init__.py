"""What people look at: figures drawn from tables that are handed in, and files for users of other tools."""

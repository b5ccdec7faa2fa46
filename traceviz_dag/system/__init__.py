"""What touches the operating system: whole files and processes that end with their parent."""

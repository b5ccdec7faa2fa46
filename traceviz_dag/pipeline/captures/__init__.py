"""Which questions a capture can answer: what each format finds in its files, and what that comes to."""

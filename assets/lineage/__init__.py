"""What an event of an asset records of what it was made from."""

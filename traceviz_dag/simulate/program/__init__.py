"""The program that each rank runs."""

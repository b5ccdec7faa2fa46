"""Nights of a home: which iterations they are, their verdicts, and the baselines that they are held against."""

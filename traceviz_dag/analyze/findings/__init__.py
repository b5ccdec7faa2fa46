"""Findings: what is wrong with a step, who is at fault, and what fixing it would save."""

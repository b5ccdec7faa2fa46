"""What ``traceviz doctor`` says of a question: whether a capture can answer it, and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether a capture can answer a question, and what it would need."""

    question: str
    answer: str
    why: str


PHASE = "Which phase is a kernel in?"
MICROBATCH = "Which micro-batch and chunk?"
DIMENSION = "Which parallel dimension does a communication serve?"
HIDDEN = "How much communication is hidden on a rank?"
PLACE = "Which stage, pipeline and replica is a rank in?"
WAITS = "Who waits for whom across ranks?"
SIZES = "How large are the tensors?"
MODULE = "Which module launched a kernel?"
BUBBLE = "What is the bubble of a pipeline made of?"
BANDWIDTH = "What bandwidth does a communication reach?"

NEARLY_ALL = 0.99
"""Share from which what is known counts as all of it."""


def degree(full: bool, part: bool) -> str:
    """The answer in a word."""
    return "yes" if full else "in part" if part else "no"

"""The items that a rank's program is made of, and to what they belong."""

from __future__ import annotations

from dataclasses import dataclass

from traceviz_dag.simulate.templates import Template
from traceviz_dag.simulate.tree import Row
from traceviz_dag.vocabulary import Phase


@dataclass(frozen=True, slots=True)
class Context:
    """To what a segment belongs; -1 represents none.

    Attributes:
        position: layer within its chunk (the embedding is -1), by which parameter events are distinguished.
        slot: layer among all layers of the rank, from which module and graph numbers follow.
        makes, refers: first autograd sequence number of the nodes it makes, and of those it runs backward.
    """

    phase: Phase = Phase.OTHER
    microbatch: int = -1
    chunk: int = -1
    layer: int = -1
    position: int = -1
    slot: int = 0
    makes: int = 0
    refers: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of host work that a template describes."""

    template: Template
    context: Context


@dataclass(frozen=True, slots=True)
class Open:
    """The host enters frames, outermost first; ``chunk`` numbers their modules."""

    rows: tuple[Row, ...]
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class Close:
    """The host leaves the innermost frames."""

    count: int


Item = Segment | Open | Close
NOWHERE = Context()

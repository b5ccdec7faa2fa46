"""What one iteration's traces hold, as their format finds it, and what one rank of it comes to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from traceviz_dag.classify.rules import Rules
from traceviz_dag.classify.topology.types import Topology
from traceviz_dag.lake.inputs import IterationInputs
from traceviz_dag.pipeline.captures.answers import Answer


@dataclass(frozen=True, slots=True)
class Compared:
    """Communications of several ranks together.

    Attributes:
        contradiction: why they cannot be matched; None where they can.
        partly: whether some of their waits are certain all the same.
    """

    contradiction: str | None
    partly: bool


@dataclass(frozen=True, slots=True)
class Sample:
    """What the kernels of one rank show.

    Attributes:
        phase_known: share of kernel time with a phase; None without kernels.
        microbatch_known: share of the forward and backward time that is in a micro-batch; 0 without any such time.
        dimension_known: share of communication time with a dimension; None without communication.
        communications: communication kernels; sized: those whose bytes are known; grouped: those whose group is known,
            because the trace names it or because the topology has one of their dimension; ordered: those whose group
            has no name, but all ranks as members, so that order can match them.
        module_known: share of kernel time with a module; None without kernels.
        unmet: communications of groups of which some member has no trace.
        compared: what the communications of the first ranks come to together; None where they were not compared.
        fault: which training step the rank's window does not hold whole, and why, or whose clocks do not agree; None
            where it holds all.
        others: (rank, its fault) of the other ranks that were looked at and have one.
    """

    rank: int
    kernels: int
    phase_known: float | None
    microbatch_known: float
    dimension_known: float | None
    communications: int
    grouped: int
    sized: int
    ordered: int
    module_known: float | None
    fault: str | None = None
    others: tuple[tuple[int, str], ...] = ()
    unmet: int = 0
    compared: Compared | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """Rows that a format shows of its files."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Sequence[object], ...]


@dataclass(frozen=True, slots=True)
class Examination:
    """What a format is given to say what a capture of it holds.

    Attributes:
        inputs: the iteration, with the ranks of this format alone.
        sample: classifies the first of these ranks that can be read; None where none can.
        chosen_by_name: each file was named itself, so that the other ranks are left out on purpose.
        home: where profiles are kept once they were read; None keeps nothing.
    """

    inputs: IterationInputs
    topology: Topology
    sample: Callable[[], Sample | None]
    rules: Rules
    chosen_by_name: bool = False
    home: Path | None = None


@dataclass(frozen=True, slots=True)
class Capture:
    """What one iteration's traces of one format hold.

    Attributes:
        gpu, stacks, operators, shapes, groups: ranks that have them; of exports, groups are communicators.
        steps: profiler steps in a file, at most.
        pipelines: known pipeline groups; stages: of the longest; staged: ranks with a file whose stage is known.
        sample: what one rank's kernels show; None where none could be read.
        problems: one line a file that was not placed, that cannot be read, or not wholly.
        wanted_ranks: that the capture meant to record, by default the world. missing_ranks: of them, without a trace.
        unread_ranks: whose trace cannot be read, or not wholly.
        warnings: what had to be assumed.
        exports: what each file holds, of a format whose files hold several ranks; else empty. Iterations with the same
            exports are shown as one.
        answers: which questions it can answer.
        source: what the iterations were read from; empty where the format leaves no choice.
        summary: the first line's end: what the ranks have.
        listings: what is shown of the files; notes: and said of them.
    """

    run: str
    iteration: int
    ranks: int
    world_size: int | None
    gpu: int
    stacks: int
    operators: int
    shapes: int
    groups: int
    steps: int
    pipelines: int
    problems: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    described: bool = False
    exports: tuple[object, ...] = ()
    stages: int = 0
    staged: int = 0
    sample: Sample | None = None
    wanted_ranks: tuple[int, ...] = ()
    missing_ranks: tuple[int, ...] = ()
    unread_ranks: tuple[int, ...] = ()
    answers: tuple[Answer, ...] = ()
    source: str = ""
    summary: str = ""
    listings: tuple[Listing, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether every rank of the world has a trace that ends as one does, and whose first events can be used."""
        return self.world_size == self.ranks and not self.problems and not self.missing_ranks

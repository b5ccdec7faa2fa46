"""The edits that a user asks for, by the names of the options of ``traceviz what-if``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from traceviz_dag.errors import UsageError
from traceviz_dag.spans import unspanned
from traceviz_dag.vocabulary import ALL_DIMENSIONS

if TYPE_CHECKING:
    from traceviz_dag.analyze.causes.records_edits import RecordsEdit, RecordsWhatIf
    from traceviz_dag.analyze.causes.reordered import Change
    from traceviz_dag.analyze.causes.what_if import Edit, WhatIf

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The edits that the user asks for; false where there are none.

    Attributes:
        ranks, links: ranks whose kernels, and whose transfers, are to be as those of others.
        hidden: dimensions. speeds: dimensions, and how many times faster. general: names of edits of the whole job.
        together: ranks that are fixed together, with the name of their edit; of a group or a node one of its ranks.
        change: what is another in the order of work, by the names of ``Change``; nothing: it stays.
    """

    ranks: tuple[int, ...]
    links: tuple[int, ...]
    hidden: tuple[str, ...]
    speeds: tuple[tuple[str, float], ...]
    general: tuple[str, ...]
    together: tuple[tuple[str, tuple[int, ...]], ...] = ()
    change: Mapping[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        some = self.ranks or self.links or self.together or self.hidden or self.speeds or self.general
        return bool(some or self.change)

    def edits(self, what_if: WhatIf, sets: Callable[[str], Sequence[tuple[int, ...]]]) -> list[Edit]:
        """The edits of one step.

        Args:
            sets: gives the tensor-parallel groups (fix_group) or nodes (fix_node) of the job.

        Raises:
            UsageError: nothing shows a rank's group or node; it has no communication of such a dimension, or no kernels
                of such a rank; no such schedule.
        """
        for rank in (*self.ranks, *self.links):
            if rank not in what_if.step.ranks:
                raise UsageError(f"rank {rank} has no kernels in the training step")
        self._check_dimensions(what_if.dimensions())
        edits = [what_if.fix_rank(rank) for rank in self.ranks]
        for name, ranks in self.together:
            members = _members(name, ranks, sets)
            edits.append(what_if.fix_links(members) if name == "fix_links" else what_if.fix_ranks(name, members))
        edits += [what_if.fix_link(rank) for rank in self.links]
        edits += [edit for edit in what_if.general() if edit.name in self.general]
        edits += [what_if.hide(dimension) for dimension in self.hidden]
        edits += [what_if.faster(dimension, factor) for dimension, factor in self.speeds]
        return edits + [what_if.reorder(change) for change in self._changes()]

    def edits_of_records(self, what_if: RecordsWhatIf) -> list[RecordsEdit]:
        """The edits of a job's records.

        Raises:
            UsageError: as ``edits``; or records do not show what an edit changes.
        """
        known = {edit.name: edit for edit in what_if.general()}
        for name in (*(["fix_link"] if self.links else []), *(name for name, _ in self.together), *self.general):
            if name not in known:
                option = name.replace("_", "-")
                raise UsageError(f"--{option}: records of pipeline operations do not show what it changes")
        for rank in self.ranks:
            if rank not in what_if.ranks:
                raise UsageError(f"--fix-rank {rank}: no such rank in the records")
        self._check_dimensions(what_if.dimensions())
        edits = [what_if.fix_rank(rank) for rank in self.ranks]
        edits += [known[name] for name in self.general]
        edits += [what_if.hide(dimension) for dimension in self.hidden]
        edits += [what_if.faster(dimension, factor) for dimension, factor in self.speeds]
        return edits + [what_if.reorder(change) for change in self._changes()]

    def _check_dimensions(self, known: Sequence[str]) -> None:
        there = [*known, ALL_DIMENSIONS]
        if not known and (self.hidden or self.speeds):
            raise UsageError("there is no communication in the training step")
        for dimension in (*self.hidden, *(name for name, _ in self.speeds)):
            if dimension not in there:
                raise UsageError(f"no communication of dimension {dimension}; there are {', '.join(there)}")

    def _changes(self) -> list[Change]:
        from traceviz_dag.analyze.causes.reordered import SCHEDULES, Change

        schedule = self.change.get("schedule")
        if schedule not in (None, *SCHEDULES):
            raise UsageError(f"--schedule {schedule}: there are {', '.join(SCHEDULES)}")
        return [Change(**self.change)] if self.change else []


def wanted_edits(
    *,
    fix_rank: Sequence[int] = (),
    fix_link: Sequence[int] = (),
    fix_ranks: Sequence[str] = (),
    fix_links: Sequence[str] = (),
    fix_group: Sequence[int] = (),
    fix_node: Sequence[int] = (),
    hide: Sequence[str] = (),
    faster: Sequence[str] = (),
    microbatches: int | None = None,
    schedule: str | None = None,
    chunks: int | None = None,
    layers: str | None = None,
    no_recompute: str | None = None,
    **general: bool,
) -> Wanted:
    """The edits that options name, each once; see the help of ``traceviz what-if`` for what they are.

    Args:
        general: edits of the whole job, such as ``no_jitter``, and whether they are wanted.

    Raises:
        UsageError: a text names no ranks, no numbers, or no dimension and factor; a step without a micro-batch, or a
            stage without a chunk.
    """
    for option, count, what in (("--microbatches", microbatches, "step"), ("--chunks", chunks, "stage")):
        if count is not None and count < 1:
            raise UsageError(f"{option} {count}: a {what} has at least one")
    change = {
        **{"microbatches": microbatches, "schedule": schedule, "chunks": chunks},
        "layers": None if layers is None else _counts(layers, "--layers"),
        "no_recompute": None if no_recompute is None else _counts(no_recompute, "--no-recompute"),
    }
    return Wanted(
        _once(fix_rank),
        _once(fix_link),
        _once(dimension.lower() for dimension in hide),
        _once(_speed(text) for text in faster),
        tuple(name for name, chosen in general.items() if chosen),
        (
            *(("fix_ranks", ranks) for ranks in _once(_listed(text) for text in fix_ranks)),
            *(("fix_links", ranks) for ranks in _once(_listed(text, "links") for text in fix_links)),
            *(("fix_group", (rank,)) for rank in _once(fix_group)),
            *(("fix_node", (rank,)) for rank in _once(fix_node)),
        ),
        {name: value for name, value in change.items() if value is not None},
    )


def _members(name: str, ranks: tuple[int, ...], sets: Callable[[str], Sequence[tuple[int, ...]]]) -> tuple[int, ...]:
    """The ranks that an edit fixes together."""
    if name in ("fix_ranks", "fix_links"):
        return ranks
    (rank,) = ranks
    found = next((members for members in sets(name) if rank in members), None)
    if found is None:
        what = "tensor-parallel group" if name == "fix_group" else "node"
        option = f"--{name.replace('_', '-')} {rank}"
        raise UsageError(f"{option}: nothing shows the {what} of rank {rank}; name the ranks with --fix-ranks")
    return found


def _listed(text: str, what: str = "ranks") -> tuple[int, ...]:
    """The ranks of a text such as ``0-3,6``.

    Raises:
        UsageError: it is none.
    """
    try:
        return unspanned(text)
    except ValueError as error:
        raise UsageError(f"--fix-{what} {text}: name ranks, as in 0-3,6") from error


def _counts(text: str, option: str) -> tuple[int, ...]:
    """The numbers of a text such as 7,8,8,7.

    Raises:
        UsageError: it is none.
    """
    if not re.fullmatch(r"\d{1,4}(,\d{1,4})*", text, re.ASCII):
        raise UsageError(f"{option} {text}: name a number for each, as in 7,8,8,7")
    return tuple(map(int, text.split(",")))


def _once(values: Iterable[T]) -> tuple[T, ...]:
    """Each value once, in order."""
    return tuple(dict.fromkeys(values))


def _speed(text: str) -> tuple[str, float]:
    """A dimension and how many times faster it is to be.

    Raises:
        UsageError: the text does not say so.
    """
    dimension, _, factor = text.partition("=")
    try:
        value = float(factor)
    except ValueError:
        value = 0.0
    if not dimension or not 1 < value < float("inf"):
        raise UsageError(f"--faster {text}: name a dimension and how many times faster, as in dp=2")
    return dimension.lower(), value

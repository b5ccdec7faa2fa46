"""The kinds of figures there are: what each shows, of what, from which tables, and the function that draws it.

Everything that lists figures asks here: the command line and its help, the assets and what they depend on, the records
of what was drawn. This module imports no drawer, since matplotlib takes a second to load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import import_module
from typing import Any

from traceviz_dag.errors import UsageError
from traceviz_dag.system.plugins import Brought, ExtensionPoint, plugins
from traceviz_dag.tables import all_tables

_OWN = "traceviz_dag."
_OF_RANKS = ("kernels", "microbatches", "overlap")
_OF_GROUPS = (*_OF_RANKS, "topology", "runs", "late_ranks", "findings")


class Scope(StrEnum):
    """Of what there is one figure each; a drawer takes a ``TableSource``, and what follows the colon."""

    RANK = "rank"
    """Each rank: its number."""
    PIPELINE = "pipeline"
    """Each pipeline: its number, a ``TimeAlignment``."""
    REPLICA = "replica"
    """Each model replica: its number, a ``TimeAlignment``."""
    ALL_RANKS = "all_ranks"
    """All ranks, where they are not one replica: None, a ``TimeAlignment``."""
    MEMORY_OF_RANK = "memory_of_rank"
    """Each rank with a snapshot of GPU memory: its number."""
    MEMORY = "memory"
    """An iteration with such snapshots: nothing more."""
    ACROSS_RANKS = "across_ranks"
    """An iteration, from tables across its ranks: nothing more."""


@dataclass(frozen=True, slots=True)
class FigureKind:
    """One kind of figure.

    Attributes:
        name: in ``--kind``, in the asset graph's metadata, and the beginning of its files' names.
        shows: what it shows, as a part of a sentence.
        tables: a change in one of these draws it anew.
        drawer: ``module:function``; the function returns a matplotlib figure, or None where there is nothing to draw.
        how: how it is read, as a part of a sentence.
    """

    name: str
    scope: Scope
    shows: str
    tables: tuple[str, ...]
    drawer: str
    how: str = ""

    @property
    def is_own(self) -> bool:
        """Whether this project draws it; what fails there is a fault of traceviz."""
        return self.drawer.startswith(_OWN)

    def load(self) -> Callable[..., Any]:
        """The function that draws it.

        Raises:
            UsageError: there is no such module or function.
        """
        module, _, function = self.drawer.partition(":")
        try:
            return getattr(import_module(module), function)
        except (ImportError, AttributeError) as error:
            raise UsageError(f"figure {self.name} cannot be drawn by {self.drawer} ({error})") from error


_FIGURES = "traceviz_dag.show.figures"
_MEMORY = "traceviz_dag.pipeline.memory_figures"
# Micro-batches are drawn, too: once the iteration is aggregated, those of all ranks are there.
_OF_SNAPSHOTS = ("memory_events", "memory_blocks", "iterations")
OWN_KINDS = (
    FigureKind(
        "rank_timeline",
        Scope.RANK,
        "a rank's kernels by stream and category, with its micro-batches",
        (*_OF_RANKS, "late_ranks", "findings", "runs"),
        f"{_FIGURES}.rank_timeline:draw_rank_timeline",
        how="below the computation a lane for each communication dimension; the lane at the foot says at each time "
        "what fills the wall clock",
    ),
    FigureKind(
        "overlap_bars",
        Scope.RANK,
        "how much of a rank's communication computation hides, by dimension",
        _OF_RANKS,
        f"{_FIGURES}.overlap_bars:draw_overlap_bars",
        how="a bar for each micro-batch and phase; magenta is communication that nothing hides",
    ),
    FigureKind(
        "pipeline_group",
        Scope.PIPELINE,
        "a pipeline's ranks by stage, numbered micro-batches, idle stages, communication",
        _OF_GROUPS,
        f"{_FIGURES}.pipeline_group:draw_pipeline_group",
        how="a row for each stage; grey is a stage that runs no micro-batch, the strip below it why",
    ),
    FigureKind(
        "model_replica",
        Scope.REPLICA,
        "a model replica with all its pipelines",
        _OF_GROUPS,
        f"{_FIGURES}.model_replica:draw_model_replica",
        how="a row for each rank, pipeline by pipeline; a rank that computes longer than its stage is marked",
    ),
    FigureKind(
        "all_ranks",
        Scope.ALL_RANKS,
        "all ranks of the job",
        _OF_GROUPS,
        f"{_FIGURES}.model_replica:draw_model_replica",
        how="as a model replica, of the whole job",
    ),
    FigureKind(
        "wait_map",
        Scope.ACROSS_RANKS,
        "who waits for whom",
        ("collectives", "rank_clocks", "delay_costs", "findings"),
        f"{_FIGURES}.wait_map:draw_wait_map",
        how="a row for each rank, a cell for each communication; a light row among dark ones is the rank that the "
        "others wait for",
    ),
    FigureKind(
        "same_work",
        Scope.ACROSS_RANKS,
        "how long each rank takes for the same work, by class",
        ("class_speeds", "rank_speeds", "findings"),
        f"{_FIGURES}.same_work:draw_same_work",
        how="a row for each rank, a column for each class of work; a dark cell takes longer than on the rank's peers",
    ),
    FigureKind(
        "overlap_savings",
        Scope.ACROSS_RANKS,
        "what overlap saves after what it slows",
        ("overlap_savings", "iterations"),
        f"{_FIGURES}.overlap_savings:draw_overlap_savings",
        how="a bar for each dimension: its hidden communication, of which the magenta part is lost to slower "
        "computation",
    ),
    FigureKind(
        "roofline",
        Scope.ACROSS_RANKS,
        "each stage's operations against the roofline of their GPU",
        ("operations", "iterations"),
        f"{_FIGURES}.roofline:draw_roofline",
        how="a panel for each stage, a point for each operation; what is far below the line has headroom, under the "
        "slope its bytes limit it",
    ),
    FigureKind(
        "module_tree",
        Scope.ACROSS_RANKS,
        "the time of the model's modules by phase, their headroom and exposed communication",
        ("kernels", "operations", "collectives", "overlap"),
        f"{_FIGURES}.module_tree:draw_module_tree",
        how="a row for each module, below the one that holds it; magenta is communication that nothing hides, black "
        "the part of its time that is headroom",
    ),
    FigureKind(
        "bubble_waterfall",
        Scope.ACROSS_RANKS,
        "what the bubble is made of",
        ("pipelines", "rank_clocks"),
        f"{_FIGURES}.bubble_waterfall:draw_bubble_waterfall",
        how="a row for each stage, from its ideal time, part by part, to the black line: the time it took",
    ),
    FigureKind(
        "period_distribution",
        Scope.ACROSS_RANKS,
        "how periods spread",
        ("periods", "rank_clocks"),
        f"{_FIGURES}.period_distribution:draw_period_distribution",
        how="above, how long units take; below, OverlapScores: 1 is hidden, 0 takes turns",
    ),
    FigureKind(
        "critical_path",
        Scope.ACROSS_RANKS,
        "what limits the step",
        ("path_segments", "path_items", "what_if", "findings"),
        f"{_FIGURES}.critical_path:draw_critical_path",
        how="a lane for each rank that limits the step, along the path; where it changes lanes, one rank "
        "waits for another",
    ),
    FigureKind(
        "predicted_gains",
        Scope.ACROSS_RANKS,
        "what edits would gain",
        ("what_if", "findings"),
        f"{_FIGURES}.predicted_gains:draw_predicted_gains",
        how="a bar for each edit: what the replay predicts that it would save",
    ),
    FigureKind(
        "advised_pipelines",
        Scope.ACROSS_RANKS,
        "a pipeline now and with the best changes of schedule, chunks and layers",
        ("advice", "advice_items"),
        f"{_FIGURES}.advised_pipelines:draw_advised_pipelines",
        how="a pipeline as it is, and below with the best changes: a row for each stage, a box a step",
    ),
    FigureKind(
        "efficiency_tree",
        Scope.ACROSS_RANKS,
        "which factor loses how much of the step",
        ("efficiencies",),
        f"{_FIGURES}.efficiency_tree:draw_efficiency_tree",
        how="above, the step: useful time, then what is lost, the most first; below each loss what it is made of",
    ),
    FigureKind(
        "clock_residuals",
        Scope.ACROSS_RANKS,
        "how well the clocks agree",
        ("collectives", "rank_clocks"),
        f"{_FIGURES}.clock_residuals:draw_clock_residuals",
        how="how far ends of communications are from each other on solved clocks: near 0 is good",
    ),
    FigureKind(
        "memory_timeline",
        Scope.MEMORY_OF_RANK,
        "a rank's requested GPU memory by category, below its micro-batches",
        (*_OF_SNAPSHOTS, "memory_stacks", "memory_steps"),
        f"{_MEMORY}:draw_timeline",
        how="requested memory by category; the line above it is what is reserved, below it micro-batches",
    ),
    FigureKind(
        "memory_peak",
        Scope.MEMORY_OF_RANK,
        "which call sites hold a rank's peak of GPU memory",
        ("memory_events", "memory_blocks", "memory_stacks"),
        f"{_MEMORY}:draw_peak",
        how="a rectangle for each call site; its area is what the site holds when most is requested",
    ),
    FigureKind(
        "memory_segments",
        Scope.MEMORY_OF_RANK,
        "how a rank's segments of GPU memory are filled",
        ("memory_segments", "memory_blocks"),
        f"{_MEMORY}:draw_segments",
        how="the segments at the end, row by row, and what is free in them",
    ),
    FigureKind(
        "memory_stages",
        Scope.MEMORY,
        "activations that each stage keeps, against its schedule",
        (*_OF_SNAPSHOTS, "memory_steps"),
        f"{_MEMORY}:draw_stages",
        how="the activations that each rank keeps at once, beside what its schedule implies",
    ),
)
"""The figures of this project, in the order in which help and documents name them."""

OF_OTHERS = ExtensionPoint("traceviz_dag.figures", "figure", FigureKind, "FigureKind", "docs/figures.md")
"""Where other packages bring figures of their own."""


@cache
def figure_kinds() -> dict[str, FigureKind]:
    """Name → kind: our own, then those of other packages by name.

    Raises:
        UsageError: one of another package cannot be loaded, is no figure kind, names what is not, or bears the name of
            another.
    """
    kinds = {kind.name: kind for kind in OWN_KINDS}
    kinds |= {brought.thing.name: _checked(brought) for brought in plugins(OF_OTHERS, kinds)}
    return kinds


def _checked(brought: Brought[FigureKind]) -> FigureKind:
    kind = brought.thing
    if not isinstance(kind.scope, Scope):
        raise brought.refused(
            f"{kind.scope!r} is no Scope", f"take one of {', '.join(f'Scope.{one.name}' for one in Scope)}"
        )
    unknown = sorted({str(name) for name in kind.tables} - set(all_tables()))
    if unknown or not kind.tables or isinstance(kind.tables, str):
        raise brought.refused(
            f"tables names {', '.join(unknown) or 'nothing'}", f"it may name {', '.join(all_tables())}"
        )
    if not isinstance(kind.drawer, str) or not all(kind.drawer.partition(":")):
        raise brought.refused(f"drawer is {kind.drawer!r}", "write it as module:function")
    if not isinstance(kind.shows, str) or not kind.shows:
        raise brought.refused(f"shows is {kind.shows!r}", "say there what it shows, as a part of a sentence")
    return kind


def kinds_of(*scopes: Scope) -> tuple[FigureKind, ...]:
    """The kinds of some scopes, in the order in which they are drawn."""
    return tuple(kind for kind in figure_kinds().values() if kind.scope in scopes)


def tables_of(kinds: Iterable[FigureKind]) -> tuple[str, ...]:
    """What some kinds are drawn from, each table once."""
    return tuple(dict.fromkeys(table for kind in kinds for table in kind.tables))

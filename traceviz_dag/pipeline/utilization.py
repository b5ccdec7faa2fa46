"""The table ``utilization`` of an iteration, from its ranks' tables in the lake."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from traceviz_dag.analyze.peaks import Peaks
from traceviz_dag.analyze.step_utilization import step_utilization, step_windows
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.queries import TraceFiles
from traceviz_dag.pipeline.aggregates import stated_by
from traceviz_dag.pipeline.home_settings import home_peaks


class Measured(Protocol):
    """What is read of an iteration."""

    @property
    def lake(self) -> Lake:
        """Where it lies."""

    @property
    def run(self) -> str:
        """Its run."""

    @property
    def iteration(self) -> int:
        """Its number."""

    @property
    def files(self) -> TraceFiles:
        """How the trace of each rank was read."""

    @property
    def with_partial(self) -> bool:
        """Whether ranks that were read in part are counted."""

    @property
    def peaks(self) -> Peaks | None:
        """Of GPUs; None: those of the lake's home."""

    def flops(self) -> pa.Table:
        """FLOPs of the operations of its steps."""

    def windows(self, *more: str) -> pa.Table:
        """The windows of the ranks that are counted, with further columns."""


def utilization_table(iteration: Measured) -> pa.Table:
    """The table ``utilization`` of the ranks that are counted."""
    lake, run, number = iteration.lake, iteration.run, iteration.iteration
    places = lake.rows("topology", run, number, ["rank", "stage", "model_replica"]).to_pylist()
    return step_utilization(
        iteration.flops(),
        step_windows(iteration.windows("device", "compute_ns")),
        stated_by(iteration.files, None, iteration.with_partial),
        {row["rank"]: row for row in places},
        home_peaks(lake.home) if iteration.peaks is None else iteration.peaks,
    )

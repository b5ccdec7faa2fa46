"""Table ``overlap``: the measures of ``window_measures.py`` of each device, in windows of kernels, steps and files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.kernel_intervals import KernelIntervals, split_by_device
from traceviz_dag.analyze.window_measures import measure_windows
from traceviz_dag.arrays import Bool, Int64
from traceviz_dag.errors import UsageError
from traceviz_dag.tables import OVERLAP
from traceviz_dag.vocabulary import WindowFrom


@dataclass(frozen=True, slots=True)
class _Windows:
    """Windows of one device; ``last_included`` says that a kernel that starts at the very end of each counts too."""

    names: tuple[str, ...]
    steps: tuple[int | None, ...]
    starts: Int64
    ends: Int64
    last_included: Bool
    sources: tuple[WindowFrom | None, ...]

    def with_others(self, others: _Windows) -> _Windows:
        """These and, behind them, others."""
        return _Windows(
            self.names + others.names,
            self.steps + others.steps,
            np.concatenate([self.starts, others.starts]),
            np.concatenate([self.ends, others.ends]),
            np.concatenate([self.last_included, others.last_included]),
            self.sources + others.sources,
        )


WINDOW_COLUMNS = ("start_ns", "duration_ns", "device", "kind", "dimension")
"""What measuring a window needs of table ``kernels``."""


def overlap_table(
    kernels: pa.Table,
    steps: Sequence[tuple[int, int, int]] = (),
    file_kernels: pa.Table | None = None,
    windows_from: WindowFrom = WindowFrom.HOST,
) -> pa.Table:
    """Measure one rank's iteration: per device the window ``kernels`` and the window ``step`` of each given step.

    The window ``kernels`` runs from the device's first start to its last end. Every kernel that
    runs inside a window ``step`` counts there, whichever step launched it.

    Args:
        kernels: the iteration's kernels; needs start_ns, duration_ns, device, kind and dimension.
        steps: (number, start_ns, end_ns) of each ProfilerStep to measure, as ``windows_of_kernels`` gives them.
        file_kernels: the kernels of the whole file, where it holds more steps than the iteration; the windows
            ``step`` are cut from them, so that what another step left running is seen.
        windows_from: what the windows of the steps are.

    Returns:
        The table ``overlap``: a row per device × window × dimension; ``all`` and each dimension that the device's
        communication has, with 0 where a window has none of it. No rows without kernels.

    Raises:
        ValueError: a kernel without a start, a duration or a known kind.
    """
    step_windows = _Windows(
        names=("step",) * len(steps),
        steps=tuple(number for number, _, _ in steps),
        starts=np.array([start for _, start, _ in steps], dtype=np.int64),
        ends=np.array([end for _, _, end in steps], dtype=np.int64),
        last_included=np.zeros(len(steps), dtype=bool),
        sources=(windows_from,) * len(steps),
    )
    of_kernels, of_steps = [], []
    for device, rows in split_by_device(kernels).items():
        span = _one_window("kernels", int(rows.time.starts.min()), int(rows.time.ends.max()), last_included=True)
        if file_kernels is None:
            both = span.with_others(step_windows)
            measured = _measure_device(device, rows, both)
            of_each = measured.num_rows // len(both.steps)
            of_kernels.append(measured.slice(0, of_each))
            of_steps.append(measured.slice(of_each))
        else:
            of_kernels.append(_measure_device(device, rows, span))
    if steps and file_kernels is not None:
        of_steps = [
            _measure_device(device, rows, step_windows) for device, rows in split_by_device(file_kernels).items()
        ]
    every = pa.concat_tables([*of_kernels, *of_steps] or [OVERLAP.schema.empty_table()])
    return every.unify_dictionaries().combine_chunks()


def window_overlap(
    kernels: pa.Table, window: str = "file", start_ns: int | None = None, end_ns: int | None = None
) -> pa.Table:
    """Measure one explicit window, the same on each device.

    Args:
        kernels: as in ``overlap_table``.
        window: the name that the rows bear.
        start_ns: start of the window; None: the first start of all kernels, on any device.
        end_ns: end of the window; None: the last end of all kernels, on any device.

    Returns:
        Rows as ``overlap_table`` gives them, without step.

    Raises:
        UsageError: the one end that is given is on the wrong side of all kernels.
        ValueError: the window ends before it starts, or a kernel without a start, a duration or a known kind.
    """
    devices = split_by_device(kernels)
    if not devices:
        return OVERLAP.schema.empty_table()
    first = min(int(rows.time.starts.min()) for rows in devices.values()) if start_ns is None else start_ns
    last = max(int(rows.time.ends.max()) for rows in devices.values()) if end_ns is None else end_ns
    if last < first and start_ns is None:
        raise UsageError(f"--end-ns {last} is before the first kernel, at {first}; name a --start-ns, too")
    if last < first and end_ns is None:
        raise UsageError(f"--start-ns {first} is after the end of the last kernel, at {last}; name an --end-ns, too")
    if last < first:
        raise ValueError(f"the window {window} ends at {last} ns, before its start at {first} ns")
    windows = _one_window(window, first, last, last_included=end_ns is None)
    return pa.concat_tables([_measure_device(device, rows, windows) for device, rows in devices.items()])


def ratio(part: Int64, whole: Int64) -> pa.Array:
    """Return part / whole, NULL where the whole is 0."""
    none = whole == 0
    return pa.array(part / np.where(none, 1, whole), mask=none)


def _one_window(name: str, start_ns: int, end_ns: int, *, last_included: bool) -> _Windows:
    return _Windows((name,), (None,), np.array([start_ns]), np.array([end_ns]), np.array([last_included]), (None,))


def _measure_device(device: str, kernels: KernelIntervals, windows: _Windows) -> pa.Table:
    """Return the overlap rows of one device: window after window, in each ``all`` and then the dimensions."""
    measured = measure_windows(kernels, windows.starts, windows.ends)
    rows = len(measured)
    columns = {
        name: np.stack([each.columns()[name] for each in measured.values()], axis=1).ravel()
        for name in next(iter(measured.values())).columns()
    }
    hidden, communication = columns["hidden_ns"], columns["communication_ns"]
    return OVERLAP.from_columns(
        {
            "device": [device] * (rows * len(windows.steps)),
            "window_name": [name for name in windows.names for _ in measured],
            "step": [step for step in windows.steps for _ in measured],
            "dimension": list(measured) * len(windows.steps),
            "window_start_ns": np.repeat(windows.starts, rows),
            "window_end_ns": np.repeat(windows.ends, rows),
            "window_from": [source for source in windows.sources for _ in measured],
            **columns,
            "hidden_share": ratio(hidden, communication),
            "hidden_over_min": ratio(hidden, np.minimum(columns["compute_ns"], communication)),
            "kernels": np.repeat(_starting_within(kernels.time.starts, windows), rows),
        }
    )


def _starting_within(starts: Int64, windows: _Windows) -> Int64:
    """Count the kernels that start in each window."""
    ordered = np.sort(starts)
    last = np.searchsorted(ordered, windows.ends + windows.last_included, side="left")
    return np.maximum(last - np.searchsorted(ordered, windows.starts, side="left"), 0)

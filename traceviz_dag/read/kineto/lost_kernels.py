"""Kernels that were launched, and that a trace has lost: the profiler dropped them, or somebody took them out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceviz_dag.arrays import among, distinct
from traceviz_dag.read.events import MISSING, DeviceRows, LaunchRows

NOTABLE_SHARE = 0.01
"""Share of launches without a kernel from which a trace counts as read in part. Of 44 recorded traces with 240 to 8,600
launches each, none lacks a single one."""


def lost_kernels(strings: Sequence[str], launches: LaunchRows, device: DeviceRows) -> str | None:
    """In words, how many launches have no kernel; None where it is under ``NOTABLE_SHARE`` of them.

    Only launches between the first and the last that have one count: a window may end before what was launched last.
    What is launched while a graph is captured runs later, or never, so a trace with captures tells nothing.
    """
    names = {code: strings[code] for code in distinct(launches.name).tolist()}
    if any("BeginCapture" in name for name in names.values()):
        return None
    codes = [code for code, name in names.items() if "LaunchKernel" in name]
    calls = np.flatnonzero(among(launches.name, np.array(codes, np.int32)) & (launches.correlation > 0))
    wanted, known = launches.correlation[calls], np.sort(device.correlation)
    answered = np.append(known, MISSING)[np.searchsorted(known, wanted)] == wanted
    if not answered.any():
        return None
    times = launches.start_ns[calls]
    inside = (times >= times[answered].min()) & (times <= times[answered].max())
    lost, every = int((inside & ~answered).sum()), int(inside.sum())
    if lost < NOTABLE_SHARE * every or not lost:
        return None
    return f"{lost:,} of {every:,} launches have no kernel"

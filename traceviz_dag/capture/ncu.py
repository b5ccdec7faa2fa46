"""The Nsight Compute line for the kernels that an analysed run spends most time in."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HotKernel:
    """A kernel by name, summed over the ranks of an iteration.

    Attributes:
        duration_ns: of all its launches together.
        share: of the time of all computation kernels.
        rank: the rank on which it takes longest.
    """

    name: str
    launches: int
    duration_ns: int
    share: float
    rank: int


HOT_KERNELS = """
WITH by_rank AS (
    SELECT name, rank, count(*) AS launches, sum(duration_ns) AS duration_ns
    FROM kernels
    WHERE run = ? AND iteration = ? AND kind = 'computation' AND device <> 'cpu'
    GROUP BY name, rank
)
SELECT name, sum(launches)::BIGINT, sum(duration_ns)::BIGINT,
       sum(duration_ns) / sum(sum(duration_ns)) OVER (), first(rank ORDER BY duration_ns DESC, rank)
FROM by_rank GROUP BY name ORDER BY 3 DESC, 1 LIMIT ?
"""
"""Parameters: run, iteration, number of kernels. Communication is left out: replaying it would wait for other ranks."""


def ncu_line(kernel: HotKernel, command: str, out: str) -> str:
    """Profile one launch of a kernel, in the range that the job opens with cudaProfilerStart, on this process."""
    pattern = f"regex:^{re.escape(kernel.name)}$"
    words = ["ncu", "--profile-from-start", "off", "--target-processes", "all", "--kernel-name-base", "demangled"]
    words += ["--kernel-name", pattern, "--launch-count", "1", "--set", "full", "--force-overwrite", "-o", out]
    return f"{shlex.join(words)} {command}"


def wrapper_script(kernels: Sequence[HotKernel], command: str, out: str) -> str:
    """A script to start on every rank: the rank where a kernel takes longest runs under ncu, all others plainly.

    Args:
        command: how the training script is called; it must open its range (--profile without --use-pytorch-profiler).
    """
    lines = [
        "#!/bin/bash",
        "# Start on every rank, e.g. torchrun --no-python … bash ncu.sh KERNEL, KERNEL being 1, 2 or 3.",
    ]
    lines.append('case "$1:$RANK" in')
    for number, kernel in enumerate(kernels, start=1):
        lines.append(f"{number}:{kernel.rank}) exec {ncu_line(kernel, command, f'{out}_{number}')} ;;")
    lines += [f"*) exec {command} ;;", "esac"]
    return "\n".join(lines)

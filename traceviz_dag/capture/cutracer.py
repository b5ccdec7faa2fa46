"""The script that counts the instructions of a profile's dearest kernels with CUTracer."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from traceviz_dag.analyze.nsys.instructions import DearKernel
from traceviz_dag.analyze.wording import percent
from traceviz_dag.printable import printable

_WORD = re.compile(r"\w+")


def counting_script(kernels: Sequence[DearKernel], command: str, counts: str, profile: str) -> str:
    """Run a command once with CUTracer, which counts in these kernels alone.

    Args:
        command: how the program starts.
        counts: the folder for CUTracer's files.
        profile: the profile that the kernels are from.
    """
    lines = ["#!/bin/bash", "# Kernels run much slower with CUTracer: a few iterations are enough."]
    for number, one in enumerate(kernels, start=1):
        share = f"{one.total_ns / 1e6:,.3f} ms, {percent(one.share)} of computation, {one.launches:,} launches"
        lines.append(f"# {number}: {printable(one.kernel)}: {share}")
    lines += [
        "# Ranks that write to one folder overwrite each other: give each its own, or run one.",
        f"mkdir -p -- {shlex.quote(counts)}",
        f'export CUTRACER_OUTPUT_DIR="$(realpath -- {shlex.quote(counts)})"',
        'export CUDA_INJECTION64_PATH="${CUTRACER_SO:-$HOME/CUTracer/lib/cutracer.so}"',
        f"export CUTRACER_ANALYSIS=proton_instr_histogram KERNEL_FILTERS={_filters(kernels)}",
        command,
        f"# Then: traceviz nsys instructions {printable(shlex.quote(profile))} {printable(shlex.quote(counts))}",
    ]
    return "\n".join(lines)


def _filters(kernels: Sequence[DearKernel]) -> str:
    """CUTracer takes kernels whose name, mangled or not, holds one of these words; commas separate them."""
    return ",".join(dict.fromkeys(max(_WORD.findall(one.kernel), key=len) for one in kernels))

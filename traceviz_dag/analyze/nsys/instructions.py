"""CUTracer's counts of instructions beside the time that the same kernels take in a profile."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from traceviz_dag.analyze.nsys.activity import Activity, Clip
from traceviz_dag.analyze.nsys.summary import GpuSummary, NameMeasures, by_name
from traceviz_dag.read.nsys.instructions import InstructionCounts
from traceviz_dag.vocabulary import Kind

_TENSOR = re.compile(r"(?:H|I|B|D|Q|O)(?:G?MMA)|UTC\w*MMA")
_BRACKETS = re.compile(r"<[^<>]*>|\([^()]*\)")
_MANGLED = re.compile(r"_ZN?(?=L?\d)")
_LENGTH = re.compile(r"L?(\d{1,3})")
_WORD = re.compile(r"\w")
_QUALIFIERS = re.compile(r"^(?:void|static|__global__)\s+|\w+::")


@dataclass(frozen=True, slots=True)
class KernelInstructions:
    """What CUTracer counted of one kernel, and the kernels of the profile that bear its name.

    Attributes:
        names: of the profile; several where they differ in template arguments alone, none where no name is the same.
        total_ns, launches: of these kernels on one GPU in a window; None where there is none.
        instructions: issued by warps, by opcode, the most first. cycles: the same, in cycles; empty where not counted.
        tensor_share: of tensor-core products among all instructions.
    """

    kernel: str
    names: tuple[str, ...]
    total_ns: int | None
    launches: int | None
    issued: int
    tensor_share: float | None
    instructions: dict[str, int]
    cycles: dict[str, int]


def kernel_instructions(
    counted: Sequence[InstructionCounts], activity: Activity, window: Clip | None = None
) -> list[KernelInstructions]:
    """Each kernel that CUTracer counted, those that take longest in the profile first.

    Kernels are joined where their names without namespaces, template and call arguments are equal; a name that is only
    similar may be another kernel, and is not joined.
    """
    rows: dict[str, list[tuple[str, int, int]]] = {}
    for row in by_name(activity, window):
        if row.kind != Kind.MEMORY:
            rows.setdefault(bare_name(row.name), []).append((row.name, row.total_ns, row.count))
    found = []
    for one in counted:
        mine = rows.get(bare_name(one.kernel), [])
        issued = one.counts.total()
        tensor = sum(count for opcode, count in one.counts.items() if _TENSOR.match(opcode))
        found.append(
            KernelInstructions(
                one.kernel,
                tuple(name for name, _, _ in mine),
                sum(length for _, length, _ in mine) if mine else None,
                sum(count for _, _, count in mine) if mine else None,
                issued,
                tensor / issued if issued else None,
                dict(one.counts.most_common()),
                dict(one.cycles.most_common()),
            )
        )
    return sorted(found, key=lambda one: (-(one.total_ns or 0), one.kernel))


@dataclass(frozen=True, slots=True)
class DearKernel:
    """Computation kernels of one name without namespaces, template and call arguments.

    Attributes:
        total_ns, launches: of all of them, on some GPUs together.
        share: of the totals of all computation kernels.
    """

    kernel: str
    names: tuple[str, ...]
    total_ns: int
    launches: int
    share: float


def dearest_kernels(gpus: Sequence[GpuSummary], most: int) -> list[DearKernel]:
    """The computation kernels that take most time on some GPUs together; communication would wait for other ranks."""
    rows: dict[str, list[NameMeasures]] = {}
    for gpu in gpus:
        for row in gpu.operations:
            name = function_name(row.name)
            if row.kind == Kind.COMPUTATION and _WORD.search(name):
                rows.setdefault(name, []).append(row)
    everything = sum(row.total_ns for mine in rows.values() for row in mine)
    found = [
        DearKernel(
            name,
            tuple(dict.fromkeys(row.name for row in mine)),
            total := sum(row.total_ns for row in mine),
            sum(row.count for row in mine),
            total / max(everything, 1),
        )
        for name, mine in rows.items()
    ]
    return sorted(found, key=lambda one: (-one.total_ns, one.kernel))[:most]


def bare_name(kernel: str) -> str:
    """``function_name`` in lower case."""
    return function_name(kernel).lower()


def function_name(kernel: str) -> str:
    """A kernel's name without namespaces, template and call arguments; of a mangled one, too.

    The Itanium C++ ABI writes namespaces and name one after another, each behind its length, and then the arguments.
    """
    if mangled := _MANGLED.match(kernel):
        at = mangled.end()
        while length := _LENGTH.match(kernel, at):
            at = length.end() + int(length[1])
            name = kernel[length.end() : at]
        return name
    shorter = _BRACKETS.sub("", kernel)
    while shorter != kernel:
        kernel, shorter = shorter, _BRACKETS.sub("", shorter)
    return _QUALIFIERS.sub("", kernel.strip()).strip()

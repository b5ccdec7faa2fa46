"""What CUTracer counted of the instructions of each kernel: its ``kernel_HASH_iterN_NAME_hist.csv`` files in a folder.

CUTracer writes a file a launch, with mangled names and without cycles. Tools that rewrite its output leave out the
launch, or put the hash last, and some add cycles.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from traceviz_dag.errors import BadInputError

_FILE = re.compile(
    r"kernel_(?:[0-9a-f]+_iter\d+_(?P<launched>.+)|(?P<first>.+)_[0-9a-f]{8,}|[0-9a-f]{8,}_(?P<last>.+))_hist\.csv",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class InstructionCounts:
    """The instructions of one kernel: opcode → how often warps issued it, and if known in how many cycles."""

    kernel: str
    counts: Counter[str]
    cycles: Counter[str]


def read_instructions(folder: Path) -> list[InstructionCounts]:
    """The kernels of a folder by name; files of one name are added up.

    Raises:
        BadInputError: there is no such file, or one of them holds something else.
    """
    found: dict[str, InstructionCounts] = {}
    for path in sorted(folder.glob("*_hist.csv")):
        match = _FILE.fullmatch(path.name)
        if match is None:
            continue
        name = match["launched"] or match["first"] or match["last"]
        kernel = found.setdefault(name, InstructionCounts(name, Counter(), Counter()))
        try:
            with path.open(newline="", encoding="utf-8") as lines:
                for row in csv.DictReader(lines):
                    opcode = row["instruction"].strip().upper()
                    kernel.counts[opcode] += int(row["count"])
                    if "cycles" in row:
                        kernel.cycles[opcode] += int(row["cycles"])
        except (KeyError, ValueError, AttributeError, TypeError, csv.Error, OSError) as error:
            remedy = "give a folder of CUTracer's proton_instr_histogram"
            raise BadInputError(path, f"no histogram of instructions ({type(error).__name__})", remedy) from None
    if not found:
        raise BadInputError(
            folder, "no kernel_HASH_iterN_NAME_hist.csv in it", "run CUTracer with proton_instr_histogram"
        )
    return [found[name] for name in sorted(found)]

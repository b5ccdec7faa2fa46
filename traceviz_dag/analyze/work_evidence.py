"""What shows how much work a rank's kernels do: sizes of inputs, messages within layers, or grids.

Names do not, and neither do grids of persistent kernels, which run as many blocks as a GPU has processors. What shows
it is compared between the ranks of a stage: one whose sequences are longer has more to do, and is not slow for that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from math import prod

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceviz_dag.analyze.kernel_intervals import codes
from traceviz_dag.analyze.matching.communications import optional_integers
from traceviz_dag.arrays import Bool, Float64, Int64
from traceviz_dag.read.events import MISSING
from traceviz_dag.vocabulary import Phase

SIZES, MESSAGES, GRIDS = "sizes", "messages", "grids"

OF_LAYERS = (Phase.FORWARD.value, Phase.BACKWARD.value, Phase.RECOMPUTE.value)
_NUMBERS = re.compile(r"[0-9]+")
_TENSOR = re.compile(r"\[([0-9,]+)\]")
_PRODUCT = re.compile(r"gemm|nvjet|cutlass|xmma|cublas|wgrad|conv(?!ert)|matmul|\bcijk_", re.I)
_ATTENTION = re.compile(r"flash|fmha|attention|attn", re.I)
_LIGHT = re.compile(r"causal_conv1d|dot_do_o|convert_dq", re.I)
"""All kernels that have neither of the first two names are bound by memory, and so are these: a convolution of each
channel over a few tokens, and what the backward pass of attention does before and after its products."""

_TOLD_MORE, _TAKES_TIME = 0.02, 0.25
"""So much more that messages tell of has to take so much of it longer at least: not all time goes with the work."""


class WorkEvidence:
    """What the ranks of an iteration have to do, against their peers."""

    def __init__(self, work: pa.Table, place: Int64, stage_of: Int64, of_memory: Bool) -> None:
        """Take the rows of ``lake.summaries.computation_by_kernel``.

        Args:
            place: of each row, the place of its rank. stage_of: of each rank, its stage. of_memory: rows of kernels
                that are bound by memory.
        """
        self._place, self._stage_of, self._of_memory = place, stage_of, of_memory
        count = len(stage_of)
        self._blocks = optional_integers(work, "blocks") if "blocks" in work.column_names else None
        self._most = optional_integers(work, "most_blocks") if "most_blocks" in work.column_names else None
        self._mine, self._usual = np.zeros(count), np.zeros(count)
        self._grids = np.zeros(count, dtype=bool)
        self._of_products = set() if self._most is None else set(self._most[~of_memory].tolist())
        self._elements = _elements_of_inputs(work, place, count)
        self._messages = np.full(count, np.nan)
        if "elements" in work.column_names:
            elements = optional_integers(work, "elements")
            known = elements != MISSING
            self._messages[place[known]] = elements[known]

    def add_grids(self, rows: Int64) -> None:
        """Count the grids of an item that some ranks ran."""
        if self._blocks is None or (self._blocks[rows] == MISSING).any():
            return
        blocks, ranks = self._blocks[rows], self._place[rows]
        if (blocks != blocks[0]).any():
            self._mine[ranks] += blocks
            for one in range(len(rows)):
                self._usual[ranks[one]] += float(np.median(np.delete(blocks, one)))
            self._grids[ranks] = True
        elif self._most is not None and self._of_memory[rows[0]] and self._most[rows[0]] not in self._of_products:
            self._grids[ranks] = True

    def more_work(self, longer: Float64) -> tuple[Float64, list[str | None]]:
        """Per rank, how much more it has to do than its median peer by what says most, and what that is; 1 and None
        where nothing shows.

        Args:
            longer: of each rank, how many times as long as on its median peer the same kernels take; NaN where unknown.
        """
        grids = np.where(self._usual > 0, self._mine / np.maximum(self._usual, 1), 1.0)
        told = {
            SIZES: _ratio_to_others(self._elements, self._stage_of),
            MESSAGES: self._by_messages(longer),
            GRIDS: np.where(self._grids, grids, np.nan),
        }
        ratios = np.stack(list(told.values()))
        known = ~np.isnan(ratios)
        which = np.where(known, ratios, -1.0).argmax(axis=0)
        some = known.any(axis=0)
        most = np.where(some, np.where(known, ratios, -1.0).max(axis=0), 1.0)
        words = list(told)
        return most, [words[which[one]] if some[one] else None for one in range(len(most))]

    def _by_messages(self, longer: Float64) -> Float64:
        """What messages say; NaN in a stage of which a rank with more of them takes no longer: there they are no
        measure of work, as where context parallelism exchanges the blocks of sequences of many lengths."""
        ratios = _ratio_to_others(self._messages, self._stage_of)
        more = np.nan_to_num(ratios, nan=1.0) - 1
        refuted = (more >= _TOLD_MORE) & (longer - 1 < _TAKES_TIME * more)
        return np.where(np.isin(self._stage_of, self._stage_of[refuted]), np.nan, ratios)


def bound_by_memory(code: npt.NDArray[np.integer], names: Sequence[str]) -> Bool:
    """Mark kernels that memory bounds and not arithmetic, as their names say.

    Args:
        code: of each kernel, its place in ``names``; -1 for none.
    """
    of_name = [not (product or attention) or light for product, attention, light in map(_named, [*names, ""])]
    return np.array(of_name)[code]


def is_attention(code: npt.NDArray[np.integer], names: Sequence[str]) -> Bool:
    """Mark kernels of attention, as :func:`bound_by_memory` takes them."""
    return np.array([attention for _, attention, _ in map(_named, [*names, ""])])[code]


def work_by_grid(code: npt.NDArray[np.integer], names: Sequence[str], blocks: Int64) -> Bool:
    """Mark kernels bound by memory whose grids show their work: as many blocks as no product has, which may persist.

    Args:
        code, names: as for ``bound_by_memory``. blocks: of their grids; below 1 where unknown.
    """
    # Names of attention have those of products in them, as their templates'.
    is_product = [product and not (attention or light) for product, attention, light in map(_named, [*names, ""])]
    products = np.array(is_product)[code]
    return bound_by_memory(code, names) & (blocks > 0) & ~np.isin(blocks, blocks[products])


@lru_cache(maxsize=1 << 14)  # The ranks of a job have the same names.
def _named(name: str) -> tuple[bool, bool, bool]:
    """Whether a kernel's name is that of a product, of attention, and of what is bound by memory all the same."""
    return bool(_PRODUCT.search(name)), bool(_ATTENTION.search(name)), bool(_LIGHT.search(name))


def sizes_of(work: pa.Table) -> tuple[Int64, list[str]]:
    """Codes of the sizes of each row's inputs, -1 where unknown, and the sizes behind them."""
    if "input_sizes" not in work.column_names:
        return np.full(work.num_rows, -1), []
    code, sizes = codes(work, "input_sizes")
    return code.astype(np.int64), sizes


def plain_codes(work: pa.Table, name: str) -> Int64:
    """Codes of a column of names, which are the same where only numbers in them differ, such as those of instances."""
    if name not in work.column_names:
        return np.full(work.num_rows, -1)
    code, names = codes(work, name)
    plain: dict[str, int] = {}
    numbers = [plain.setdefault(_NUMBERS.sub("", each), len(plain)) for each in names]
    return np.array([*numbers, -1], np.int64)[code]


def _elements_of_inputs(work: pa.Table, place: Int64, count: int) -> Float64:
    """Per rank, elements of all inputs of the kernels of its layers; NaN where a rank states none."""
    code, sizes = sizes_of(work)
    result = np.full(count, np.nan)
    if not sizes:
        return result
    elements = np.array([*(_elements(each) for each in sizes), 0.0])
    phase, phases = codes(work, "phase")
    of_layers = np.array([*(each in OF_LAYERS for each in phases), False])[phase] & (code >= 0)
    kernels = optional_integers(work, "kernels")
    total = np.bincount(place[of_layers], weights=(elements[code] * kernels)[of_layers], minlength=count)
    return np.where(total > 0, total, result)


def _elements(sizes: str) -> float:
    return float(sum(prod(int(each) for each in tensor.split(",")) for tensor in _TENSOR.findall(sizes)))


def _ratio_to_others(values: Float64, stage_of: Int64) -> Float64:
    """Each rank's value to the median of the others of its stage; NaN where one of them has none, or there are none."""
    result = np.full(len(values), np.nan)
    for stage in np.unique(stage_of).tolist():
        ranks = np.flatnonzero(stage_of == stage)
        if len(ranks) < 2 or np.isnan(values[ranks]).any():
            continue
        for one in ranks.tolist():
            usual = float(np.median(values[ranks[ranks != one]]))
            result[one] = values[one] / usual if usual else np.nan
    return result

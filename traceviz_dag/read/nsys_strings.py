"""Names of an export: ids into its string table, and the texts of NVTX ranges with what PyTorch appends to them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.read.events import MISSING, Int64
from traceviz_dag.read.nsys_schema import NsysSchema

_STRINGS = "StringIds"
_APPENDED = (
    r"(?s)^(?P<name>.*?)(?:, seq = (?P<sequence>\d+))?(?:, op_id = (?P<operator>\d+))?"
    r"(?:, (?:sizes|input_op_ids|concrete_inputs) = .*)?$"
)
_MAY_BE_APPENDED = r", (?:seq|op_id|sizes|input_op_ids) = "


@dataclass(frozen=True, slots=True)
class Strings:
    """The strings that some columns refer to, by ascending id."""

    ids: Int64
    values: tuple[str, ...]

    def named(self, ids: Int64) -> pa.DictionaryArray:
        """The strings behind ids; NULL for MISSING and for an id that the export does not resolve."""
        if not len(self.ids):
            return pa.DictionaryArray.from_arrays(pa.nulls(len(ids), pa.int32()), pa.array([], pa.string()))
        at = np.clip(np.searchsorted(self.ids, ids), 0, len(self.ids) - 1)
        found = self.ids[at] == ids
        codes = pa.array(at.astype(np.int32), mask=~found)
        return pa.DictionaryArray.from_arrays(codes, pa.array(self.values, pa.string()))


def strings_of(schema: NsysSchema, ids: Iterable[Int64]) -> Strings:
    """Read the strings that these columns of ids refer to, and no others.

    The string table also holds what the profiled processes printed; that is never read.
    """
    wanted = np.unique(np.concatenate([np.empty(0, np.int64), *ids]))
    wanted = wanted[wanted != MISSING]
    table = schema.table(_STRINGS)
    if table is None or not len(wanted):
        if table is None and len(wanted):
            schema.note(f"no table {_STRINGS}: kernels, calls and registered ranges have no names")
        return Strings(np.empty(0, np.int64), ())
    found: dict[int, str] = {}
    for start in range(0, len(wanted), 10_000):
        listed = ", ".join(map(str, wanted[start : start + 10_000].tolist()))
        rows = schema.source.query(f'SELECT id, value FROM "{table}" WHERE id IN ({listed})')
        found |= dict(zip(rows["id"].to_pylist(), rows["value"].to_pylist(), strict=True))
    ids_found = np.array(sorted(found), dtype=np.int64)
    return Strings(ids_found, tuple(str(found[number]) for number in ids_found.tolist()))


@dataclass(frozen=True, slots=True)
class RangeNames:
    """Names of NVTX ranges without what PyTorch appends.

    Attributes:
        name: dictionary column.
        operator: whether PyTorch's profiler pushed the range (it appends an operator id or a sequence number).
        sequence: sequence number of the autograd graph, or MISSING.
    """

    name: pa.DictionaryArray
    operator: npt.NDArray[np.bool_]
    sequence: Int64


def range_names(texts: pa.DictionaryArray | pa.StringArray) -> RangeNames:
    """Part the texts of NVTX ranges: ``aten::add, seq = 3, op_id = 7, sizes = [...]`` is ``aten::add``."""
    plain = texts.dictionary_decode() if isinstance(texts, pa.DictionaryArray) else texts
    plain = pc.fill_null(plain, "")
    maybe = np.flatnonzero(pc.match_substring_regex(plain, _MAY_BE_APPENDED).to_numpy(zero_copy_only=False))
    operator = np.zeros(len(plain), dtype=bool)
    sequence = np.full(len(plain), MISSING, dtype=np.int64)
    if not len(maybe):
        return RangeNames(plain.dictionary_encode(), operator, sequence)
    parts = pc.extract_regex(plain.take(pa.array(maybe)), _APPENDED)
    numbers = {name: _integers(parts.field(name)) for name in ("sequence", "operator")}
    operator[maybe] = (numbers["operator"] != MISSING) | (numbers["sequence"] != MISSING)
    sequence[maybe] = numbers["sequence"]
    own = np.ones(len(plain), dtype=bool)
    own[maybe] = False
    positions = np.empty(len(plain), dtype=np.int64)
    positions[np.flatnonzero(own)] = np.arange(own.sum())
    positions[maybe] = own.sum() + np.arange(len(maybe))
    names = pa.concat_arrays([plain.filter(pa.array(own)), parts.field("name").cast(pa.string())])
    return RangeNames(names.dictionary_encode().take(pa.array(positions)), operator, sequence)


def _integers(texts: pa.Array) -> Int64:
    """Numbers of texts that hold digits or nothing."""
    empty = pc.equal(texts, "")
    return np.asarray(pc.fill_null(pc.if_else(empty, None, texts).cast(pa.int64()), MISSING))


def numbers_in(text: str) -> list[int]:
    """The integers that a text names."""
    return [int(number) for number in re.findall(r"\d+", text)]

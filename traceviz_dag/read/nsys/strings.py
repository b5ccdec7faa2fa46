"""Names of an export: ids into its string table, and the texts of NVTX ranges with what PyTorch appends to them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.arrays import Int32, Int64
from traceviz_dag.read.events import MISSING
from traceviz_dag.read.nsys.products import product_flops
from traceviz_dag.read.nsys.schema import NsysSchema, required, text
from traceviz_dag.read.secrets import masked_column

_STRINGS = "StringIds"
_APPENDED = (
    r"(?s)^(?P<name>.*?)(?:, seq = (?P<sequence>\d{1,18}))?(?:, op_id = (?P<operator>\d{1,18}))?"
    r"(?:, (?:sizes|input_op_ids|concrete_inputs) = .*)?$"
)
_PLAINLY_APPENDED = r"^(?P<name>[^,]*)(?:, seq = (?P<sequence>\d{1,18}))?(?:, op_id = (?P<operator>\d{1,18}))?$"
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
        rows = schema.select(_STRINGS, {"id": required("id"), "value": text("value")}, where=f"id IN ({listed})")
        if rows is not None:
            found |= dict(zip(rows["id"].to_pylist(), rows["value"].to_pylist(), strict=True))
    ids_found = np.array(sorted(found), dtype=np.int64)
    return Strings(ids_found, tuple(found[number] for number in ids_found.tolist()))


@dataclass(frozen=True, slots=True)
class RangeNames:
    """Names of NVTX ranges without what PyTorch appends.

    Attributes:
        name: dictionary column.
        operator: whether PyTorch's profiler pushed the range (it appends an operator id or a sequence number).
        sequence: sequence number of the autograd graph, or MISSING.
        flops: floating-point operations of a matrix product whose sizes PyTorch appended, or MISSING.
    """

    name: pa.DictionaryArray
    operator: npt.NDArray[np.bool_]
    sequence: Int64
    flops: Int64


def range_names(texts: pa.StringArray) -> RangeNames:
    """Part the texts of NVTX ranges: ``aten::add, seq = 3, op_id = 7, sizes = [...]`` is ``aten::add``."""
    plain = pc.fill_null(texts, "")
    # The pattern without a choice is several times as fast; it fits nearly all, and then says the same.
    parts = pc.extract_regex(plain, _PLAINLY_APPENDED)
    if parts.null_count:
        parts = _parted_with_care(plain, parts)
    sequence, operator = (_integers(parts.field(name)) for name in ("sequence", "operator"))
    names = parts.field("name").cast(pa.string()).dictionary_encode()
    return RangeNames(names, (operator != MISSING) | (sequence != MISSING), sequence, _flops(plain))


def _flops(plain: pa.StringArray) -> Int64:
    """Floating-point operations of each text that names a matrix product with its sizes; each distinct text once."""
    found = np.full(len(plain), MISSING, dtype=np.int64)
    rows = np.flatnonzero(pc.match_substring(plain, ", sizes = [").to_numpy(zero_copy_only=False))
    if len(rows):
        # A sequence number or operator id makes every text another.
        texts = plain.take(pa.array(rows))
        distinct = pc.replace_substring_regex(texts, r", (?:seq|op_id) = \d+", "").dictionary_encode()
        values = [
            MISSING if (flops := product_flops(text)) is None else flops for text in distinct.dictionary.to_pylist()
        ]
        found[rows] = np.array(values, dtype=np.int64)[np.asarray(distinct.indices)]
    return found


def _parted_with_care(plain: pa.StringArray, parts: pa.StructArray) -> pa.StructArray:
    """Part the texts that hold commas or sizes too."""
    rest = np.flatnonzero(pc.is_null(parts).to_numpy(zero_copy_only=False))
    texts = plain.take(pa.array(rest))
    careful = pc.extract_regex(texts, _APPENDED)
    maybe = pc.match_substring_regex(texts, _MAY_BE_APPENDED)
    columns = []
    for field in parts.type:
        whole = texts if field.name == "name" else pa.array([""] * len(rest), pa.string())
        values = pc.if_else(maybe, careful.field(field.name), whole)
        # Fields of a NULL struct are empty texts, so whole rows are replaced.
        columns.append(pc.replace_with_mask(parts.field(field.name), pc.is_null(parts), values.cast(field.type)))
    return pa.StructArray.from_arrays(columns, fields=list(parts.type))


def _integers(texts: pa.Array) -> Int64:
    """Numbers of texts that hold digits or nothing."""
    empty = pc.equal(texts, "")
    return np.asarray(pc.fill_null(pc.if_else(empty, None, texts).cast(pa.int64()), MISSING))


class TextCodes:
    """Texts that come piece by piece as codes into one list of words."""

    def __init__(self) -> None:
        self.words: dict[str | None, int] = {}

    def codes(self, texts: pa.Array) -> Int32:
        """The codes of some texts; what is new becomes a word, without secrets."""
        found = texts if pa.types.is_dictionary(texts.type) else texts.dictionary_encode()
        code = [self.words.setdefault(word, len(self.words)) for word in masked_column(found.dictionary).to_pylist()]
        indices = found.indices
        if indices.null_count:
            code.append(self.words.setdefault(None, len(self.words)))
            indices = indices.fill_null(len(code) - 1)
        return np.array(code, dtype=np.int32)[np.asarray(indices)] if code else np.empty(0, dtype=np.int32)

    def column(self, codes: Int32) -> pa.DictionaryArray:
        """Codes as a dictionary column."""
        none = self.words.get(None, -1)
        words = [word for word in self.words if word is not None]
        # Whoever came after the NULL moves up by one.
        shown = codes - (codes > none) if none >= 0 else codes
        values = pa.array(shown, pa.int32(), mask=codes == none if none >= 0 else None)
        return pa.DictionaryArray.from_arrays(values, pa.array(words, pa.string()))

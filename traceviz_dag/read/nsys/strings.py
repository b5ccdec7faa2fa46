"""Names of an export: ids into its string table, and the texts of NVTX ranges with what PyTorch appends to them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.arrays import Bool, Int32, Int64, distinct
from traceviz_dag.read.events import MISSING
from traceviz_dag.read.nsys.products import product_flops
from traceviz_dag.read.nsys.schema import NsysSchema, required, text
from traceviz_dag.read.secrets import masked_column

_STRINGS = "StringIds"
_APPENDED = (
    r"(?s)^(?P<name>.*?)(?:, seq = (?P<sequence>\d{1,18}))?(?:, op_id = (?P<operator>\d{1,18}))?"
    r"(?:, (?:sizes|input_op_ids|concrete_inputs) = .*)?$"
)
_SEQUENCE, _OPERATOR, _MOST_DIGITS = b", seq = ", b", op_id = ", 18
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
    every = np.concatenate([np.empty(0, np.int64), *ids])
    wanted = distinct(every[every != MISSING])
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
    *parts, fits = _plainly_parted(plain)
    flops = np.full(len(plain), MISSING, dtype=np.int64)
    rest = np.flatnonzero(~fits)
    if len(rest):
        with_care = plain.take(pa.array(rest))
        values = _parted_with_care(with_care)
        parts = [pc.replace_with_mask(*one) for one in zip(parts, [pa.array(~fits)] * 3, values, strict=True)]
        flops[rest] = _flops(with_care)
    sequence, operator = (_integers(part) for part in parts[1:])
    return RangeNames(parts[0].dictionary_encode(), (operator != MISSING) | (sequence != MISSING), sequence, flops)


def _flops(plain: pa.StringArray) -> Int64:
    """Floating-point operations of each text that names a matrix product with its sizes; each distinct text once."""
    found = np.full(len(plain), MISSING, dtype=np.int64)
    rows = np.flatnonzero(pc.match_substring(plain, ", sizes = [").to_numpy(zero_copy_only=False))
    if len(rows):
        # A sequence number or operator id makes every text another.
        texts = plain.take(pa.array(rows))
        products = pc.replace_substring_regex(texts, r", (?:seq|op_id) = \d+", "").dictionary_encode()
        values = [
            MISSING if (flops := product_flops(text)) is None else flops for text in products.dictionary.to_pylist()
        ]
        found[rows] = np.array(values, dtype=np.int64)[np.asarray(products.indices)]
    return found


def _plainly_parted(texts: pa.StringArray) -> tuple[pa.StringArray, pa.StringArray, pa.StringArray, Bool]:
    """Name, sequence number and operator id of texts without other commas, and which texts fit.

    Nearly all do, and a regular expression takes four times as long.
    """
    nothing = pa.array([""] * len(texts), pa.string())
    data = texts.buffers()[2]
    if data is None or not len(data):
        return nothing, nothing, nothing, np.ones(len(texts), dtype=bool)
    edges = np.frombuffer(texts.buffers()[1], dtype=np.int32)[texts.offset : texts.offset + len(texts) + 1]
    letters, end = np.frombuffer(data, dtype=np.uint8), edges[1:]
    commas = np.flatnonzero(letters[: edges[-1]] == ord(",")).astype(np.int32)
    place = np.searchsorted(commas, edges)
    count = np.diff(place)
    # Where there is no such comma, these are the end of the text.
    first, second = (
        np.where(count > number, np.append(commas, [0, 0])[place[:-1] + number], end) for number in range(2)
    )
    numbered = _follows(letters, first, second, _SEQUENCE)
    third = np.where(numbered, second, first)
    pushed = _follows(letters, third, end, _OPERATOR)
    fits: Bool = count == numbered.astype(np.int8) + pushed
    digits = []
    for there, label, low, high in ((numbered, _SEQUENCE, first, second), (pushed, _OPERATOR, third, end)):
        part = _slices(data, np.where(there, low + len(label), low), np.where(there, high, low))
        number = pc.and_(pc.ascii_is_decimal(part), pc.less_equal(pc.binary_length(part), _MOST_DIGITS))
        fits &= ~there | np.asarray(number.to_numpy(zero_copy_only=False), dtype=bool)
        digits.append(part)
    return _slices(data, edges[:-1], first), *digits, fits


def _follows(letters: npt.NDArray[np.uint8], low: Int32, high: Int32, label: bytes) -> Bool:
    """Whether a label is at each ``low``, and ends before ``high``."""
    found: Bool = low + len(label) < high
    for number, letter in enumerate(label):
        found &= letters[np.minimum(low + number, len(letters) - 1)] == letter
    return found


def _slices(data: pa.Buffer, low: Int32, high: Int32) -> pa.StringArray:
    """The texts from each low to its high, which ascend."""
    edges = np.stack([low, high], axis=1).reshape(-1).astype(np.int32)
    both = pa.StringArray.from_buffers(2 * len(low), pa.py_buffer(np.append(edges, edges[-1:])), data)
    return both.take(pa.array(np.arange(0, 2 * len(low), 2)))


def _parted_with_care(texts: pa.StringArray) -> list[pa.StringArray]:
    """Name, sequence number and operator id of texts that hold commas or sizes too."""
    careful = pc.extract_regex(texts, _APPENDED)
    maybe = pc.match_substring_regex(texts, _MAY_BE_APPENDED)
    whole = {"name": texts}
    nothing = pa.array([""] * len(texts), pa.string())
    return [
        pc.if_else(maybe, careful.field(name), whole.get(name, nothing)) for name in ("name", "sequence", "operator")
    ]


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

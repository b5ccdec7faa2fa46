"""Reads CSV exports of Nsight Compute: what its counters say of each kernel that it measured.

Both pages are read, as ``ncu --csv`` writes them: ``--page raw`` (a row per launch, a column per metric, units in the
first row) and ``--page details`` (a row per launch and metric). Metrics have their own names, or labels such as
``Duration``.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from traceviz_dag.errors import BadInputError
from traceviz_dag.read.regular_file import open_regular

_EXPORT = "export it with: LC_ALL=C ncu --import REPORT.ncu-rep --csv --page raw > FILE.csv"
_MOST_BYTES = 512 << 20
_KERNEL, _METRIC, _UNIT, _VALUE = "Kernel Name", "Metric Name", "Metric Unit", "Metric Value"
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?|-?\d{1,3}(,\d{3})+(\.\d+)?")
_PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}

_TIMES = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9, "nsecond": 1.0, "usecond": 1e3, "msecond": 1e6, "second": 1e9}
_BYTES = {f"{prefix}byte": factor for prefix, factor in _PREFIXES.items()}
_RATES = {f"{unit}/{second}": factor for unit, factor in _BYTES.items() for second in ("s", "second")}
_CYCLES = {
    **{f"{prefix}hz": factor for prefix, factor in _PREFIXES.items()},
    **{f"cycle/{unit}": 1e9 / factor for unit, factor in _TIMES.items()},
}
_COUNTS = {
    f"{prefix}{unit}": factor
    for prefix, factor in _PREFIXES.items()
    for unit in ("", "inst", "inst/cycle", "ops", "op", "ops/cycle", "/cycle", "1/cycle")
}
_SHARES = {"%": 0.01}
_MOST_PERCENT = 200.0
"""Of a peak; more is a number of another locale, whose comma is the decimal sign."""

_WEIGHTS = {"add": 1, "mul": 1, "fma": 2}
_WIDTHS = {"f": 1, "d": 1, "h": 2}
"""Instructions of half precision compute two numbers each."""

_TENSOR = re.compile(
    r"sm__ops_path_tensor_(?!.*int)(?P<base>.*?)(_sparsity_(on|off))?\.sum(?P<rate>\.per_cycle_elapsed)?"
)
_SCALAR = re.compile(r"sass_thread_inst_executed_op_([fdh](add|mul|fma))_pred_on")
_TENSOR_PIPE = re.compile(r"sm__(inst_executed_pipe_tensor|pipe_tensor).*")
_DURATION = ("gpu__time_duration.sum", "gpu__time_duration.avg", "Duration")


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """A kernel launch that Nsight Compute measured; NULL is None where the export lacks the counters.

    Attributes:
        name: as the export has it. grid, block: its sizes; None where the export has none.
        duration_ns: with the clocks that ncu sets, ns.
        flops: of scalar and tensor instructions. bytes: read from and written to device memory.
        compute_share, memory_share: throughput over the peak.
        reason: why flops is None; None where it is known.
    """

    name: str
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    duration_ns: float | None
    flops: float | None
    bytes: float | None
    compute_share: float | None
    memory_share: float | None
    reason: str | None


@dataclass(slots=True)
class _Launch:
    """What a file says of one launch: metric → (value, unit), several where a label has several units."""

    path: Path
    name: str
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    metrics: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    def value(self, names: Sequence[str], units: Mapping[str, float]) -> float | None:
        """The first of these metrics that has a value, in the units' base.

        Raises:
            BadInputError: it is no number, cannot be, or has another unit.
        """
        for name in names:
            for text, unit in self.metrics.get(name, ()):
                if text in ("", "n/a", "N/A", "nan"):
                    continue
                if unit in units:
                    most = _MOST_PERCENT if unit == "%" else math.inf
                    return self._number(name, text, most, whole=units[unit] == 1.0) * units[unit]
                if "__" in name:
                    fault = f"{name} of {self.name} is in {unit or 'no unit'}"
                    raise BadInputError(self.path, fault, "export it with --print-units base")
        return None

    def _number(self, name: str, text: str, most: float, *, whole: bool) -> float:
        """A number; ``whole``: of single things, which a sum has no fractions of. Scaled numbers have decimals."""
        fraction = text.rpartition(".")[2].strip("0") if "." in text else ""
        swapped = bool(fraction) if whole and name.endswith(".sum") else not whole and "," in text and "." not in text
        if swapped or not _NUMBER.fullmatch(text):
            raise BadInputError(self.path, f"{name} of {self.name} is {text!r}, not a number", _EXPORT)
        number = float(text.replace(",", ""))
        if not 0 <= number <= most:
            raise BadInputError(self.path, f"{name} of {self.name} is {text}, which cannot be", _EXPORT)
        return number


def read_ncu(path: Path) -> list[MeasuredKernel]:
    """The launches of an export, in its order.

    Raises:
        BadInputError: it is not such an export, holds no launch, or a number or unit cannot be read.
    """
    rows = _rows(path)
    header = next((row for row in rows if _KERNEL in row), None)
    if header is None:
        raise BadInputError(path, "is no CSV export of Nsight Compute (no column Kernel Name)", _EXPORT)
    if "Invocations" in header:
        raise BadInputError(path, "has sums over launches (--print-summary)", _EXPORT)
    rows = _of_table(path, header, rows)
    launches = list(_long(path, header, rows) if _METRIC in header else _wide(path, header, rows))
    if not launches:
        raise BadInputError(path, "names no kernel that was measured", _EXPORT)
    return [_measured(launch) for launch in launches]


def _of_table(path: Path, header: Sequence[str], rows: Iterator[list[str]]) -> Iterator[list[str]]:
    """The rows of the table; lines of the profiled program are shorter.

    Raises:
        BadInputError: a row is cut off: it is shorter, and begins as the launches before it do.
    """
    process = None
    for row in rows:
        if len(row) == len(header):
            process = row[1]
            yield row
        elif process and len(row) > 1 and row[0].isdigit() and row[1] == process:
            raise BadInputError(path, f"is cut off within the launch with ID {row[0]}", _EXPORT)


def _rows(path: Path) -> Iterator[list[str]]:
    try:
        with open_regular(path) as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise BadInputError(path, f"cannot be read ({error.strerror})", "check the path") from error
    if len(data) > _MOST_BYTES:
        raise BadInputError(path, f"is larger than {_MOST_BYTES >> 20} MiB", "export fewer launches or metrics")
    try:
        text = data.decode("utf-8-sig")
        if text.rpartition("\n")[2].count('"') % 2:
            raise BadInputError(path, "is cut off within its last line", _EXPORT)
        # What the profiled program wrote before may hold quotation marks.
        begin = text.rfind("\n", 0, max(text.find(_KERNEL), 0)) + 1
        yield from csv.reader(io.StringIO(text[begin:], newline=""))
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInputError(path, "is no CSV text", _EXPORT) from error


def _long(path: Path, header: Sequence[str], rows: Iterator[list[str]]) -> Iterator[_Launch]:
    """Launches of ``--page details``; rows of rules name no metric."""
    found: dict[tuple[str, str], _Launch] = {}
    for row in rows:
        cells = dict(zip(header, row, strict=True))
        key = (cells.get("ID", ""), cells[_KERNEL])
        launch = found.setdefault(key, _launch(path, cells)) if key not in found else found[key]
        if cells[_METRIC]:
            launch.metrics.setdefault(cells[_METRIC], []).append((cells.get(_VALUE, "").strip(), cells.get(_UNIT, "")))
    yield from found.values()


def _wide(path: Path, header: Sequence[str], rows: Iterator[list[str]]) -> Iterator[_Launch]:
    """Launches of ``--page raw``."""
    units = next(rows, None)
    if units is None:
        return
    if units[list(header).index(_KERNEL)]:
        raise BadInputError(path, "has no row of units below its header", _EXPORT)
    for row in rows:
        launch = _launch(path, dict(zip(header, row, strict=True)))
        for name, text, unit in zip(header, row, units, strict=True):
            launch.metrics.setdefault(name, []).append((text.strip(), unit))
        yield launch


def _launch(path: Path, cells: Mapping[str, str]) -> _Launch:
    grid, block = (_sizes(cells.get(name, "")) for name in ("Grid Size", "Block Size"))
    return _Launch(path, cells[_KERNEL], grid, block)


def _sizes(text: str) -> tuple[int, int, int] | None:
    numbers = re.findall(r"\d+", text)
    return (int(numbers[0]), int(numbers[1]), int(numbers[2])) if len(numbers) == 3 else None


def _measured(launch: _Launch) -> MeasuredKernel:
    duration = launch.value(_DURATION, _TIMES)
    flops, reason = _flops(launch, duration)
    return MeasuredKernel(
        *(launch.name, launch.grid, launch.block, duration, flops, _bytes(launch, duration)),
        launch.value(("sm__throughput.avg.pct_of_peak_sustained_elapsed", "Compute (SM) Throughput"), _SHARES),
        launch.value(
            ("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed", "Memory Throughput"), _SHARES
        ),
        reason,
    )


def _bytes(launch: _Launch, duration: float | None) -> float | None:
    total = launch.value(["dram__bytes.sum"], _BYTES)
    parts = [launch.value([f"dram__bytes_{way}.sum"], _BYTES) for way in ("read", "write")]
    if total is None and parts[0] is not None and parts[1] is not None:
        total = parts[0] + parts[1]
    rate = launch.value(["dram__bytes.sum.per_second"], _RATES)
    if rate is None:
        rate = launch.value(["Memory Throughput"], _RATES)
    return rate * duration / 1e9 if total is None and rate is not None and duration is not None else total


def _flops(launch: _Launch, duration: float | None) -> tuple[float | None, str | None]:
    """FLOPs of a launch, or None and the reason."""
    clock = launch.value(["smsp__cycles_elapsed.avg.per_second", "sm__cycles_elapsed.avg.per_second"], _CYCLES)
    cycles = None if clock is None or duration is None else clock * duration / 1e9
    tensor, scalar = _tensor(launch, cycles), _scalar(launch, cycles)
    if tensor is not None:
        return tensor + (scalar or 0.0), None
    pipe = [launch.value([name], {**_COUNTS, **_SHARES}) for name in launch.metrics if _TENSOR_PIPE.fullmatch(name)]
    if scalar is not None and pipe and not any(pipe):
        return (scalar, None) if _whole(launch) else (None, "the export lacks counters of some scalar operations")
    if scalar is None:
        return None, "the export has no counters of operations (--set roofline, or --set full)"
    return None, "the export has no counters of tensor operations (sm__ops_path_tensor_…)"


def _whole(launch: _Launch) -> bool:
    """Whether additions, products and both at once are counted, of single precision and each other that is."""
    counted = {match[1] for name in launch.metrics if (match := _SCALAR.search(name))}
    widths = {"f", *(each[0] for each in counted)}
    return counted >= {f"{width}{kind}" for width in widths for kind in _WEIGHTS}


def _tensor(launch: _Launch, cycles: float | None) -> float | None:
    """Operations on tensor cores. Counters of several formats overlap, so that the largest is taken."""
    whole: dict[str, float] = {}
    parts: dict[str, float] = {}
    for name in launch.metrics:
        if match := _TENSOR.fullmatch(name):
            count = launch.value([name], _COUNTS)
            per_cycle = match["rate"] is not None
            if count is None or (per_cycle and cycles is None):
                continue
            value = count * (cycles or 0.0) if per_cycle else count
            key = f"{match['base']}{match['rate']}"
            if "_sparsity_" in name:
                parts[key] = parts.get(key, 0.0) + value
            else:
                whole[key] = value
    return max((parts | whole).values(), default=None)


def _scalar(launch: _Launch, cycles: float | None) -> float | None:
    """Operations of other instructions; None where none of their counters is there."""
    found: list[float] = []
    for width, lanes in _WIDTHS.items():
        for kind, weight in _WEIGHTS.items():
            stems = [f"{unit}__sass_thread_inst_executed_op_{width}{kind}_pred_on" for unit in ("smsp", "sm")]
            count = launch.value([f"{stem}.sum" for stem in stems], _COUNTS)
            if count is None and cycles is not None:
                rate = launch.value([f"{stem}.sum.per_cycle_elapsed" for stem in stems], _COUNTS)
                count = None if rate is None else rate * cycles
            if count is not None:
                found.append(count * weight * lanes)
            elif cycles is not None:
                # ncu weighs these itself.
                weighed = launch.value([f"derived__{stems[0]}_x{weight * lanes}"], _COUNTS)
                found += [] if weighed is None else [weighed * cycles]
    return sum(found) if found else None

"""The header of a Kineto trace: the keys beside traceEvents, of which only a few are ever kept."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from traceviz_dag.read.events import MISSING, ProcessGroup, TraceHeader
from traceviz_dag.read.kineto.repair import repair
from traceviz_dag.read.kineto.schema import as_integer, as_text
from traceviz_dag.read.kineto.settings import kept_settings
from traceviz_dag.read.limits import LAST_INSTANT_NS, MOST_RANKS
from traceviz_dag.read.secrets import masked
from traceviz_dag.read.versions import cuda_version, hip_version
from traceviz_dag.spans import spanned, unspanned

_UNDEFINED = "undefined"
_LAST_BASE_NS = LAST_INSTANT_NS // 2
_MOST_SHOWN = 24

_VERSION = re.compile(r"\d{1,9}(\.\d{1,9}){0,3}", re.ASCII)

MOST_DEVICE_BYTES = 1 << 48
"""No GPU is believed to have more memory."""
_RANK = re.compile(r"\d{1,18}", re.ASCII)
_RANK_RANGES = re.compile(r"\d{1,9}(-\d{1,9})?(, ?\d{1,9}(-\d{1,9})?){0,9999}", re.ASCII)
_RANK_LIST = re.compile(r"\[?\s*(?:\d{1,18}\s*(?:,\s*\d{1,18}\s*)*)?\]?", re.ASCII)


class _Distributed(msgspec.Struct):
    rank: Any = None
    world_size: Any = None
    backend: Any = None
    pg_config: Any = None
    nccl_version: Any = None


class _Header(msgspec.Struct):
    schema_version: Any = msgspec.field(name="schemaVersion", default=None)
    device_properties: Any = msgspec.field(name="deviceProperties", default=None)
    distributed: Any = msgspec.field(name="distributedInfo", default=None)
    base_time_ns: Any = msgspec.field(name="baseTimeNanoseconds", default=None)
    with_stack: Any = None
    record_shapes: Any = None
    profile_memory: Any = None
    cuda_runtime_version: Any = None
    cuda_driver_version: Any = None
    hip_runtime_version: Any = None
    hip_driver_version: Any = None
    cupti_version: Any = None
    roctracer_version: Any = None
    capture: Any = msgspec.field(name="traceviz_capture", default=None)
    more_events: Any = msgspec.field(name="traceEvents", default=None)


def decode_header(before: bytes, after: bytes) -> tuple[TraceHeader, str | None]:
    """Facts from the text before and behind the events array.

    Args:
        before: from the opening brace up to, not including, the bracket of ``"traceEvents": [``.
        after: from behind the array's closing bracket to the closing brace; empty where the file breaks off.

    Returns:
        The facts, and what of the text cannot be read; None where all of it can.
    """
    key = before.rfind(b'"traceEvents"')
    bare_array = key < 0
    first = None if bare_array else _decode(before[:key].rstrip().removesuffix(b",") + b"}")
    last = None if bare_array else _decode(b"{" + after.lstrip().removeprefix(b","))
    facts, fault = _facts(first or _Header(), last or _Header())
    if first is None and not bare_array:
        fault = "the header before the events cannot be read"
    elif last is None and not bare_array:
        fault = "the header behind the events cannot be read"
    elif last is not None and last.more_events is not None:
        fault = "a second array traceEvents behind the first is not read"
    return facts, fault


def kept_header(text: bytes) -> dict[str, Any]:
    """What ``decode_header`` reads of one end of a file: up to the events, or from behind them.

    Returns:
        Key → value as it is written; nothing where it cannot be read.
    """
    key = text.rfind(b'"traceEvents"')
    inner = text[:key].rstrip().removesuffix(b",") + b"}" if key >= 0 else b"{" + text.lstrip().removeprefix(b",")
    found = _decode(inner) or _Header()
    told = {name: value for name, value in msgspec.to_builtins(found).items() if value is not None}
    capture = told.pop("traceviz_capture", None)
    if isinstance(capture, dict):
        kept: dict[str, Any] = {"settings": dict(kept_settings(capture))}
        if isinstance(ranks := capture.get("captured_ranks"), str) and _RANK_RANGES.fullmatch(ranks):
            kept["captured_ranks"] = ranks
        if _host_clock(capture) is not None:
            start = capture["clock"]["start"]
            kept["clock"] = {"start": {name: as_integer(start[name]) for name in ("utc_ns", "monotonic_ns")}}
        told["traceviz_capture"] = kept
    return told


def _captured_ranks(capture: object, world: int | None) -> str | None:
    """Ranks of the world that the capture plugin meant to record, in the form of tables."""
    given = capture.get("captured_ranks") if isinstance(capture, dict) else None
    if world is None or not isinstance(given, str) or not _RANK_RANGES.fullmatch(given):
        return None
    spans = [[int(number) for number in part.split("-")] for part in given.split(",")]
    # Each rank once, so that no header takes long.
    if any(span[-1] >= world for span in spans) or sum(span[-1] - span[0] + 1 for span in spans) > world:
        return None
    return spanned(unspanned(given)) or None


def _host_clock(capture: object) -> int | None:
    """UTC minus the monotonic clock, ns, where the capture plugin read both; None for numbers that no clock shows."""
    pair = capture
    for name in ("clock", "start"):
        pair = pair.get(name) if isinstance(pair, dict) else None
    if not isinstance(pair, dict):
        return None
    utc, monotonic = (as_integer(pair.get(name)) for name in ("utc_ns", "monotonic_ns"))
    return utc - monotonic if 0 < min(utc, monotonic) <= max(utc, monotonic) < _LAST_BASE_NS else None


def _facts(first: _Header, last: _Header) -> tuple[TraceHeader, str | None]:
    """What the header says, and what of it cannot be: a number that no job has is not believed."""
    told = {name: getattr(first, name) for name in _Header.__struct_fields__}
    parts = {name: getattr(last, name) if value is None else value for name, value in told.items()}
    distributed = _distributed(parts["distributed"])
    rank, unlikely_rank = _believed(distributed.rank, 0, MOST_RANKS - 1, "rank", "which no job has")
    world, unlikely_world = _believed(distributed.world_size, 1, MOST_RANKS, "a world size of", "which no job has")
    base, unlikely_base = _believed(
        parts["base_time_ns"], 1 - _LAST_BASE_NS, _LAST_BASE_NS - 1, "a base time in ns of", "which is no date"
    )
    faults = [fault for fault in (unlikely_rank, unlikely_world, unlikely_base) if fault]
    facts = TraceHeader(
        rank=rank,
        world_size=world,
        backend=_text(distributed.backend),
        process_groups=process_groups(distributed.pg_config),
        with_stack=_flag(parts["with_stack"]),
        record_shapes=_flag(parts["record_shapes"]),
        base_time_ns=base or 0,
        schema_version=_number(parts["schema_version"]),
        device_name=_device_name(parts["device_properties"]),
        nccl_version=_text(distributed.nccl_version),
        runtime_version=_version(parts, "runtime"),
        driver_version=_version(parts, "driver"),
        profiler_version=_profiler_version(parts),
        device_memory_bytes=_device_memory(parts["device_properties"]),
        profile_memory=_flag(parts["profile_memory"]),
        captured_ranks=_captured_ranks(parts["capture"], world),
        host_clock_ns=_host_clock(parts["capture"]),
        settings=kept_settings(parts["capture"]),
    )
    return facts, " and ".join(faults) or None


def process_groups(configuration: object) -> tuple[ProcessGroup, ...]:
    """Process groups of ``distributedInfo.pg_config``; empty for what is no list of groups."""
    if isinstance(configuration, str):
        try:
            configuration = msgspec.json.decode(configuration)
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            return ()
    entries = configuration if isinstance(configuration, list) else []
    return tuple(_process_group(entry) for entry in entries if isinstance(entry, dict))


def canonical_ranks(value: object) -> str:
    """A list of ranks as ``[0, 1]``, however it was written; text that is no full list stays as it is."""
    if isinstance(value, list | tuple):
        return str([as_integer(rank) for rank in value])
    return _canonical_text(as_text(value))


@lru_cache(maxsize=256)  # The ranks of a job have groups in common, above all that of all ranks.
def _canonical_text(text: str) -> str:
    if text and _RANK_LIST.fullmatch(text):
        return str([int(rank) for rank in _RANK.findall(text)])
    return text


def canonical_description(value: object) -> str:
    """A group description; "" where torch had none to give."""
    text = as_text(value)
    return "" if text == _UNDEFINED else text


def _process_group(entry: dict[str, Any]) -> ProcessGroup:
    ranks = _members(entry.get("ranks"))
    stated = (_number(entry.get(key)) for key in ("pg_size", "group_size"))
    size = next((number for number in stated if number is not None and 0 <= number <= MOST_RANKS), len(ranks))
    return ProcessGroup(
        name=_text(entry.get("pg_name")),
        description=_text(canonical_description(entry.get("pg_desc"))),
        ranks=ranks,
        size=size,
    )


def _members(value: object) -> tuple[int, ...]:
    """The ranks of a group; members that cannot be are as good as not listed."""
    # Each header of a large job has thousands: a list of integers goes without a text.
    if not (isinstance(value, list) and {*map(type, value)} <= {int}):
        text = canonical_ranks(value)
        value = [int(rank) for rank in _RANK.findall(text)] if _RANK_LIST.fullmatch(text) else []
    return _believed_members(tuple(value))


@lru_cache(maxsize=1024)  # As above; and all headers of a job, as they are kept, are one list of all its ranks.
def _believed_members(ranks: tuple[int, ...]) -> tuple[int, ...]:
    may_be = len({*ranks}) == len(ranks) and 0 <= min(ranks, default=0) <= max(ranks, default=0) < MOST_RANKS
    return ranks if may_be else ()


def _text(value: object) -> str | None:
    """A text without secrets; None where there is none."""
    return masked(as_text(value)) or None


def _decode(text: bytes) -> _Header | None:
    text = text.removeprefix(b"\xef\xbb\xbf")
    for decoder in (bytes, repair):
        try:
            return msgspec.json.decode(decoder(text), type=_Header)
        # RecursionError: nested more deeply than the decoder goes.
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return None


def _distributed(value: object) -> _Distributed:
    try:
        return msgspec.convert(value, _Distributed)
    except msgspec.ValidationError:
        return _Distributed()


def _number(value: object) -> int | None:
    number = as_integer(value)
    return None if number == MISSING else number


def _believed(value: object, least: int, most: int, words: str, verdict: str) -> tuple[int | None, str | None]:
    """A number between two bounds; None for any other, with a fault where the header gives one that is not."""
    number = _number(value)
    if number is not None and least <= number <= most:
        return number, None
    # A number of any size is one that is given; what is no number at all says nothing.
    given = number is not None or (isinstance(value, int | float) and not isinstance(value, bool))
    return None, f"its header says {words} {_shown(value)}, {verdict}" if given else None


def _shown(value: object) -> str:
    """A number as a line bears it."""
    text = str(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _flag(value: object) -> bool | None:
    if isinstance(value, str):
        value = {"true": 1, "false": 0}.get(value.strip().lower(), value)
    number = int(value) if isinstance(value, bool) else as_integer(value)
    return None if number == MISSING else bool(number)


def _device_name(properties: object) -> str | None:
    devices = properties if isinstance(properties, list) else []
    names = [device.get("name") for device in devices if isinstance(device, dict)]
    return next((_text(name) for name in names if isinstance(name, str) and name), None)


def _version(parts: Mapping[str, object], of: str) -> str | None:
    """A version of CUDA or HIP in words, from the number that these give it; None where there is none."""
    cuda, hip = (_number(parts[f"{name}_{of}_version"]) for name in ("cuda", "hip"))
    return cuda_version(cuda) or hip_version(hip)


def _profiler_version(parts: Mapping[str, object]) -> str | None:
    """The version of the library under the profiler, which says what it can record; None where there is none."""
    for name, words in (("cupti_version", "CUPTI"), ("roctracer_version", "roctracer")):
        # The number of CUPTI is whole, that of roctracer is not: 4.1.
        if _VERSION.fullmatch(told := as_text(parts[name])):
            return f"{words} {told}"
    return None


def _device_memory(properties: object) -> int | None:
    """The memory of the GPUs; None where they differ, or it is not stated."""
    devices = properties if isinstance(properties, list) else []
    stated = {_number(device.get("totalGlobalMem")) for device in devices if isinstance(device, dict)}
    size = stated.pop() if len(stated) == 1 else None
    return size if size is not None and 0 < size <= MOST_DEVICE_BYTES else None

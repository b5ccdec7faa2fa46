"""What is decoded of Kineto events: typed structs, a narrow one for each category and a lenient one for any event."""

from __future__ import annotations

from typing import Any, Union

import msgspec
import numpy as np

from traceviz_dag.read.events import (
    COLLECTIVE_NUMBERS,
    CPU_OP,
    DEVICE_SYNCHRONIZE,
    EVENT_RECORD,
    EVENT_SYNCHRONIZE,
    KERNEL,
    MEMORY_COPY,
    MEMORY_SET,
    MISSING,
    PYTHON_FUNCTION,
    STREAM_SYNCHRONIZE,
    STREAM_WAIT,
    USER_ANNOTATION,
)

HOST_GROUP, LAUNCH_GROUP, DEVICE_GROUP, SYNCHRONIZATION_GROUP, REST_GROUP = range(5)
"""What becomes of a category: a table of its own, or (rest) nothing but a count."""

_DEVICE_CODES = 3
LAUNCH_CODE, METADATA_CODE, IGNORED_CODE, SYNCHRONIZATION_CODE = 6, 7, 8, 9

GROUP_OF_CODE = np.array(
    [HOST_GROUP] * 3 + [DEVICE_GROUP] * 3 + [LAUNCH_GROUP] + [REST_GROUP] * 2 + [SYNCHRONIZATION_GROUP], np.uint8
)
"""Category code → group."""

TABLE_CODE_OF_CODE = np.array(
    [CPU_OP, PYTHON_FUNCTION, USER_ANNOTATION, KERNEL, MEMORY_COPY, MEMORY_SET, 0, 0, 0, 0], np.int8
)
"""Category code → code in ``HostRows.category`` or ``DeviceRows.category``."""

_CODE_OF_TEXT = {
    "cpu_op": CPU_OP,
    "python_function": PYTHON_FUNCTION,
    "user_annotation": USER_ANNOTATION,
    "kernel": _DEVICE_CODES + KERNEL,
    "gpu_memcpy": _DEVICE_CODES + MEMORY_COPY,
    "gpu_memset": _DEVICE_CODES + MEMORY_SET,
    "cuda_runtime": LAUNCH_CODE,
    "cuda_driver": LAUNCH_CODE,
    "ac2g": IGNORED_CODE,
    "fwdbwd": IGNORED_CODE,
    "gpu_user_annotation": IGNORED_CODE,
    "Trace": IGNORED_CODE,
    "overhead": IGNORED_CODE,
    "cpu_instant_event": IGNORED_CODE,
    "cuda_sync": SYNCHRONIZATION_CODE,
    "cuda_event": SYNCHRONIZATION_CODE,
}
"""Categories of today's Kineto."""

SYNCHRONIZATION_OF_NAME = {
    "Event Sync": EVENT_SYNCHRONIZE,
    "Stream Wait Event": STREAM_WAIT,
    "Stream Sync": STREAM_SYNCHRONIZE,
    "Context Sync": DEVICE_SYNCHRONIZE,
    "cudaEvent": EVENT_RECORD,
}
"""Name of a row of a synchronisation or a recorded event → its kind."""

_CODE_OF_OTHER_TEXT = {
    "": METADATA_CODE,
    "__metadata": METADATA_CODE,
    "operator": CPU_OP,
    "memcpy": _DEVICE_CODES + MEMORY_COPY,
    "memset": _DEVICE_CODES + MEMORY_SET,
    "runtime": LAUNCH_CODE,
}
"""Categories of older and other writers, in small letters and with underscores."""

CATEGORIES = frozenset(_CODE_OF_TEXT) | frozenset(_CODE_OF_OTHER_TEXT)
"""Categories as any of these writers has them."""


def category_code(text: str) -> int:
    """The code of a category in any version of Kineto; accelerators have runtimes and drivers of their own."""
    if text in _CODE_OF_TEXT:
        return _CODE_OF_TEXT[text]
    text = text.strip().lower().replace(" ", "_")
    if text.endswith(("_runtime", "_driver")):
        return LAUNCH_CODE
    return _CODE_OF_TEXT.get(text, _CODE_OF_OTHER_TEXT.get(text, IGNORED_CODE))


_NOT_GIVEN = float("nan")
_NO_KEY = "\x7f"
"""No key of a trace is called that."""

_NO_SIZE = (MISSING, MISSING, MISSING)

_OPERATOR_KEYS = {
    "external_id": "External id",
    "sequence_number": "Sequence number",
    "forward_thread": "Fwd thread id",
}
_PYTHON_KEYS = {
    "python_parent_id": "Python parent id",
    "python_id": "Python id",
}
_LAUNCH_KEYS = {
    "external_id": "External id",
    "correlation": "correlation",
    "old_external_id": "external id",
}
_DEVICE_KEYS = {
    "external_id": "External id",
    "device": "device",
    "stream": "stream",
    "correlation": "correlation",
    "registers_per_thread": "registers per thread",
    "shared_memory_bytes": "shared memory",
    "grid": "grid",
    "block": "block",
    "bytes": "bytes",
    "graph_id": "graph id",
    "graph_node_id": "graph node id",
    "old_external_id": "external id",
}
COMMUNICATION_KEYS = {
    "collective": "Collective name",
    "in_elements": "In msg nelems",
    "out_elements": "Out msg nelems",
    "group_size": "Group size",
    "dtype": "dtype",
    "in_split": "In split size",
    "out_split": "Out split size",
    "group_name": "Process Group Name",
    "group_description": "Process Group Description",
    "group_ranks": "Process Group Ranks",
    "sequence": "Seq",
    "source_rank": "Src Rank",
    "destination_rank": "Dst Rank",
}
INPUT_KEYS = {
    "concrete_inputs": "Concrete Inputs",
    "input_types": "Input type",
    "input_sizes": "Input Dims",
    "input_strides": "Input Strides",
}
"""Inputs of operators: every operator has them, few different ones, so each of these is decoded once."""

_NOT_DECODED = set(INPUT_KEYS)

_SYNCHRONIZATION_KEYS = {
    "wait_on_stream": "wait_on_stream",
    "record_correlation": "wait_on_cuda_event_record_corr_id",
    "event": "wait_on_cuda_event_id",
    "recorded_event": "event_id",
    "stream": "stream",
    "correlation": "correlation",
    "device": "device",
}
_THREAD_NAME_KEYS = {"name": "name"}
"""Attribute → key in ``args``, about in the order in which Kineto writes them, which decodes fastest."""


KEPT_ARGUMENTS = frozenset(
    key
    for keys in (
        *(_OPERATOR_KEYS, _PYTHON_KEYS, _LAUNCH_KEYS, _DEVICE_KEYS, COMMUNICATION_KEYS, INPUT_KEYS),
        *(_SYNCHRONIZATION_KEYS, _THREAD_NAME_KEYS),
    )
    for key in keys.values()
) | {"Total Allocated", "Total Reserved", "Addr", "Bytes", "Device Id", "Device Type", "sort_index"}
"""The arguments of events that are read, those of memory included."""

SIZE_KEYS = {attribute: _DEVICE_KEYS[attribute] for attribute in ("grid", "block")}
"""What has three dimensions."""

FACT_TEXTS = [attribute for attribute in COMMUNICATION_KEYS if attribute not in COLLECTIVE_NUMBERS]
"""What communications state that becomes text."""

INTEGER_KEYS = {
    attribute: key
    for attribute, key in (_OPERATOR_KEYS | _PYTHON_KEYS | _LAUNCH_KEYS | _DEVICE_KEYS | _SYNCHRONIZATION_KEYS).items()
    if attribute not in SIZE_KEYS
}


def _type_of(attribute: str) -> Any:
    if attribute in SIZE_KEYS:
        return tuple[int, int, int]
    if attribute in _NOT_DECODED:
        return msgspec.Raw
    return int | None if attribute in INTEGER_KEYS else Any


def _arguments(name: str, *keys: dict[str, str], lenient: bool = False) -> Any:
    """A struct of arguments, MISSING where not given; a lenient one takes any type, as these differ by version."""
    merged = {attribute: key for group in keys for attribute, key in group.items()}
    fields = []
    for attribute, key in merged.items():
        default: Any = _NO_SIZE if attribute in SIZE_KEYS else MISSING
        if attribute in _NOT_DECODED and not lenient:
            default = msgspec.Raw()
        field = msgspec.field(name=key, default=default)
        fields.append((attribute, Any if lenient else _type_of(attribute), field))
    return msgspec.defstruct(name, fields, gc=False, frozen=True)


Arguments = _arguments(
    "Arguments",
    _OPERATOR_KEYS,
    _PYTHON_KEYS,
    _DEVICE_KEYS,
    COMMUNICATION_KEYS,
    INPUT_KEYS,
    _THREAD_NAME_KEYS,
    _SYNCHRONIZATION_KEYS,
    lenient=True,
)
"""Arguments of an event of any category."""


class Event(msgspec.Struct, gc=False):
    """An event of any category. NaN represents an absent time."""

    cat: str = ""
    name: str = ""
    pid: int | str = MISSING
    tid: int | str = MISSING
    ts: float = _NOT_GIVEN
    dur: float = _NOT_GIVEN
    args: Arguments = Arguments()  # type: ignore[valid-type]


ARGUMENTS_OF_CODE: dict[int, Any] = {
    CPU_OP: _arguments("OperatorArguments", _OPERATOR_KEYS, INPUT_KEYS, COMMUNICATION_KEYS),
    USER_ANNOTATION: _arguments("AnnotationArguments", _OPERATOR_KEYS, INPUT_KEYS),
    PYTHON_FUNCTION: _arguments("PythonArguments", _PYTHON_KEYS),
    LAUNCH_CODE: _arguments("LaunchArguments", _LAUNCH_KEYS),
    SYNCHRONIZATION_CODE: _arguments("SynchronizationArguments", _SYNCHRONIZATION_KEYS),
    **dict.fromkeys(
        (_DEVICE_CODES + KERNEL, _DEVICE_CODES + MEMORY_COPY, _DEVICE_CODES + MEMORY_SET),
        _arguments("DeviceArguments", _DEVICE_KEYS, COMMUNICATION_KEYS),
    ),
}
"""What is read of the arguments of each category that has a table."""


def _tagged_event(category: str, code: int) -> Any:
    """A struct of one category's events with as few fields as it needs; ignored ones need none but their code."""
    fields: list[Any] = [("code", int, msgspec.field(name=_NO_KEY, default=code))]
    if code in ARGUMENTS_OF_CODE:
        arguments = ARGUMENTS_OF_CODE[code]
        fields = [(part.name, part.type, part.default) for part in msgspec.structs.fields(Event)[1:-1]] + [
            ("args", arguments, arguments()),
            *fields,
        ]
    return msgspec.defstruct(f"{category}_event", fields, gc=False, tag_field="cat", tag=category)


TaggedEvent: Any = Union[tuple(_tagged_event(text, code) for text, code in _CODE_OF_TEXT.items())]  # noqa: UP007
"""An event of one of today's categories, with its ``code``; what has another category or none does not validate."""


def as_integer(value: object) -> int:
    """The integer that ``value`` means, MISSING where it means none; true and false are no numbers."""
    if isinstance(value, str):
        try:
            value = int(value) if value.lstrip("-").isdecimal() else float(value)
        except ValueError:
            return MISSING
    if isinstance(value, float):
        value = int(value) if value.is_integer() else MISSING
    return value if type(value) is int and abs(value) < 2**63 else MISSING


def as_text(value: object) -> str:
    """``value`` as text; "" for nothing."""
    if value is None or value == MISSING:
        return ""
    return value.strip() if isinstance(value, str) else str(value)


def as_triple(value: object) -> tuple[int, int, int]:
    """Three dimensions; MISSING where they are not given."""
    numbers = [as_integer(part) for part in value] if isinstance(value, list | tuple) else []
    x, y, z = (*numbers, MISSING, MISSING, MISSING)[:3]
    return x, y, z

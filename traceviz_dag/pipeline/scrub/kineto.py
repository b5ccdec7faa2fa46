"""A Kineto trace without names of its site: what traceviz reads of it stays, everything else is left out."""

from __future__ import annotations

import gzip
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, Any

import msgspec

from traceviz_dag.errors import BadInputError
from traceviz_dag.pipeline.scrub.names import PRODUCT, Names
from traceviz_dag.read.kineto.boundaries import NotATraceError
from traceviz_dag.read.kineto.chunks import EventArray
from traceviz_dag.read.kineto.header import kept_header
from traceviz_dag.read.kineto.reader import CHUNK_BYTES
from traceviz_dag.read.kineto.schema import CATEGORIES, KEPT_ARGUMENTS
from traceviz_dag.read.other_files import not_a_trace
from traceviz_dag.read.sources import ByteSource
from traceviz_dag.system.whole_files import whole_file

_RANGES = frozenset({"user_annotation", "gpu_user_annotation"})
_OF_JOB = frozenset({"backend", "rank", "world_size", "nccl_version", "pg_count", "pg_config"})
_OF_GROUP = frozenset({"pg_name", "pg_desc", "backend_config", "pg_size", "group_size", "ranks"})
_LEVEL = 1
"""Of gzip: events compress well, and higher levels take three times as long."""


class _Event(msgspec.Struct, omit_defaults=True):
    ph: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    cat: Any = msgspec.UNSET
    name: Any = msgspec.UNSET
    pid: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    tid: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    ts: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    dur: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    bp: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    s: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    args: dict[str, msgspec.Raw] | msgspec.UnsetType = msgspec.UNSET


_DECODER = msgspec.json.Decoder(list[_Event])
_COPIED = ("ph", "pid", "tid", "ts", "dur", "id", "bp", "s")
"""Fields that are copied as they are written, unless they hold texts."""


def scrub_kineto(source: Path, target: Path, names: Names) -> None:
    """Write a trace again, gzip where its name says so.

    Times, sizes and identifiers are copied as they are written. Of arguments, those that traceviz reads stay; texts in
    them keep words of the field alone.

    Raises:
        BadInputError: the source is no trace, or was not written to its end.
    """
    events = 0
    with ByteSource(source) as read, whole_file(target) as file, _packed(target, file) as out:
        array: EventArray[list[_Event]] = EventArray(read, _DECODER.decode, CHUNK_BYTES)
        head = False

        def write(piece: list[_Event]) -> None:
            nonlocal events, head
            if not head:
                # What stands in front of the events is known with the first of them.
                first = msgspec.json.encode(_header(kept_header(array.before), names))
                out.write(first[:-1] + (b", " if len(first) > 2 else b"") + b'"traceEvents": [\n')
                head = True
            for event in piece:
                out.write(b",\n" if events else b"")
                out.write(msgspec.json.encode(_scrubbed(event, names)))
                events += 1

        try:
            array.feed(write)
        except NotATraceError as error:
            raise not_a_trace(source, str(error)) from None
        if not array.complete or array.dropped or not events:
            raise BadInputError(source, "it was not read to its end", "scrub traces that are whole: export it again")
        rest = msgspec.json.encode(_header(kept_header(array.after), names))[1:]
        out.write(b"\n]" + (b", " if len(rest) > 1 else b"") + rest)


def _packed(target: Path, file: IO[bytes]) -> AbstractContextManager[Any]:
    return gzip.GzipFile("", "wb", _LEVEL, file, 0) if target.suffix == ".gz" else nullcontext(file)


def _scrubbed(event: _Event, names: Names) -> _Event:
    category = event.cat if isinstance(event.cat, str) else ""
    if not isinstance(event.name, str):
        event.name = _texts(event.name, names)
    elif category == "python_function":
        event.name = names.function(event.name)
    else:
        event.name = names.range(event.name) if category in _RANGES else names.library(event.name)
    if category not in CATEGORIES:
        event.cat = _texts(event.cat, names)
    for field in _COPIED:
        value = getattr(event, field)
        if value is not msgspec.UNSET:
            setattr(event, field, _told(value, names))
    if isinstance(event.args, dict):
        event.args = {key: _told(value, names) for key, value in event.args.items() if key in KEPT_ARGUMENTS}
    return event


def _told(value: msgspec.Raw, names: Names) -> msgspec.Raw:
    """A value; its texts without what they tell."""
    if b'"' not in bytes(value):
        return value
    return msgspec.Raw(msgspec.json.encode(_texts(msgspec.json.decode(value), names)))


def _texts(value: Any, names: Names) -> Any:
    if isinstance(value, str):
        return names.library(value)
    if isinstance(value, list):
        return [_texts(each, names) for each in value]
    return (
        {names.library(key): _texts(each, names) for key, each in value.items()} if isinstance(value, dict) else value
    )


def _header(kept: dict[str, Any], names: Names) -> dict[str, Any]:
    """A header, whose keys are the format's."""
    devices, job, capture = (kept.pop(key, None) for key in ("deviceProperties", "distributedInfo", "traceviz_capture"))
    told = {key: _texts(value, names) for key, value in kept.items()}
    if isinstance(devices, list):
        told["deviceProperties"] = [_device(each) for each in devices if isinstance(each, dict)]
    if isinstance(job, dict):
        groups = job.get("pg_config")
        of_job = {key: _texts(value, names) for key, value in job.items() if key in _OF_JOB}
        if isinstance(groups, str):
            groups = _decoded(groups)
        if isinstance(groups, list):
            of_job["pg_config"] = [_group(each, names) for each in groups if isinstance(each, dict)]
        told["distributedInfo"] = of_job
    if capture:
        settings = {key: names.library(value) for key, value in capture["settings"].items()}
        told["traceviz_capture"] = {**capture, "settings": settings}
    return told


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None


def _group(stated: dict[str, Any], names: Names) -> dict[str, Any]:
    return {key: _texts(value, names) for key, value in stated.items() if key in _OF_GROUP}


def _device(properties: dict[str, Any]) -> dict[str, Any]:
    """The memory of a GPU, and what it is."""
    size = properties.get("totalGlobalMem")
    told = {"totalGlobalMem": size} if isinstance(size, int | float) else {}
    name = properties.get("name")
    return told | ({"name": name} if isinstance(name, str) and PRODUCT.fullmatch(name) else {})

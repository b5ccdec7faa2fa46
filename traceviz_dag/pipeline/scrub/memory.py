"""A snapshot of GPU memory without names of its site: what traceviz reads of it stays, everything else is left out."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from traceviz_dag.analyze.memory.roles import FUNCTIONS, roles_of
from traceviz_dag.errors import BadInputError
from traceviz_dag.pipeline.scrub.names import Names
from traceviz_dag.read.memory.extraction import TYPES_OF_SETTINGS
from traceviz_dag.read.memory.reader import read_snapshot
from traceviz_dag.read.memory.snapshot import ACTIONS, STATES, UNKNOWN, Annotation, Frame, Snapshot, Stacks
from traceviz_dag.system.whole_files import write_atomically

_PLACE = re.compile(r"(.*)\((\d+)\): (.*)", re.DOTALL)
_SIZES = {0: "large", 1: "small"}


def scrub_memory(source: Path, target: Path, names: Names) -> None:
    """Write a snapshot again: addresses, sizes, times and lines stay; names of files and functions are hidden.

    Raises:
        BadInputError: it is no snapshot, or what is left of its stacks would be categorised in another way.
    """
    snapshot = read_snapshot(source)
    stacks = Stacks(tuple(_frame(one, names) for one in snapshot.stacks.frames), snapshot.stacks.of_stacks)
    if roles_of(stacks) != roles_of(snapshot.stacks):
        raise BadInputError(source, "its categories rest on names of your site", "give its traces without it")
    frames = [{"name": one.name, "filename": one.file, "line": one.line} for one in stacks.frames]
    # Rows share the frames of their stack, as those of PyTorch do.
    of_stack = [[frames[place] for place in places] for places in stacks.of_stacks]
    annotations = [row for one in _in_order(snapshot.annotations) for row in _rows_of(one, names)]
    content = {
        "segments": _segments(snapshot, of_stack),
        "device_traces": _traces(snapshot, of_stack),
        "allocator_settings": dict(_settings(snapshot, names)),
        "external_annotations": annotations,
    }
    write_atomically(target, pickle.dumps(content, protocol=4))


def _frame(frame: Frame, names: Names) -> Frame:
    if not frame.is_python:
        return Frame(names.library(frame.name), names.library(frame.file), frame.line)
    found = _PLACE.fullmatch(names.function(f"{frame.file}({frame.line}): {frame.name}"))
    file, name = (found[1], found[3]) if found else ("<unknown>", "")
    return Frame(frame.name if frame.name in FUNCTIONS else name, file, frame.line)


def _known(**values: Any) -> dict[str, Any]:
    """A row without the numbers that are unknown."""
    return {key: value for key, value in values.items() if value is not None and value != UNKNOWN}


def _rows(columns: Mapping[str, Any]) -> Iterator[dict[str, int]]:
    listed = [values.tolist() for values in columns.values()]
    return (dict(zip(columns, row, strict=True)) for row in zip(*listed, strict=True))


def _segments(snapshot: Snapshot, of_stack: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    segments: list[dict[str, Any]] = [
        {
            **_known(device=row["device"], address=row["address"], total_size=row["bytes"], stream=row["stream"]),
            **_known(
                segment_type=_SIZES.get(row["small"]), frames=of_stack[row["stack"]] if row["stack"] >= 0 else None
            ),
            "is_expandable": bool(row["expandable"]),
            "blocks": [],
        }
        for row in _rows(snapshot.segments)
    ]
    for row in _rows(snapshot.blocks):
        segments[row["segment"]]["blocks"].append(
            _known(
                address=row["address"],
                size=row["bytes"],
                requested_size=row["requested"],
                state=STATES[row["state"]],
                frames=of_stack[row["stack"]] if row["stack"] >= 0 else None,
            )
        )
    return segments


def _traces(snapshot: Snapshot, of_stack: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    traces: list[list[dict[str, Any]]] = [[] for _ in range(max(snapshot.events["device"].tolist(), default=-1) + 1)]
    for number, row in enumerate(_rows(snapshot.events)):
        traces[row["device"]].append(
            _known(
                action=ACTIONS[row["action"]],
                addr=row["address"],
                size=row["bytes"],
                stream=row["stream"],
                time_us=row["time_us"],
                device_free=snapshot.ooms.get(number),
                frames=of_stack[row["stack"]] if row["stack"] >= 0 else None,
            )
        )
    return traces


def _settings(snapshot: Snapshot, names: Names) -> Iterator[tuple[str, Any]]:
    for key, value in snapshot.settings.items():
        name = key if key in TYPES_OF_SETTINGS else names.library(key)
        yield name, names.library(value) if isinstance(value, str) else value


def _in_order(annotations: tuple[Annotation, ...]) -> list[Annotation]:
    """Ends without a start first and starts without an end last, so that reading joins the same ones again."""
    return sorted(annotations, key=lambda one: (one.start_us is not None, one.end_us is None))


def _rows_of(annotation: Annotation, names: Names) -> Iterator[dict[str, Any]]:
    for stage, time in (("START", annotation.start_us), ("END", annotation.end_us)):
        if time is not None:
            yield {"name": names.range(annotation.name), "stage": stage, "device": annotation.device, "time_us": time}

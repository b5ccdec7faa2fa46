"""Reads snapshots of CUDA memory, in a child process that may neither take much nor do anything else."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import traceviz_dag
from traceviz_dag.errors import BadInputError
from traceviz_dag.read.memory.child import BASE_BYTES, PER_BYTE
from traceviz_dag.read.memory.snapshot import Annotation, Frame, Snapshot, Stacks
from traceviz_dag.read.regular_file import open_regular
from traceviz_dag.read.secrets import masked_words
from traceviz_dag.system.processes import run_reader

_REMEDY = "give a file that torch.cuda.memory._dump_snapshot wrote"
_ALONE = "import sys; sys.path.insert(0, sys.argv[1]); from traceviz_dag.read.memory.child import main; main()"
_INSTALLED = re.compile(r"^.*/(?=(?:site|dist)-packages/)|^.*/(?=python3\.\d+/)")
_PACKAGES = re.compile(r"^(?:site|dist)-packages/")
_MAGIC = (
    (b"PK\x03\x04", "a zip archive, such as torch.save writes, is no snapshot"),
    (b"\x1f\x8b", "it is compressed"),
    (b"SQLite format 3", "a database is no snapshot"),
    (b"\x89HDF", "an HDF5 file is no snapshot"),
    (b"\x93NUMPY", "an array of NumPy is no snapshot"),
    (b"{", "a JSON text is no snapshot"),
    (b"[", "a JSON text is no snapshot"),
    (b"<", "an HTML page is no snapshot"),
)
_REMEDIES = {b"\x1f\x8b": "unpack it first"}


def read_snapshot(path: Path) -> Snapshot:
    """Read a snapshot.

    The file may come from anyone. A process of its own reads it, with 1 GiB of memory and 6 times the file, and time in
    proportion to its size; it knows no opcode that names or calls anything.

    Raises:
        BadInputError: it is missing, empty, cut off, no snapshot, or holds what no snapshot holds.
        OSError: it cannot be opened.
    """
    try:
        opened = open_regular(path)
    except FileNotFoundError:
        raise BadInputError(path, "no such file", "check the path") from None
    with opened as file:
        begin = file.read(16)
        if not begin:
            raise BadInputError(path, "not read: it is empty", _REMEDY)
        for magic, fault in _MAGIC:
            if begin.startswith(magic):
                raise BadInputError(path, fault, _REMEDIES.get(magic, _REMEDY))
        file.seek(0)
        root = str(Path(traceviz_dag.__file__).parents[1])
        ended = run_reader([sys.executable, "-I", "-S", "-c", _ALONE, root], file)
        size = os.fstat(file.fileno()).st_size
    if ended.returncode:
        raise BadInputError(path, _fault_of(ended.returncode, size), _REMEDY)
    end = ended.stdout.index(b"\n")
    header = json.loads(ended.stdout[:end])
    if "fault" in header:
        raise BadInputError(path, f"not read: {header['fault']}", _REMEDY)
    return decoded(header, memoryview(ended.stdout)[end + 1 :], size)


def decoded(header: dict[str, Any], data: bytes | memoryview, size: int) -> Snapshot:
    """The snapshot that the child process handed back."""
    tables: defaultdict[str, dict[str, npt.NDArray[np.int64]]] = defaultdict(dict)
    at = 0
    for table, name, code, count in header["columns"]:
        values = np.frombuffer(data, np.dtype(code), count, at)
        # Arrow wants aligned buffers.
        tables[table][name] = np.require(values.astype(np.int64, copy=False), requirements="A")
        at += values.nbytes
    return Snapshot(
        tables["events"],
        tables["segments"],
        tables["blocks"],
        _stacks(header["frames"], tables["stacks"]["frames"], tables["frames_of_stacks"]["frame"]),
        _annotations(header["annotations"]),
        {place: free if free >= 0 else None for place, free in header["ooms"]},
        {key: masked_words([one])[0] if isinstance(one, str) else one for key, one in header["settings"].items()},
        header["traces"],
        header["unknown"],
        header["unusable"],
        header["unusable_values"],
        size,
    )


def shortened_file(name: str) -> str:
    """A source file without what is before the package: home folders, environments, ``site-packages``."""
    return _PACKAGES.sub("", _INSTALLED.sub("", name.replace("\\", "/")))


def _stacks(frames: list[list[Any]], lengths: npt.NDArray[np.int64], places: npt.NDArray[np.int64]) -> Stacks:
    names = masked_words(name for name, _, _ in frames)
    files = masked_words(shortened_file(file) for _, file, _ in frames)
    ends = np.cumsum(lengths).tolist()
    every = places.tolist()
    return Stacks(
        tuple(Frame(name, file, line) for name, file, (_, _, line) in zip(names, files, frames, strict=True)),
        tuple(tuple(every[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)),
    )


def _annotations(rows: list[list[Any]]) -> tuple[Annotation, ...]:
    """Join starts with ends of the same name and device, the innermost first."""
    found: list[Annotation] = []
    names = masked_words(name for name, _, _, _ in rows)
    open_since: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for name, (_, stage, device, time) in zip(names, rows, strict=True):
        starts = open_since[name, device]
        if stage == "START":
            starts.append(time)
        else:
            found.append(Annotation(name, device, starts.pop() if starts else None, time))
    left = [Annotation(name, device, start, None) for (name, device), starts in open_since.items() for start in starts]
    return tuple(sorted([*found, *left], key=lambda one: one.start_us or one.end_us or 0))


def _fault_of(code: int, size: int) -> str:
    if code in (-signal.SIGXCPU, -signal.SIGALRM):
        return "not read: it takes longer than a snapshot of its size does"
    if code < 0:
        most = (BASE_BYTES + PER_BYTE * size) >> 20
        return f"not read: the process that read it was ended by signal {-code}; it may take {most:,} MiB of memory"
    return f"not read: the process that read it failed (exit code {code})"

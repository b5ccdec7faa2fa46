"""What a registering run does with one watched folder: fetch it, see whether it is whole and complete, write it down.

Here files are opened; the sensor's tick only lists.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from sensors.ledger import FolderRecord, FolderState
from sensors.listing import FolderLook, Folders, is_trace_name, is_url, look_at, open_folders, store_of
from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.inputs import (
    IterationInputs,
    all_registered,
    register,
    registered_if_any,
    registered_of_run,
    with_digests,
)
from traceviz_dag.lake.known_ranks import drop_unlisted_ranks, with_vanished_ranks
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.read.kineto.peek import peek_header
from traceviz_dag.read.layouts import discover
from traceviz_dag.read.nsys.open import is_nsys, is_whole_export
from traceviz_dag.read.sources import ByteSource
from traceviz_dag.read.topology_file import read_topology_file
from traceviz_dag.system.paths import real_path
from traceviz_dag.system.whole_files import temporary_of

_FETCHED = "fetched"
_EARLIER_ITERATIONS = 3
_TAIL_BYTES = 64
_BLOCK_BYTES = 1 << 20
_DIGEST_DIGITS = 8
_EXPORT_SUFFIX = ".sqlite"


@dataclass(frozen=True, slots=True)
class FolderTask:
    """One folder to register.

    Attributes:
        folder: its path or URL.
        root: the watched root that it lies below.
        digest: of the look that made it due; a folder that looks different by now is left to the next looks. Empty
            takes it as it is.
        overdue: take it as it is, however incomplete.
        expected_ranks: ranks of every iteration, where that is configured.
    """

    folder: str
    root: str
    digest: str = ""
    overdue: bool = False
    expected_ranks: int | None = None


@dataclass(frozen=True, slots=True)
class Registration:
    """What became of a folder.

    Attributes:
        iterations: its iterations as they are registered now; empty while it waits.
        record: for the ledger; None where the folder changed meanwhile.
        partial: iteration key → expected ranks that have no trace.
        warnings: one line for each file that could not be placed, or contradicts its path.
    """

    iterations: tuple[IterationInputs, ...]
    record: FolderRecord | None
    partial: dict[str, list[int]]
    warnings: tuple[str, ...] = ()


def register_folder(home: Path, task: FolderTask) -> Registration:
    """Register the iterations of one folder, if they are whole and complete, or overdue.

    Raises:
        OSError: the folder cannot be listed or read.
    """
    folders = open_folders(task.root)
    look = look_at(task.folder, folders.entries(task.folder), folders.changed_ns(task.folder))
    if look is None:
        return Registration((), None, {})
    if task.digest and look.digest != task.digest:
        return Registration((), None, {})
    local = _fetch(folders, home, task) if is_url(task.root) else real_path(Path(task.folder))
    growing = [] if task.overdue else _growing_exports(local)
    if growing:
        # Half an export is none, so that the rest of the folder would be taken for all of it.
        return Registration((), _record(look, FolderState.WAITING, reason=_still_written(growing)), {})
    found, problem = _iterations_in(home, local, look)
    if problem is not None:
        return Registration((), _record(look, FolderState.NOTHING, reason=str(problem)), {})
    unfinished = [] if task.overdue else _half_written(home, found)
    missing = {one.key: gap for one in found if (gap := _missing_ranks(home, one, task.expected_ranks))}
    new = {one.key for one in found if registered_if_any(home, one.key) is None}
    reason = ""
    if unfinished:
        reason = _still_written(unfinished)
    elif not task.overdue and missing.keys() & new:
        reason = "; ".join(f"{key} lacks ranks {missing[key]}" for key in sorted(missing.keys() & new))
    ranks = max((len(one.ranks) for one in found), default=0)
    if reason:
        return Registration((), _record(look, FolderState.WAITING, ranks, reason=reason), missing)
    digested = with_digests(home, [_flagged(one, missing.get(one.key, [])) for one in found])
    settled = [with_vanished_ranks(home, _with_elsewhere(home, local, one)) for one in digested]
    lake = open_lake(home)
    for one in settled:
        drop_unlisted_ranks(lake, one)
        register(home, one)
    is_iteration = any(Path(one.folder) == local.parent for one in settled)
    return Registration(
        iterations=tuple(settled),
        record=_record(look, FolderState.REGISTERED, ranks, is_iteration=is_iteration),
        partial=missing,
        warnings=tuple(line for one in settled for line in (*one.problems, *one.warnings)),
    )


def is_whole(path: Path) -> bool:
    """Whether a trace file was written to its end: JSON closes its last bracket, gzip its stream."""
    if is_nsys(path):
        return is_whole_export(path)
    try:
        with ByteSource(path) as source:
            if not source.compressed:
                return _last_byte(path) in {b"}", b"]"}
            block = memoryview(bytearray(_BLOCK_BYTES))
            while source.readinto(block):
                pass
            return source.fault is None
    except BadInputError:
        return False


def _last_byte(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        return file.read().rstrip()[-1:]


def _record(
    look: FolderLook, state: FolderState, ranks: int = 0, *, reason: str = "", is_iteration: bool = False
) -> FolderRecord:
    return FolderRecord(
        digest=look.digest,
        state=state,
        ranks=ranks,
        changed_ns=look.changed_ns,
        newest_ns=look.newest_ns,
        is_leaf=look.is_leaf,
        is_iteration=is_iteration,
        reason=reason,
    )


def _iterations_in(home: Path, local: Path, look: FolderLook) -> tuple[list[IterationInputs], BadInputError | None]:
    """The iterations whose traces lie in the folder itself; of a folder with a topology text file alone, those of its
    run that are registered."""
    if not look.traces:
        return _with_newest_topology(home, local), None
    try:
        below = inputs_below([local], home=home)
    except BadInputError as error:
        return [], error
    own = []
    for one in below:
        ranks = tuple(entry for entry in one.ranks if Path(entry.path).parent == local)
        if ranks:
            own.append(replace(one, ranks=ranks))
    return own, None


def _with_newest_topology(home: Path, run_folder: Path) -> list[IterationInputs]:
    changed = []
    for one in all_registered(home):
        if Path(one.folder) == run_folder and one.ranks and Path(one.ranks[0].path).exists():
            (run,) = discover([Path(one.ranks[0].path)])
            changed.append(replace(one, topology_file=str(run.topology_file) if run.topology_file else None))
    return changed


def _with_elsewhere(home: Path, local: Path, inputs: IterationInputs) -> IterationInputs:
    """Ranks of the iteration that were registered from other folders, which have their own looks, stay."""
    known = registered_if_any(home, inputs.key)
    found = {entry.rank for entry in inputs.ranks} | set(inputs.disputed)
    others = [
        entry
        for entry in (known.ranks if known is not None else ())
        if entry.rank not in found and Path(entry.path).parent != local and Path(entry.path).exists()
    ]
    return replace(inputs, ranks=tuple(sorted((*inputs.ranks, *others), key=lambda entry: entry.rank)))


def _flagged(inputs: IterationInputs, missing: Sequence[int]) -> IterationInputs:
    if not missing:
        return inputs
    return replace(inputs, warnings=(*inputs.warnings, f"{inputs.key}: no traces of ranks {list(missing)} yet"))


def _growing_exports(local: Path) -> list[str]:
    """Names of exports in a folder that are not whole, those too that cannot be told for exports yet."""
    files = (path for path in sorted(local.glob(f"*{_EXPORT_SUFFIX}")) if is_trace_name(path.name) and path.is_file())
    return [path.name for path in files if not is_whole_export(path)]


def _still_written(names: Sequence[str]) -> str:
    return f"still being written: {', '.join(names)}"


def _half_written(home: Path, found: Sequence[IterationInputs]) -> list[str]:
    """Names of files that look different from what is registered and do not end as a trace does."""
    known = {
        entry.look
        for one in found
        if (before := registered_if_any(home, one.key)) is not None
        for entry in before.ranks
    }
    new = {entry.path: entry.name for one in found for entry in one.ranks if entry.look not in known}
    return sorted(name for path, name in new.items() if not is_whole(Path(path)))


def _missing_ranks(home: Path, inputs: IterationInputs, configured: int | None) -> list[int]:
    """Expected ranks without a trace: of those configured, else of the run's earlier iterations, else of the world."""
    found = {entry.rank for entry in inputs.ranks}
    if configured is not None:
        return sorted(set(range(configured)) - found)
    earlier = registered_of_run(home, inputs.run, before=inputs.iteration, newest=_EARLIER_ITERATIONS)
    if earlier:
        return sorted({entry.rank for one in earlier for entry in one.ranks} - found)
    return sorted(set(range(_world_size(inputs) or 0)) - found)


def _world_size(inputs: IterationInputs) -> int | None:
    if any(entry.part for entry in inputs.ranks):
        return _world_of_text(inputs.topology_file)
    for entry in inputs.ranks:
        try:
            return peek_header(Path(entry.path)).world_size
        except BadInputError:
            continue
    return None


def _world_of_text(topology_file: str | None) -> int | None:
    """The size of the job of exports, which do not state it themselves."""
    if topology_file is None:
        return None
    try:
        return read_topology_file(Path(topology_file)).sizes.get("world")
    except BadInputError:
        return None


def _fetch(folders: Folders, home: Path, task: FolderTask) -> Path:
    """Copy what changed in a remote folder to HOME/fetched, at the same place below its root, times of change too."""
    store = store_of(task.root)
    root = task.root.rstrip("/")
    below = task.folder.rstrip("/").removeprefix(root).strip("/")
    base = home / _FETCHED / xxhash.xxh3_64_hexdigest(root.encode())[:_DIGEST_DIGITS] / root.rpartition("/")[2]
    local = base / below if below else base
    local.mkdir(parents=True, exist_ok=True)
    for name, is_folder, size_bytes, changed_ns in folders.entries(task.folder):
        target = local / name
        wanted = is_trace_name(name) or name.endswith(".txt")
        if is_folder or not wanted or _looks_like(target, size_bytes, changed_ns):
            continue
        with temporary_of(target) as arriving:
            store.get_file(f"{task.folder.rstrip('/')}/{name}", str(arriving))
            os.utime(arriving, ns=(abs(changed_ns), abs(changed_ns)))
    return local


def _looks_like(path: Path, size_bytes: int, changed_ns: int) -> bool:
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    return (status.st_size, status.st_mtime_ns) == (size_bytes, abs(changed_ns))

"""What a registering run does with one watched folder: fetch it, see whether it is whole and complete, write it down.

Here files are opened; the sensor's tick only lists.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import xxhash

from sensors.ledger import FolderRecord, FolderState
from sensors.listing import (
    Entry,
    FolderLook,
    Folders,
    is_trace_name,
    is_url,
    look_at,
    open_folders,
    store_of,
    traces_in_folders,
)
from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.inputs import (
    IterationInputs,
    all_registered,
    register,
    registered_if_any,
    registered_of_run,
    with_digests,
)
from traceviz_dag.lake.known_ranks import set_aside_unlisted_ranks, twin_of, with_vanished_ranks
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.pipeline.formats.registry import stated_ranks
from traceviz_dag.printable import is_object_url
from traceviz_dag.read.formats import format_of, format_with_suffix, is_whole
from traceviz_dag.read.memory.files import is_snapshot_name, is_whole_snapshot
from traceviz_dag.read.object_views import local_view
from traceviz_dag.read.topology_file import find_topology_file, is_topology_name, read_topology_file
from traceviz_dag.system.paths import real_path
from traceviz_dag.system.whole_files import temporary_of

_FETCHED = "fetched"
_EARLIER_ITERATIONS = 3
_DIGEST_DIGITS = 8


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
        warnings: one line for each file that could not be placed, or contradicts its path, and for each iteration that
            has the traces of another one.
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
    look = look_at(folders, task.folder)
    if look is None:
        return Registration((), None, {})
    if task.digest and look.digest != task.digest:
        return Registration((), None, {})
    if is_object_url(task.root):
        local = local_view(task.folder, home)
    else:
        local = _fetch(folders, home, task) if is_url(task.root) else real_path(Path(task.folder))
    growing = [] if task.overdue else _growing(local)
    if growing:
        # What is not recognised before its end would be left out, and the rest of the folder taken for all of it.
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
    lake, twins = open_lake(home), []
    for one in settled:
        set_aside_unlisted_ranks(lake, one)
        twins.append(twin_of(home, one))
        register(home, one)
    is_iteration = any(Path(one.folder) == local.parent for one in settled)
    return Registration(
        iterations=tuple(settled),
        record=_record(look, FolderState.REGISTERED, ranks, is_iteration=is_iteration),
        partial=missing,
        warnings=(
            *(line for one in settled for line in (*one.problems, *one.warnings)),
            *(twin.line for twin in twins if twin is not None),
        ),
    )


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
    """The iterations of a run with the text file that its folder has now, wherever their traces are."""
    newest = find_topology_file(run_folder)
    return [
        replace(one, topology_file=str(newest) if newest else None)
        for one in all_registered(home)
        if Path(one.folder) == run_folder and one.ranks
    ]


def _with_elsewhere(home: Path, local: Path, inputs: IterationInputs) -> IterationInputs:
    """Ranks of the iteration that were registered from other folders, which have their own looks, stay."""
    known = registered_if_any(home, inputs.key)
    found = {entry.rank for entry in inputs.ranks} | set(inputs.disputed)
    others = [
        entry
        for entry in (known.ranks if known is not None else ())
        if entry.rank not in found and Path(entry.path).parent != local and Path(entry.path).exists()
    ]
    snapshots = {
        entry.rank: entry
        for entry in (known.snapshots if known is not None else ())
        if Path(entry.path).parent != local and Path(entry.path).exists()
    }
    snapshots |= {entry.rank: entry for entry in inputs.snapshots}
    return replace(
        inputs,
        ranks=tuple(sorted((*inputs.ranks, *others), key=lambda entry: entry.rank)),
        snapshots=tuple(snapshots[rank] for rank in sorted(snapshots)),
    )


def _flagged(inputs: IterationInputs, missing: Sequence[int]) -> IterationInputs:
    if not missing:
        return inputs
    return replace(inputs, warnings=(*inputs.warnings, f"{inputs.key}: no traces of ranks {list(missing)} yet"))


def _growing(local: Path) -> list[str]:
    """Names of what is not whole in a folder, of formats whose files cannot be recognised before their end."""
    found = []
    for path in sorted(local.iterdir()):
        if path.is_dir():
            one = None if path.name.startswith(".") else format_of(path)
        else:
            one = format_with_suffix(path.name) if is_trace_name(path.name) and path.is_file() else None
        if one is not None and not one.detectable_while_writing and not one.is_whole(path):
            found.append(path.name)
    return found


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
    growing = {entry.name for one in found for entry in one.snapshots if not is_whole_snapshot(Path(entry.path))}
    return sorted({name for path, name in new.items() if not is_whole(Path(path))} | growing)


def _missing_ranks(home: Path, inputs: IterationInputs, configured: int | None) -> list[int]:
    """Expected ranks without a trace: of those configured, else of the run's earlier iterations, else of those that
    the capture meant to record."""
    found = {entry.rank for entry in inputs.ranks}
    if configured is not None:
        return sorted(set(range(configured)) - found)
    earlier = registered_of_run(home, inputs.run, before=inputs.iteration, newest=_EARLIER_ITERATIONS)
    if earlier:
        return sorted({entry.rank for one in earlier for entry in one.ranks} - found)
    expected = stated_ranks(inputs) or range(_world_of_text(inputs.topology_file) or 0)
    return sorted(set(expected) - found)


def _world_of_text(topology_file: str | None) -> int | None:
    """The size of the job as a topology text file states it."""
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
    for name, files in traces_in_folders(folders, task.folder).items():
        (local / name).mkdir(exist_ok=True)
        for gone in {file.name for file in (local / name).iterdir()} - {file for file, _, _, _ in files}:
            (local / name / gone).unlink()
        _fetch_files(store, f"{task.folder.rstrip('/')}/{name}", files, local / name)
    wanted = [entry for entry in folders.entries(task.folder) if not entry[1] and _is_fetched(entry[0])]
    _fetch_files(store, task.folder.rstrip("/"), wanted, local)
    return local


def _is_fetched(name: str) -> bool:
    return is_trace_name(name) or is_topology_name(name) or is_snapshot_name(name)


def _fetch_files(store: Any, folder: str, entries: Sequence[Entry], local: Path) -> None:
    for name, _, size_bytes, changed_ns in entries:
        target = local / name
        if _looks_like(target, size_bytes, changed_ns):
            continue
        with temporary_of(target) as arriving:
            store.get_file(f"{folder}/{name}", str(arriving))
            os.utime(arriving, ns=(abs(changed_ns), abs(changed_ns)))


def _looks_like(path: Path, size_bytes: int, changed_ns: int) -> bool:
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    return (status.st_size, status.st_mtime_ns) == (size_bytes, abs(changed_ns))

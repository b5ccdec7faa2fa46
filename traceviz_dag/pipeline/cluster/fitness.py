"""What a worker must have: the home and the traces in the same places, locks that reach it, and the same program."""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from traceviz_dag.classify.rules import load_rules
from traceviz_dag.pipeline.made import CODE_VERSION
from traceviz_dag.read.stated_bounds import ROWS, TEXT_MIB
from traceviz_dag.system.own_version import own_version

FOLDER = "cluster"
"""Folder of a home for what a cluster needs while it is used."""

_OLD_SECONDS = 3600.0
"""Clocks of machines that share a home may differ."""


def is_old(path: Path) -> bool:
    """Whether a file or folder was last written so long ago that whoever made it has locked it, or submitted its job.

    Raises:
        OSError: it is gone.
    """
    return time.time() - path.stat().st_mtime > _OLD_SECONDS


def program() -> str:
    """What of this program decides on the bytes of tables, in words."""
    return f"traceviz {own_version() or 'that is not installed'} (code {CODE_VERSION}, pyarrow {pa.__version__})"


@dataclass(frozen=True, slots=True)
class Requirements:
    """What the process that fans out has, for each worker to compare.

    Attributes:
        token_file: in the home; ``token`` is what it holds. has_locks: whether it is locked.
        files: traces, one of each folder.
        program: as ``program`` says. rules: digest of the built-in ones.
        bounds: variable → value, of bounds that the user may state; empty where they did not.
    """

    home: Path
    token_file: Path
    token: str
    has_locks: bool
    files: Sequence[Path]
    program: str
    rules: str
    bounds: dict[str, str]

    def fault(self) -> tuple[str, str] | None:
        """What this process, a worker's, lacks, and what to do about it; None where it lacks nothing."""
        if program() != self.program:
            return f"has {program()}, and {self.program} is needed", "install the same on each worker"
        if load_rules().digest != self.rules:
            return "has other built-in rules", "install the same traceviz on each worker"
        absent = f"cannot write to {self.home}, or has another folder there", "have each worker see the home there"
        try:
            with self.token_file.open("r+") as file:
                if file.read() != self.token:
                    return absent
                if self.has_locks and _can_lock(file.fileno()):
                    remedy = "mount it with locks (Lustre: flock, NFS: version 4)"
                    return f"does not see that files of {self.home} are locked elsewhere", remedy
        except OSError:
            return absent
        unread = [path for path in self.files if not os.access(path, os.R_OK)]
        return (f"cannot read {unread[0]}", "have each worker see the traces at the same path") if unread else None


@contextmanager
def requirements(home: Path, files: Sequence[Path]) -> Iterator[Requirements]:
    """What workers must have, while a token in the home is there for them to read."""
    folder, token = home / FOLDER, secrets.token_hex(16)
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{'[0-9a-f]' * 16}.token"):
        # Of a killed process: others lock theirs, if locks work here, as soon as it is there.
        with suppress(OSError), left.open("r+") as file:
            if is_old(left) and _can_lock(file.fileno()):
                left.unlink()
    path = folder / f"{secrets.token_hex(8)}.token"
    with path.open("x") as file:
        try:
            file.write(token)
            file.flush()
            os.fsync(file.fileno())
            yield Requirements(
                home,
                path,
                token,
                _can_lock(file.fileno()),
                [one for one in files if os.access(one, os.R_OK)],
                program(),
                load_rules().digest,
                {bound.variable: os.environ.get(bound.variable, "") for bound in (TEXT_MIB, ROWS)},
            )
        finally:
            path.unlink(missing_ok=True)
            # It stays where another process uses it.
            with suppress(OSError):
                folder.rmdir()


def _can_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True

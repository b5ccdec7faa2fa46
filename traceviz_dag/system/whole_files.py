"""The one writer of files: whoever looks sees a whole file or none, and a killed writer leaves nothing for long.

A file is written to a hidden temporary beside it, ``.NAME.<16 hexadecimal digits>.writing``, synced and renamed. Its
writer holds a lock on the temporary, which the system releases when the process dies: one whose lock is free belongs
to nobody. Only temporaries of the same target are removed; all other hidden files in a folder are somebody else's.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from traceviz_dag.errors import OutputError, file_system_remedy
from traceviz_dag.printable import printable
from traceviz_dag.system.process_table import status_of

if TYPE_CHECKING:
    import pyarrow as pa

_NOT_A_FILE = "move it away, or choose another name"
_log = logging.getLogger(__name__)

_SUFFIX = ".writing"
_TOKEN_BYTES = 8
_TEMPORARY = re.compile(rf"\..+\.[0-9a-f]{{{2 * _TOKEN_BYTES}}}{re.escape(_SUFFIX)}", re.DOTALL)
_SCRATCH = "traceviz_"
_LONGEST_NAME = 200
"""Bytes of a target's name up to which it is spelt out in the name of its temporary, which may have 255."""

TOLD_AFTER_SECONDS = 5.0
_TOLD_AGAIN_SECONDS = 60.0
_ATTEMPTS = 20
NO_LOCKS_HERE = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
"""What a file system without locks says; Lustre mounted without ``flock`` is one."""

_NO_SYNC_HERE = frozenset({errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.EOPNOTSUPP, errno.EACCES})


def write_atomically(path: Path, data: bytes | pa.Buffer | list[bytes]) -> None:
    """Write a file at once; concurrent writers of one path are safe, the last one wins.

    Args:
        data: the bytes, or pieces of them in order.

    Raises:
        OutputError: it cannot be written; what was there before is still there.
    """
    write_together({path: data})


def write_together(
    files: Mapping[Path, bytes | pa.Buffer | list[bytes]],
    renaming: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Write files as :func:`write_atomically`, and give them their names once all are on the disk.

    Args:
        renaming: makes a context that is entered for them to get their names.

    Raises:
        OutputError: one cannot be written; what has not got its name by then is as it was before.
    """
    for _ in range(_ATTEMPTS):
        with suppress(FileNotFoundError), ExitStack() as held:
            temporaries = []
            for path, pieces in files.items():
                temporary, descriptor = held.enter_context(_locked_file(path))
                temporaries.append((temporary, path, descriptor))
                with os.fdopen(descriptor, "wb", closefd=False) as file:
                    for piece in pieces if isinstance(pieces, list) else [pieces]:
                        file.write(memoryview(piece))
            # Once all are written: one by one, a file system has a fifth more to do.
            for temporary, _, descriptor in temporaries:
                _sync(temporary, descriptor)
            with renaming():
                for temporary, path, _ in temporaries:
                    temporary.replace(path)
                # Once all are renamed: the first of these makes the others durable, too, on most file systems.
                for path in files:
                    sync_folder(path.parent)
            return
    path = next(iter(files))
    raise OutputError(path, "its folder is deleted again and again", "stop what deletes it")


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A stream to write a file with; the file appears when the block ends without an error.

    Raises:
        OutputError: it cannot be written; what was there before is still there.
        FileNotFoundError: its folder was deleted meanwhile.
    """
    with _temporary_of(path) as (_, descriptor), os.fdopen(descriptor, "r+b", closefd=False) as file:
        yield file


@contextmanager
def temporary_of(path: Path) -> Iterator[Path]:
    """An empty, locked temporary file for what opens its output by name, renamed to ``path`` when the block ends.

    The block must write into this very file: one that it puts in its place is not locked.

    Raises:
        OutputError: it cannot be written; what was there before is still there.
        FileNotFoundError: its folder was deleted meanwhile.
    """
    with _temporary_of(path) as (temporary, _):
        yield temporary


def remove_stale_temporaries(path: Path) -> int:
    """Remove the temporaries of a target whose writers are gone, and say how many."""
    prefix = f"{_beginning(path)}."
    try:
        with os.scandir(path.parent) as entries:
            names = [entry.name for entry in entries if entry.name.startswith(prefix)]
    except (FileNotFoundError, NotADirectoryError):
        return 0
    return sum(remove_if_stale(path.with_name(name)) for name in names if len(name) == _length_of_temporary(path))


def remove_all_stale_temporaries(folder: Path) -> int:
    """Remove the temporaries of dead writers in a folder of the home and below it, whatever they were to become.

    Only for folders that hold nothing but what this package writes.
    """
    every = ((place, name) for place, _, names in os.walk(folder) for name in names)
    return sum(remove_if_stale(Path(place, name)) for place, name in every if _TEMPORARY.fullmatch(name))


def remove_if_stale(path: Path) -> bool:
    """Remove a temporary whose writer is gone; whether it was one."""
    if not is_temporary(path):
        return False
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        # It has gone, or it is nothing that this writer made.
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    except OSError:
        # Its writer is alive, or has just renamed it.
        return False
    finally:
        os.close(descriptor)
    return True


def is_temporary(path: Path) -> bool:
    """Whether a file has the name of a temporary, whatever has become of its writer."""
    return _TEMPORARY.fullmatch(path.name) is not None


def is_being_written(path: Path) -> bool:
    """Whether this is the temporary of a writer that is alive, or has gone since it was listed."""
    if not is_temporary(path):
        return not (path.exists() or path.is_symlink())
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


@contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Hold a lock across processes and threads; the file stays, empty, for the next one.

    Who waits for it logs after some seconds, and each minute from then on, which process holds it.

    Raises:
        OutputError: the lock's file cannot be made.
    """
    try:
        make_folder(path.parent)
        # A link would have the file made, or another one locked, somewhere else.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise unwritable(path, error) from error
    try:
        with locked(path, descriptor):
            yield
    finally:
        os.close(descriptor)


@contextmanager
def changing(path: Path) -> Iterator[None]:
    """Hold the lock of a file that is read, changed and written anew: nobody's change in between is lost.

    Raises:
        OutputError: as :func:`exclusive_lock`.
    """
    with exclusive_lock(path.with_name(f".{path.name}.lock")):
        yield


@contextmanager
def locked(path: Path, descriptor: int, shared: bool = False) -> Iterator[None]:
    """Hold the lock of a file or folder that is open; as :func:`exclusive_lock`, which opens it, too.

    Args:
        shared: together with others that share it.

    Raises:
        OutputError: it cannot be locked.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        with _waiting_is_told(path, descriptor):
            fcntl.flock(descriptor, kind)
    except OSError as error:
        # As for temporaries: a file system without locks has one writer.
        if error.errno not in NO_LOCKS_HERE:
            raise unwritable(path, error) from error
    try:
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextmanager
def _waiting_is_told(path: Path, descriptor: int) -> Iterator[None]:
    """Log who holds a lock while this thread waits for it."""
    over = threading.Event()

    def tell() -> None:
        waited, pause = 0.0, TOLD_AFTER_SECONDS
        while not over.wait(pause):
            waited, pause = waited + pause, _TOLD_AGAIN_SECONDS
            _log.warning(
                "traceviz: waits for %s, for %.0f s now; %s", printable(str(path)), waited, _holder(descriptor)
            )

    told = threading.Thread(target=tell, name="says who holds a lock", daemon=True)
    told.start()
    try:
        yield
    finally:
        over.set()


def _holder(descriptor: int) -> str:
    """Which process holds the lock on an open file, and what it does; Linux shows, others do not."""
    number = os.fstat(descriptor).st_ino
    with suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            # Who waits has an arrow in front of it; a process that cannot be seen from here bears no number.
            held = re.search(rf": FLOCK +\S+ +\S+ +([1-9]\d*) \S+:{number} ", line)
            if held:
                state = status_of(int(held[1]))[0]
                stopped = f" and is stopped: kill -CONT {held[1]} lets it go on" if state in "Tt" else ""
                return f"process {held[1]} holds it{stopped}"
    return "another process holds it"


@contextmanager
def scratch_folder(base: Path | None = None, is_unused: Callable[[Path], bool] = lambda _: True) -> Iterator[Path]:
    """A folder that is gone after the block; one that a killed process left is removed by the next.

    Args:
        base: where it is made; the system's folder for temporary files by default.
        is_unused: whether what a killed process left is of no use to others either.

    Raises:
        OutputError: it cannot be made.
    """
    place = temporary_base() if base is None else base
    try:
        remove_stale_scratch(place, is_unused)
        folder, descriptor = _locked_folder(place)
    except OSError as error:
        raise unwritable(place, error) from error
    owner = os.getpid()
    _OWN.add(folder)
    try:
        yield folder
    finally:
        _OWN.discard(folder)
        if os.getpid() == owner:  # A forked child ends the block, too, when it lets go of what it inherited.
            shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


_OWN: set[Path] = set()
"""Scratch folders of this process."""


def remove_own_scratch() -> None:
    """Remove the scratch folders of this process, in blocks that it leaves without their ends."""
    for _ in range(_REMOVALS):
        for folder in tuple(_OWN):
            shutil.rmtree(folder, ignore_errors=True)
        if not any(folder.exists() for folder in tuple(_OWN)):
            return


_REMOVALS = 20
"""A thread may write into a folder while it is removed."""


def temporary_base() -> Path:
    """The system's folder for temporary files.

    Python finds it by writing a file of any name there, which a kill would leave. Here it is chosen, for all of this
    process, among the same places by what may be done there.
    """
    if tempfile.tempdir is None:
        places = [os.environ.get(name, "") for name in ("TMPDIR", "TEMP", "TMP")]
        for place in filter(None, [*places, "/tmp", "/var/tmp", "/usr/tmp"]):
            if Path(place).is_dir() and os.access(place, os.W_OK | os.X_OK):
                tempfile.tempdir = str(Path(place).absolute())
                break
    return Path(tempfile.gettempdir())


def remove_stale_scratch(base: Path, is_unused: Callable[[Path], bool] = lambda _: True) -> None:
    """Remove the scratch folders in a folder whose processes are gone; ``is_unused`` as of :func:`scratch_folder`."""
    for folder in base.glob(f"{_SCRATCH}{'[0-9a-f]' * 2 * _TOKEN_BYTES}"):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_unused(folder):
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue
        finally:
            os.close(descriptor)


@contextmanager
def _temporary_of(path: Path) -> Iterator[tuple[Path, int]]:
    with _locked_file(path) as (temporary, descriptor):
        yield temporary, descriptor
        os.fsync(descriptor)
        temporary.replace(path)
        sync_folder(path.parent)


@contextmanager
def _locked_file(path: Path) -> Iterator[tuple[Path, int]]:
    """A temporary of a file, which is gone after the block unless it has its name by then; errors are those of the
    file."""
    try:
        _refuse_what_is_no_file(path)
        temporary, descriptor = _locked_temporary(path)
    except OSError as error:
        raise unwritable(path, error) from error
    try:
        yield temporary, descriptor
    except FileNotFoundError:
        raise
    except OSError as error:
        # An error that names a file is about that file: an input, say, that the block reads.
        if isinstance(error, OutputError) or error.filename not in (None, str(temporary)):
            raise
        raise unwritable(path, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder, and those that it lies in, beside others who make them or remove them while they are empty.

    Raises:
        FileExistsError: a file has the name of one.
        FileNotFoundError: it was deleted again and again.
    """
    for _ in range(_ATTEMPTS):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError:
            continue  # one that it lies in was removed before it was made
        except FileExistsError as error:
            # A folder was there, and is removed, or made again, since; or it is no folder.
            with suppress(FileNotFoundError):
                if not stat.S_ISDIR(os.lstat(error.filename).st_mode) and not Path(error.filename).is_dir():
                    raise
        else:
            return
    raise FileNotFoundError(errno.ENOENT, "it is deleted again and again", str(folder))


def _locked_temporary(path: Path) -> tuple[Path, int]:
    for _ in range(_ATTEMPTS):
        make_folder(path.parent)
        remove_stale_temporaries(path)
        temporary = path.with_name(f"{_beginning(path)}.{os.urandom(_TOKEN_BYTES).hex()}{_SUFFIX}")
        with suppress(FileNotFoundError):
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            if _lock(descriptor):
                return temporary, descriptor
            os.close(descriptor)
    fault = "no file can be made there" if path.parent.is_dir() else "its folder is deleted again and again"
    raise FileNotFoundError(errno.ENOENT, fault, str(path.parent))


def _lock(descriptor: int) -> bool:
    """Lock what was just made; False where somebody took it for stale, and removed it, in between."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        # Without locks nobody knows what is stale, so nobody removes anything either.
        if error.errno not in NO_LOCKS_HERE:
            os.close(descriptor)
            raise
    return os.fstat(descriptor).st_nlink > 0


def _locked_folder(base: Path) -> tuple[Path, int]:
    for _ in range(_ATTEMPTS):
        folder = base / f"{_SCRATCH}{os.urandom(_TOKEN_BYTES).hex()}"
        folder.mkdir(mode=0o700, parents=True)
        with suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY)
            if _lock(descriptor):
                return folder, descriptor
            os.close(descriptor)
    raise FileNotFoundError(errno.ENOENT, "a folder made there is deleted again and again", str(base))


def _beginning(path: Path) -> str:
    """How the names of a target's temporaries begin."""
    name = os.fsencode(path.name)
    if len(name) <= _LONGEST_NAME:
        return f".{path.name}"
    # Few commands need it, and it starts OpenSSL.
    from hashlib import blake2b

    return f".{blake2b(name, digest_size=16).hexdigest()}"


def _length_of_temporary(path: Path) -> int:
    return len(_beginning(path)) + 1 + 2 * _TOKEN_BYTES + len(_SUFFIX)


def _refuse_what_is_no_file(path: Path) -> None:
    """A device, a pipe or a folder in its place would be replaced, or end the rename with an obscure error."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if not stat.S_ISREG(mode):
        raise OutputError(path, "is a folder" if stat.S_ISDIR(mode) else "is no regular file", _NOT_A_FILE)


def _sync(temporary: Path, descriptor: int) -> None:
    """Sync a file beside others; an error names it."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        error.filename = str(temporary)
        raise


def sync_folder(folder: Path) -> None:
    """Make a rename durable, where the file system can."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC_HERE:
            raise
    finally:
        os.close(descriptor)


def unwritable(path: Path, error: OSError) -> OutputError:
    """A fault of writing as a line that names the file, the fault and the remedy."""
    if isinstance(error, OutputError):
        return error
    fault = f"cannot be written ({error.strerror or error})"
    return OutputError(path, fault, file_system_remedy(error, "choose another place"), error.errno)

"""A file appears whole or not at all, and nobody else's file is touched on the way."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from traceviz_dag.errors import OutputError
from traceviz_dag.show.perfetto.trace import perfetto_trace
from traceviz_dag.system import whole_files
from traceviz_dag.system.whole_files import (
    exclusive_lock,
    remove_all_stale_temporaries,
    scratch_folder,
    temporary_of,
    whole_file,
    write_atomically,
    write_together,
)

FOREIGN = [".notes.txt.writing", ".report.csv.writing", ".report.csv.0123.writing", "report.csv.tmp", ".writing"]


def hidden(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name.startswith(".")}


def killed_in_the_middle(folder: Path, name: str) -> str:
    """The temporary that a writer leaves which is killed before the rename."""
    before = hidden(folder)
    code = f"""
import os, signal
from pathlib import Path
from traceviz_dag.system.whole_files import whole_file
with whole_file(Path({str(folder / name)!r})) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    (left,) = hidden(folder) - before
    return left


def test_a_write_removes_what_killed_writers_of_its_target_left_and_nothing_else(tmp_path: Path):
    for name in FOREIGN:
        (tmp_path / name).write_text("somebody else's")
    mine, others = killed_in_the_middle(tmp_path, "report.csv"), killed_in_the_middle(tmp_path, "other.csv")
    assert not (tmp_path / "report.csv").exists()
    write_atomically(tmp_path / "report.csv", b"whole")
    assert (tmp_path / "report.csv").read_bytes() == b"whole"
    assert mine not in hidden(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*FOREIGN, "report.csv", others}


def test_a_folder_of_the_home_is_swept_of_every_dead_writer_and_of_no_living_one(tmp_path: Path):
    (tmp_path / "run=r").mkdir()
    left = killed_in_the_middle(tmp_path / "run=r", "part.parquet")
    with whole_file(tmp_path / "run=r" / "other.parquet") as file:
        file.write(b"still written")
        assert remove_all_stale_temporaries(tmp_path) == 1
        assert left not in hidden(tmp_path / "run=r")
    assert (tmp_path / "run=r" / "other.parquet").read_bytes() == b"still written"


def test_a_perfetto_trace_that_is_being_written_survives_other_writes_of_its_folder_and_name(tmp_path: Path):
    with perfetto_trace(tmp_path / "one.pftrace.gz", "recorded clocks") as trace:
        trace.add_track("a")
        write_atomically(tmp_path / "table.parquet", b"1")
        with perfetto_trace(tmp_path / "one.pftrace.gz", "recorded clocks"):
            pass
        assert hidden(tmp_path), "its temporary is still there"
    assert {path.name for path in tmp_path.iterdir()} == {"one.pftrace.gz", "table.parquet"}


def test_an_error_in_the_block_leaves_the_former_file_and_no_temporary(tmp_path: Path):
    path = tmp_path / "report.csv"
    write_atomically(path, [b"former ", b"file"])
    with pytest.raises(KeyError), whole_file(path) as file:
        file.write(b"new")
        raise KeyError("from the block")
    with pytest.raises(FileNotFoundError, match="input"), temporary_of(path):
        raise FileNotFoundError(errno.ENOENT, "gone", "input.json")
    with pytest.raises(PermissionError, match=r"input\.json"), temporary_of(path):
        raise PermissionError(errno.EACCES, "not yours", "input.json")
    assert path.read_bytes() == b"former file"
    assert not hidden(tmp_path)


@pytest.mark.parametrize("name", ["x" * 255, "ü" * 120, "new\nline.csv", "a?b*[c].csv"])
def test_any_name_that_a_file_can_have_can_be_written_and_its_leftovers_swept(tmp_path: Path, name: str):
    left = killed_in_the_middle(tmp_path, name)
    write_atomically(tmp_path / name, b"whole")
    assert left not in hidden(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_folder_a_device_and_a_pipe_are_not_replaced(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, fault in (("folder", "is a folder"), ("pipe", "is no regular file")):
        with pytest.raises(OutputError, match=rf"{name}: {fault}; move it away, or choose another name"):
            write_atomically(tmp_path / name, b"1")
    assert (tmp_path / "pipe").is_fifo()
    with pytest.raises(OutputError, match=r"Not a directory|File exists"):
        write_atomically(Path(os.devnull) / "below.csv", b"1")


@contextmanager
def mounted(folder: Path, *options: str):
    """A small file system of its own; skips where that is not permitted."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *options, str(folder)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_one_line_and_the_former_file_stays(tmp_path: Path):
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=256k", "tmpfs") as small:
        write_atomically(small / "part.parquet", b"former")
        line = r"part\.parquet: cannot be written \(No space left on device\); free space there, or choose another"
        with pytest.raises(OutputError, match=line) as told:
            write_atomically(small / "part.parquet", os.urandom(1 << 20))
        assert told.value.errno == errno.ENOSPC
        assert [path.name for path in small.iterdir()] == ["part.parquet"]
        assert (small / "part.parquet").read_bytes() == b"former"
        with pytest.raises(OutputError, match="No space left"), perfetto_trace(small / "one.pftrace.gz", "") as trace:
            for number in range(200_000):
                trace.add_track(f"{number} {os.urandom(8).hex()}")
        assert [path.name for path in small.iterdir()] == ["part.parquet"]


def test_a_file_system_that_can_only_be_read_is_one_line(tmp_path: Path):
    with mounted(tmp_path / "fixed", "-t", "tmpfs", "-o", "ro", "tmpfs") as fixed:
        for write in (
            lambda: write_atomically(fixed / "a" / "b.csv", b"1"),
            lambda: exclusive_lock(fixed / "l").__enter__(),
        ):
            with pytest.raises(OutputError, match="Read-only file system"):
                write()


def test_a_scratch_folder_of_a_killed_process_goes_with_the_next_and_that_of_a_living_one_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "traceviz_notes").mkdir()
    (tmp_path / "traceviz_0123456789abcdef").write_text("a file")
    code = """
import os, signal
from traceviz_dag.system.whole_files import scratch_folder
with scratch_folder() as folder:
    (folder / "lake").mkdir()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=False, env=environment)
    assert len(list(tmp_path.iterdir())) == 3
    with scratch_folder() as first, scratch_folder() as second:
        assert first.is_dir() and second.is_dir() and first != second
        assert len(list(tmp_path.iterdir())) == 4
    assert {path.name for path in tmp_path.iterdir()} == {"traceviz_notes", "traceviz_0123456789abcdef"}


def write_many(path: Path, writer: int) -> None:
    for number in range(100):
        write_atomically(path, [bytes([writer, number])] * 5_000)


@pytest.mark.long
def test_four_writers_of_one_path_leave_one_whole_file_and_no_reader_sees_another(tmp_path: Path):
    path = tmp_path / "deep" / "part.bin"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_many, args=(path, writer)) for writer in range(4)]
    for writer in writers:
        writer.start()
    reads = 0
    while any(writer.is_alive() for writer in writers):
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            assert not reads
            continue
        assert content == content[:2] * 5_000
        reads += 1
    assert [writer.exitcode for writer in writers] == [0] * 4
    assert reads
    assert [found.name for found in path.parent.iterdir()] == ["part.bin"]


def test_who_waits_for_a_lock_learns_who_holds_it(tmp_path: Path, monkeypatch, caplog):
    monkeypatch.setattr(whole_files, "TOLD_AFTER_SECONDS", 0.05)
    taken = threading.Event()

    def take() -> None:
        with exclusive_lock(tmp_path / ".lock"):
            taken.set()

    waiting = threading.Thread(target=take)
    with exclusive_lock(tmp_path / ".lock"):
        waiting.start()
        deadline = time.monotonic() + 30
        while not caplog.messages and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not taken.is_set()
    waiting.join()
    (told,) = caplog.messages
    assert told == f"traceviz: waits for {tmp_path / '.lock'}, for 0 s now; process {os.getpid()} holds it"


def test_the_folder_for_temporary_files_is_found_without_a_file_that_a_kill_would_leave(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = tmp_path.stat().st_mtime_ns
    assert whole_files.temporary_base() == tmp_path == Path(tempfile.gettempdir())
    assert tmp_path.stat().st_mtime_ns == before, "nothing was written there"
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    assert whole_files.temporary_base().is_dir()


def test_a_forked_child_that_ends_leaves_the_scratch_folder_of_its_parent(tmp_path: Path):
    with whole_files.scratch_folder(tmp_path) as folder:
        held = ExitStack()
        mine = held.enter_context(whole_files.scratch_folder(tmp_path))
        child = os.fork()
        if not child:
            held.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert folder.is_dir() and mine.is_dir()
        held.close()
        assert folder.is_dir() and not mine.exists()


def test_of_files_written_together_the_one_that_cannot_be_synced_is_named_and_none_appears(tmp_path: Path, monkeypatch):
    paths = [tmp_path / name for name in ("first", "second", "third")]
    synced = []

    def full(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError) as told:
        write_together(dict.fromkeys(paths, b"1"))
    assert str(told.value).startswith(str(paths[1]))
    assert not list(tmp_path.iterdir())

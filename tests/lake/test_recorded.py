"""What was written is what is read: no flipped bit and no swapped, former or foreign file gives another value."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pytest

from tests.damage import call
from tests.lake.conftest import SampleTable
from traceviz_dag.errors import BadInputError
from traceviz_dag.lake import recorded, verify
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.lake.marking import mark_stale
from traceviz_dag.lake.partitions import Partition
from traceviz_dag.lake.stale import Stale
from traceviz_dag.vocabulary import StaleCause, StaleStage

PLACE = {"run": "job", "iteration": 3}
ASKED = "SELECT sum(duration_ns) AS total FROM kernels"


def write(lake: Lake, sample: SampleTable, rank: int, duration: int, rows: int = 200) -> Path:
    data = sample("kernels", rows, name="gemm", duration_ns=[duration * (one + 1) for one in range(rows)])
    return lake.write("kernels", data, rank=rank, **PLACE).path


@pytest.fixture
def two_ranks(lake: Lake, sample: SampleTable) -> tuple[Lake, list[Path]]:
    paths = [write(lake, sample, rank, 1000 + rank) for rank in range(2)]
    lake.refresh_catalogue()
    return lake, paths


def answers(lake: Lake) -> list[object]:
    """What each way of reading gives: values, or the line that refuses them."""
    ways = [
        lambda: lake.query(ASKED).to_pylist(),
        lambda: lake.query("SELECT sum(duration_ns) AS total FROM kernels_aligned").to_pylist(),
        lambda: lake.query("SELECT sum(duration_ns) AS total FROM traceviz_meta.kernels_files").to_pylist(),
        lambda: lake.query(f"SELECT sum(duration_ns) FROM '{lake.home}/lake/*/*/*/*/*.parquet'").to_pylist(),
        lambda: lake.query_iteration(ASKED, **PLACE).to_pylist(),
        lambda: lake.ask_iteration(ASKED, ["kernels"], **PLACE).to_pylist(),
        lambda: lake.table("kernels").arrow().to_pylist(),
    ]
    found: list[object] = []
    for way in ways:
        try:
            found.append(way())
        except BadInputError as error:
            found.append(error)
    return found


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.long
def test_no_flipped_bit_of_a_part_or_of_its_record_gives_other_values(two_ranks):
    lake, paths = two_ranks
    right = answers(lake)
    chance = random.Random(7)
    for path in [*paths, *(lake.home / "lake/.recorded").rglob("iteration=*")]:
        whole, times = path.read_bytes(), path.stat()
        for _ in range(8):
            path.write_bytes(flipped(whole, chance.randrange(8 * len(whole))))
            recorded._digest_in.cache_clear()
            recorded._record_in.cache_clear()
            # As a disk does it: only the bytes show it.
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            for found, wanted in zip(answers(lake), right, strict=True):
                assert isinstance(found, BadInputError) or found == wanted
        path.write_bytes(whole)
    recorded._digest_in.cache_clear()
    assert answers(lake) == right


def test_a_rank_that_is_not_counted_is_not_counted_again_by_a_flipped_bit(two_ranks):
    lake, _ = two_ranks
    mark_stale(lake, **PLACE, found=[Stale(1, StaleStage.RANKS, StaleCause.FAILED, "its trace is damaged")])
    path = lake.path("stale_tables", **PLACE)
    whole, times = path.read_bytes(), path.stat()
    chance = random.Random(5)
    for _ in range(24):
        path.write_bytes(flipped(whole, chance.randrange(8 * len(whole))))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        recorded._digest_in.cache_clear()
        with pytest.raises(BadInputError, match="stale_tables"):
            lake.query_iteration(ASKED, **PLACE)
        with pytest.raises(BadInputError, match="stale_tables"):
            lake.partitions("kernels", **PLACE)


def test_swapped_former_and_foreign_files_are_named_and_a_process_sees_them_while_it_runs(two_ranks, sample):
    lake, (first, second) = two_ranks
    former = first.read_bytes()
    assert answers(lake)[0] == [{"total": 2001 * 20100}]
    first.rename(first.with_name("a"))
    second.rename(first)
    first.with_name("a").rename(second)
    for told in answers(lake):
        assert isinstance(told, BadInputError)
        assert "table kernels, run job, iteration 3, rank " in str(told) and "run traceviz analyze" in str(told)
        assert "\n" not in str(told)
    write(lake, sample, 0, 5000)
    write(lake, sample, 1, 1001)
    assert answers(lake)[0] == [{"total": 6001 * 20100}]
    first.write_bytes(former)
    assert "rank 0: the file is damaged, or is not the one that was written" in str(answers(lake)[0])
    lake.delete("kernels", rank=0, **PLACE)
    assert answers(lake)[0] == [{"total": 1001 * 20100}]
    first.parent.mkdir()
    first.write_bytes(former)
    assert "rank 0: the file is damaged, or is not the one that was written" in str(answers(lake)[0])


@pytest.mark.long
def test_a_killed_writer_leaves_the_former_file_or_the_new_one_and_both_are_right(two_ranks, sample, monkeypatch):
    lake, _ = two_ranks
    rename = Path.replace

    def killed_before(self: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    def killed_after(self: Path, target: Path) -> Path:
        rename(self, target)
        raise KeyboardInterrupt

    totals = []
    for killed in (killed_before, killed_after):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Path, "replace", killed)
            write(lake, sample, 0, 5000)
        totals.append(answers(lake)[0])
        lake.sweep("job", 3)
        assert answers(lake)[0] == totals[-1]
        assert len(recorded.recorded(lake.home / "lake", "job", 3).digests(("kernels", 0))) == 1
    assert totals == [[{"total": 2001 * 20100}], [{"total": 6001 * 20100}]]


def test_of_parts_that_are_written_together_each_is_the_former_or_the_new_one_after_a_kill(lake, sample, monkeypatch):
    place, rename = {"run": "job", "iteration": 3, "rank": 0}, Path.replace
    before, after = ({name: sample(name, 2, duration_ns=ns) for name in ("kernels", "gpu_gaps")} for ns in (5, 7))
    lake.write_together(before, **place)
    renamed = []

    def killed_at_the_second(self: Path, target: Path) -> Path:
        if renamed:
            raise KeyboardInterrupt
        renamed.append(target.parts[-5])
        return rename(self, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "replace", killed_at_the_second)
        lake.write_together(after, **place)
    lake.sweep("job", 3)
    for name in before:
        wanted = 7 if name in renamed else 5
        assert lake.table(name, "job", 3, 0).arrow(["duration_ns"])["duration_ns"].to_pylist() == [wanted] * 2
        assert len(recorded.recorded(lake.tables_folder, "job", 3).digests((name, 0))) == 1
    assert len(renamed) == 1
    written = lake.write_together(after, **place)
    assert {name: lake.content(name, **place).digest for name in after} == {
        name: one.digest for name, one in written.items()
    }


@pytest.mark.long
def test_many_writers_of_the_same_parts_and_readers_beside_them_never_disagree(lake, sample):
    def rewrite(turn: int) -> None:
        if turn % 7 == 6:
            lake.delete("kernels", rank=turn % 3, **PLACE)
        elif turn % 5 == 4:
            lake.sweep("job", 3)
        else:
            write(lake, sample, turn % 3, 1000 + turn, rows=3)

    write(lake, sample, 3, 1000, rows=3)
    with ThreadPoolExecutor(4) as pool:
        written = [pool.submit(rewrite, turn) for turn in range(120)]
        while not all(one.done() for one in written):
            assert lake.query(ASKED).num_rows == 1
        for one in written:
            one.result()
    assert lake.query(ASKED).num_rows == 1
    left_empty = lake.path("stale_tables", run="job", iteration=3).parent
    left_empty.mkdir(parents=True)
    lake.sweep("job", 3)
    assert not left_empty.exists()
    contents = recorded.recorded(lake.home / "lake", "job", 3).contents
    assert {rank for _, rank in contents} == {one.rank for one in lake.partitions("kernels")}


@pytest.mark.parametrize("swept", [False, True])
def test_a_part_that_is_written_while_it_is_deleted_is_recorded_as_what_is_there(lake, sample, monkeypatch, swept):
    write(lake, sample, 0, 1000)
    append = recorded._append
    writers = []

    def another_writes(path: Path, descriptor: int, line: bytes, durable: bool) -> None:
        if not writers and b" settled kernels 0 -" in line:
            if swept:
                lake.sweep("job", 3)
            writers.append(Thread(target=write, args=(lake, sample, 0, 5000)))
            writers[0].start()
            # It waits for its turn, however long it is given.
            writers[0].join(0.5)
        append(path, descriptor, line, durable)

    monkeypatch.setattr(recorded, "_append", another_writes)
    lake.delete("kernels", rank=0, **PLACE)
    writers[0].join()
    assert answers(lake)[0] == [{"total": 5000 * 20100}]


def test_a_process_that_dies_with_the_record_open_costs_nobody_else_a_wait(two_ranks, sample):
    lake, _ = two_ranks
    child = os.fork()
    if child == 0:
        recorded._append = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        write(lake, sample, 0, 9000)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    write(lake, sample, 0, 5000)
    assert answers(lake)[0] == [{"total": 6001 * 20100}]


def test_the_record_goes_with_its_last_part_and_a_home_without_one_gets_it(two_ranks, sample):
    lake, (first, second) = two_ranks
    record = lake.home / "lake/.recorded"
    lake.delete("kernels", **PLACE)
    assert not any(record.rglob("iteration=*"))
    write(lake, sample, 0, 1000)
    shutil.rmtree(record)
    assert isinstance(answers(lake)[0], BadInputError), "a record that is gone vouches for nothing"
    # Versions without a record wrote files without a version.
    table = pa.parquet.read_table(first, partitioning=None)
    pa.parquet.write_table(table.replace_schema_metadata(None), first)
    assert answers(lake)[0] == [{"total": 1000 * 20100}]
    open_lake(lake.home).sweep("job", 3)
    assert answers(lake)[0] == [{"total": 1000 * 20100}]
    first.write_bytes(flipped(first.read_bytes(), 900))
    assert isinstance(answers(lake)[0], BadInputError)
    assert not second.exists()


def test_verify_finds_damaged_missing_stray_and_unrecorded_files(two_ranks, sample, monkeypatch):
    lake, (first, second) = two_ranks
    third = write(lake, sample, 2, 1000)
    assert call("lake", "verify", "--home", lake.home).code == 0
    answers(lake)
    whole, times = first.read_bytes(), first.stat()
    first.write_bytes(flipped(whole, 4000))
    os.utime(first, ns=(times.st_atime_ns, times.st_mtime_ns))
    second.unlink()
    foreign = third.parent.parent / "rank=9/part.parquet"
    foreign.parent.mkdir()
    shutil.copy(third, foreign)
    notes, dead = third.with_name("notes.txt"), third.with_name(".part.parquet.0123456789abcdef.writing")
    notes.touch()
    dead.touch()
    found = call("lake", "verify", "--home", lake.home, "--json")
    faults = {Path(one["path"]): (one["rank"], one["fault"]) for one in found.json["faults"]}
    assert faults == {
        first: (0, "is damaged, or is not the file that was written there"),
        second: (1, "is missing"),
        foreign: (9, "no writer of this lake put it there, and no trace of it is registered"),
        notes: (None, "is no file of the lake"),
        dead: (None, "was left by a writer that did not come to its end"),
    }
    assert (found.code, found.json["parts"], found.json["without_digest"]) == (2, 1, 0)
    told = call("lake", "verify", "--home", lake.home)
    assert told.code == 2 and told.err == f"traceviz: {lake.home}: 5 files are not as they should be\n"
    line = (
        f"{second}: table kernels, run job, iteration 3, rank 1: is missing; run traceviz analyze on its traces again"
    )
    assert line in told.out
    # Only what a writer of this program left is removed, and only once it is old enough.
    assert call("lake", "clean", "--home", lake.home, "--json").json == {
        "home": str(lake.home),
        "removed": [],
        "kept": 1,
    }
    os.utime(dead, (0, 0))
    with dead.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert call("lake", "clean", "--home", lake.home, "--json").json["removed"] == []
    for number in ("nan", "inf", "1e300"):
        assert "--older-than" in call("lake", "clean", "--home", lake.home, "--older-than", number).err
    with monkeypatch.context() as patch:
        patch.setattr(verify, "remove_if_stale", lambda _path: False)  # As where it can only be read.
        stuck = call("lake", "clean", "--home", lake.home)
    assert (stuck.code, "1 files could not be removed" in stuck.err) == (2, True)
    assert "within 24 hours" not in stuck.out and dead.exists()
    cleaned = call("lake", "clean", "--home", lake.home, "--json").json
    assert [(one["path"], one["bytes"]) for one in cleaned["removed"]] == [(str(dead), 0)] and cleaned["kept"] == 0
    assert notes.exists() and foreign.exists() and not dead.exists()


def test_sql_names_a_part_that_is_gone_and_a_file_that_nobody_wrote(lake, sample):
    for rank in (0, 1):
        lake.write("kernels", sample("kernels", 3, duration_ns=5), run="job", iteration=1, rank=rank)
    lake.path("kernels", run="job", iteration=1, rank=1).unlink()
    told = call("sql", "SELECT sum(duration_ns) FROM kernels", "--home", lake.home)
    assert told.code == 2 and "the rows of run job, iteration 1, rank 1 are missing" in told.err
    foreign = lake.path("kernels", run="job", iteration=2, rank=7)
    foreign.parent.mkdir(parents=True)
    shutil.copy(lake.path("kernels", run="job", iteration=1, rank=0), foreign)
    told = call("sql", "SELECT sum(duration_ns) FROM kernels", "--home", lake.home)
    assert told.code == 2 and "iteration 2, rank 7: no file was written there" in told.err
    assert call("lake", "verify", "--home", lake.home).code == 2
    answer = call("lake", "verify", "--home", lake.home, "--set-aside")
    assert answer.code == 0, answer.out + answer.err
    assert not foreign.exists() and len(list((lake.home / "lake/.set_aside").rglob("part.parquet"))) == 1
    assert call("sql", "SELECT sum(duration_ns) AS t FROM kernels", "--home", lake.home, "--json").json == [{"t": 15}]


def test_a_folder_or_a_pipe_in_the_place_of_a_part_is_named_with_a_remedy_that_helps(lake, sample):
    for rank in (0, 1):
        lake.write("kernels", sample("kernels", 3, duration_ns=5), run="job", iteration=1, rank=rank)
    part = lake.path("kernels", run="job", iteration=1, rank=1)
    for make in (Path.mkdir, os.mkfifo):
        part.unlink(missing_ok=True) if not part.is_dir() else part.rmdir()
        make(part)
        for command in (("sql", "SELECT sum(duration_ns) FROM kernels"), ("lake", "verify")):
            told = call(*command, "--home", lake.home)
            assert told.code == 2 and "rank" in told.out + told.err, (command, told)


def test_of_two_writers_of_the_same_bytes_the_last_one_says_of_what_they_are_made(lake, sample):
    place = {"run": "job", "iteration": 1, "rank": 0}
    rows = sample("kernels", 3, duration_ns=5)
    lake.write("kernels", rows, **place, made="of=former")
    content = lake.content("kernels", **place)
    new = {"kernels": recorded.Content(content.digest, made="of=new")}
    change = recorded.change_of(lake.tables_folder, Partition(**place), new)
    change.__enter__()  # and the writer is killed
    assert lake.content("kernels", **place).made == "of=new"
    with pytest.raises(GeneratorExit):
        change.gen.throw(GeneratorExit)
    lake.settle("job", 1)
    record = (lake.home / "lake/.recorded/run=job/iteration=1").read_bytes()
    assert record.count(b"kernels") == 1 and lake.content("kernels", **place).made == "of=new"

"""Packing changes no answer: not while it works, not after a kill, and not by what somebody does to its files."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import product
from pathlib import Path

import duckdb
import pytest

from tests.damage import call, truncate
from tests.lake.conftest import SampleTable
from tests.lake.test_upgrade import MORE, another_version
from tests.sets import fast
from traceviz_dag.commands.common.failures import gone_iterations
from traceviz_dag.errors import BadInputError, IncompleteError
from traceviz_dag.lake import packed_rows, packing, record_lines, recorded
from traceviz_dag.lake import verify as lake_verify
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.lake.partitions import Partition
from traceviz_dag.lake.under_way import under_way
from traceviz_dag.lake.verify import clean, verify

RUN = "a job"
ALL = "SELECT * FROM kernels ORDER BY ALL"
RANKS = 5
TABLES = ("kernels", "overlap")


def write(lake: Lake, sample: SampleTable, iteration: int, rank: int, name: str = "gemm") -> None:
    """A rank with as many kernels as its number; the first has none."""
    data = sample("kernels", rank, name=[f"{name}_{row}" for row in range(rank)], duration_ns=list(range(rank)))
    lake.write("kernels", data, run=RUN, iteration=iteration, rank=rank, made=f"of={name}")


@pytest.fixture
def job(lake: Lake, sample: SampleTable) -> Lake:
    """Two iterations of five ranks."""
    for iteration in (1, 2):
        for rank in range(RANKS):
            write(lake, sample, iteration, rank)
            lake.write("overlap", sample("overlap", 2, compute_ns=rank), run=RUN, iteration=iteration, rank=rank)
    lake.refresh_catalogue()
    return lake


def pack(lake: Lake, least: int = 2, iteration: int = 1) -> list[str]:
    return packing.pack(lake.tables_folder, RUN, iteration, least)


def prune(lake: Lake) -> int:
    return packing.prune(lake.tables_folder, RUN, 1)


def packed_file(lake: Lake, table: str = "kernels") -> Path:
    return recorded.recorded(lake.tables_folder, RUN, 1).packs[table].path(lake.tables_folder, RUN, 1)


def record_file(lake: Lake) -> Path:
    return Partition(RUN, 1).folder(lake.tables_folder / recorded.FOLDER)


def ways(lake: Lake) -> list[Callable[[], object]]:
    """Every way of reading, each with all that it gives."""
    place = {"run": RUN, "iteration": 1}
    return [
        lambda: lake.query(ALL).to_pylist(),
        lambda: lake.query(f"{ALL.replace(' ORDER', ' WHERE rank = 3 ORDER')}").to_pylist(),
        lambda: lake.query_iteration(ALL, **place).to_pylist(),
        lambda: lake.ask_iteration(ALL, ["kernels"], **place).to_pylist(),
        lambda: lake.table("kernels").arrow().to_pylist(),
        lambda: lake.rows("kernels", **place, columns=["rank", "name"]).to_pylist(),
        *(lambda rank=rank: lake.rows("kernels", **place, rank=rank).to_pylist() for rank in range(RANKS)),
        lambda: [(one.run, one.iteration, one.rank) for one in lake.partitions("kernels")],
        lambda: [lake.content("kernels", **place, rank=rank) for rank in range(RANKS)],
        lambda: [lake.written("kernels", **place, rank=rank).rows for rank in range(RANKS)],
        lambda: lake.query("SELECT count(*), sum(compute_ns) FROM overlap").to_pylist(),
    ]


def answers(lake: Lake, most: int = 99) -> list[object]:
    return [way() for way in ways(lake)[:most]]


def by_a_client(lake: Lake) -> list[object]:
    """What a DuckDB client reads that knows nothing of this program."""
    with duckdb.connect(str(lake.catalogue_path), read_only=True) as client:
        return client.sql(ALL).fetchall()


def kernels_of(lake: Lake, rank: int) -> list[str]:
    return lake.rows("kernels", RUN, 1, ["name"], rank)["name"].to_pylist()


def test_answers_are_the_same_packed_pruned_and_packed_anew(job: Lake):
    before, client = answers(job), by_a_client(job)
    assert pack(job) == sorted(TABLES)
    for step in (lambda: None, job.refresh_catalogue, lambda: prune(job), job.refresh_catalogue):
        step()
        assert answers(job) == before and by_a_client(job) == client
        assert verify(job).faults == ()
    assert not job.tables_folder.joinpath("kernels", Partition(RUN, 1).below).exists()
    assert pack(job) == [] and prune(job) == 0, "nothing is left to do"
    assert pack(open_lake(job.home), iteration=2) == sorted(TABLES)
    assert answers(job) == before


def test_ranks_of_a_packed_file_that_somebody_deleted_are_gone_and_no_others(job: Lake, sample: SampleTable):
    pack(job)
    prune(job)
    write(job, sample, 1, 3)
    assert job.gone_parts("kernels overlap") == {}
    packed_file(job).unlink()
    gone = [Partition(RUN, 1, rank) for rank in range(RANKS) if rank != 3]
    assert job.gone_parts("kernels overlap") == {"kernels": gone}
    assert gone_iterations(job, RUN, 1, "kernels") == {}, "a rank is left"
    shutil.rmtree(job.tables_folder.joinpath("kernels", Partition(RUN, 1, 3).below))
    with pytest.raises(IncompleteError, match=r"rank [0-4] and 4 more are missing, as somebody deleted the file"):
        gone_iterations(job, RUN, 1, "kernels")


def test_equal_parts_give_equal_packed_files_whatever_they_are_packed_from(job: Lake):
    pack(job)
    first = {path.name: path.read_bytes() for path in packed_file(job).parent.iterdir()}
    recorded.forget_packs(job.tables_folder, RUN, 1)
    assert job.partitions("kernels", RUN, 1) != [], "its files are there, and nobody vouches for them"
    with pytest.raises(BadInputError):
        job.query(ALL)
    for rank in range(RANKS):
        write(job, _sample(), 1, rank)
        job.write("overlap", _sample()("overlap", 2, compute_ns=rank), run=RUN, iteration=1, rank=rank)
    pack(job)
    assert {path.name: path.read_bytes() for path in packed_file(job).parent.iterdir()} == first


def _sample() -> SampleTable:
    from tests.lake.conftest import sample_table

    return sample_table


@pytest.mark.parametrize("pruned", [False, True])
def test_a_rank_that_changed_or_is_gone_wins_over_what_is_packed(job: Lake, sample, pruned):
    pack(job)
    if pruned:
        prune(job)
    write(job, sample, 1, 3, "new")
    job.delete("kernels", run=RUN, iteration=1, rank=2)
    for _ in range(2):
        assert kernels_of(job, 3) == ["new_0", "new_1", "new_2"]
        assert job.content("kernels", run=RUN, iteration=1, rank=3).made == "of=new"
        assert [one.rank for one in job.partitions("kernels", RUN, 1)] == [0, 1, 3, 4]
        found = job.query("SELECT rank, count(*) AS n FROM kernels WHERE iteration = 1 GROUP BY ALL ORDER BY ALL")
        assert found.to_pylist() == [{"rank": rank, "n": rank} for rank in (1, 3, 4)]
        job.refresh_catalogue()
        assert len(by_a_client(job)) == 8 + 10
        assert verify(job).faults == ()
        job.sweep(RUN, 1)
    before = answers(job, 6)
    assert pack(job) == [], "one changed rank is not worth it"
    assert pack(job, 1) == ["kernels"]
    assert answers(job, 6) == before
    job.delete(*TABLES, run=RUN, iteration=1)
    assert not packed_file_folder(job).exists() and verify(job).faults == ()
    assert [one.iteration for one in job.partitions("kernels")] == [2] * RANKS


def packed_file_folder(lake: Lake) -> Path:
    return record_lines.packed_folder(lake.tables_folder, RUN, 1)


def test_a_rank_that_is_written_while_its_iteration_is_packed_wins(job: Lake, sample, monkeypatch):
    commit = recorded.write_packs

    def written_meanwhile(*of: object) -> None:
        write(job, sample, 1, 4, "meanwhile")
        job.delete("kernels", run=RUN, iteration=1, rank=1)
        job.settle(RUN, 1)
        commit(*of)

    monkeypatch.setattr(recorded, "write_packs", written_meanwhile)
    pack(job)
    assert kernels_of(job, 4)[0] == "meanwhile_0"
    assert [one.rank for one in job.partitions("kernels", RUN, 1)] == [0, 2, 3, 4]


BOUNDARIES = {
    "a packed file is half written": (packed_rows, "_write_group"),
    "the packed files are written": (packing, "write_atomically"),
    "all is there but the record": (recorded, "write_packs"),
    "the record is renamed": (recorded, "remove_others"),
}


@pytest.mark.parametrize(
    ("at", "again"),
    fast(product(BOUNDARIES, [False, True]), ("the packed files are written", False), ("the record is renamed", True)),
)
def test_killed_at_each_boundary_packing_leaves_whole_iterations_and_is_done_the_next_time(job, sample, at, again):
    if again:
        pack(job)
        prune(job)
        write(job, sample, 1, 3, "new")
    before = answers(job)
    module, name = BOUNDARIES[at]
    killed(lambda: pack(job, 1), module, name)
    assert answers(job) == before
    named = [fault for fault in verify(job).faults if "left by a packing" in fault.fault]
    assert bool(named) == (at != "the record is renamed" or again)
    assert len(named) == len(verify(job).faults)
    cleaned = clean(job, time.time_ns() + 1)
    assert {one.path for one in cleaned.removed} == {fault.path for fault in named}
    assert (cleaned.younger, cleaned.stuck) == (0, 0)
    assert verify(job).faults == () and answers(job) == before
    pack(job, 1)
    assert verify(job).faults == () and answers(job) == before
    assert not list(job.home.rglob("*.writing"))


def test_cleaning_beside_packed_files_removes_what_packing_left_and_is_old_enough_alone(job, tmp_path):
    before = answers(job)
    pack(job)
    folder, outside = packed_file(job).parent, tmp_path / "outside"
    outside.mkdir()
    young, old = folder / f"kernels.{'0' * 16}.parquet", folder / f"kernels.{'1' * 16}.parquet"
    pruned = folder / ".pruned.kernels/rank=3/part.parquet"
    mine = [folder / "notes.txt", folder / "mine/notes.txt", folder.parent / "notes.txt", outside / "notes.txt"]
    for path in (young, old, pruned, *mine):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        if path != young:
            os.utime(path, (0, 0))
    (folder / "link").symlink_to(outside)
    faults = {fault.path: fault.is_left_over for fault in verify(job).faults}
    assert faults == {**dict.fromkeys((young, old, pruned), True), **dict.fromkeys(mine[:3], False)}
    cleaned = clean(job, young.stat().st_mtime_ns)
    assert ({one.path for one in cleaned.removed}, cleaned.younger, cleaned.stuck) == ({old, pruned}, 1, 0)
    assert all(path.exists() for path in (young, *mine, folder / "link")) and answers(job) == before
    # Packing takes the folder for itself, but follows no link out of it.
    pack(job, 1)
    assert mine[3].exists() and not young.exists() and answers(job) == before


def test_what_lies_beside_an_iteration_that_somebody_packs_stays_while_others_are_cleaned(job, monkeypatch):
    """He begins right after the left-overs were listed: his files are not named yet."""
    left = []
    for iteration in (1, 2):
        pack(job, iteration=iteration)
        left.append(record_lines.packed_folder(job.tables_folder, RUN, iteration) / f"kernels.{'0' * 16}.parquet")
        left[-1].touch()
    with ExitStack() as packs:

        def begin(path: Path) -> None:
            if path == left[1]:
                packs.enter_context(recorded.turn_at(path.parent))

        monkeypatch.setattr(lake_verify, "remove_if_stale", begin)
        cleaned = clean(job, time.time_ns() + 1)
    assert ([one.path for one in cleaned.removed], cleaned.stuck) == (left[:1], 1)
    assert left[1].exists() and not left[0].exists()


@pytest.mark.parametrize(
    ("remove", "look"),
    [(lambda job: clean(job, time.time_ns() + 1), 2), (lambda job: job.settle(RUN, 1), 1)],
    ids=["cleaning", "settling"],
)
def test_a_packing_that_ends_while_somebody_removes_left_overs_keeps_its_files(job, sample, monkeypatch, remove, look):
    """It ends right before the folder is locked for that."""
    pack(job)
    prune(job)
    write(job, sample, 1, 3, "new")
    before = answers(job)
    stray = packed_file(job).with_name(f"kernels.{'0' * 16}.parquet")
    stray.touch()
    if_free, looks = recorded.if_free, list[Path]()

    def late(path, flags):
        looks.extend([path] * (path == stray.parent))
        if path == stray.parent and len(looks) == look:
            pack(job, 1)
        return if_free(path, flags)

    monkeypatch.setattr(recorded, "if_free", late)
    remove(job)
    assert len(looks) >= look and not stray.exists()
    assert verify(job).faults == () and answers(job) == before


def test_killed_while_it_prunes_nothing_is_missing(job: Lake):
    before = answers(job)
    pack(job)
    killed(lambda: prune(job), recorded, "remove_others")
    assert answers(job) == before
    pack(job)
    assert verify(job).faults == () and not list(job.tables_folder.rglob(".pruned*"))


def killed(work: Callable[[], object], module: object, name: str) -> None:
    """Do it in a process that is killed where it would call a function."""
    child = os.fork()
    if child == 0:
        setattr(module, name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        with suppress(BaseException):
            work()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_readers_beside_packing_and_pruning_see_whole_iterations_only(job: Lake, sample):
    expected = answers(job, 6)

    def repack() -> None:
        for turn in range(6):
            pack(job, 1)
            prune(job)
            for rank in range(turn % 2, RANKS, 2):
                write(job, sample, 1, rank)

    with ThreadPoolExecutor(1) as pool:
        work, seen = pool.submit(repack), 0
        while not work.done() or not seen:
            for way, right in zip(ways(job), expected, strict=False):
                assert way() == right
                seen += 1
        work.result()
    assert verify(job).faults == ()


def test_a_client_that_is_older_than_a_packing_fails_rather_than_miss_an_iteration(job: Lake):
    pack(job, iteration=2)
    job.refresh_catalogue()
    with duckdb.connect(str(job.catalogue_path), read_only=True) as client:
        assert len(client.sql(ALL).fetchall()) == 20
        pack(job)
        assert len(client.sql(ALL).fetchall()) == 20
        prune(job)
        with pytest.raises(duckdb.IOException, match="No files found"):
            client.sql(ALL)


def newer(path: Path) -> None:
    """A line that this version does not know, and that is as it was written."""
    path.write_bytes(path.read_bytes() + record_lines._line(Partition(RUN, 1).below, "woven", "kernels", "0-4", NEW))


NEW = record_lines.Content("0123")


DAMAGE = {
    "a truncated packed file": (packed_file, truncate, "damaged", "traceviz lake pack"),
    "a packed file that is gone": (packed_file, Path.unlink, "packed file", "traceviz lake pack"),
    "a truncated record": (record_file, truncate, "damaged or gone", "--set-aside"),
    "a record that is gone": (record_file, Path.unlink, "damaged or gone", "--set-aside"),
    "a record of a newer version": (record_file, newer, "newer version", "update traceviz_dag"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_what_is_wrong_is_refused_in_one_line_with_a_remedy_and_verify_names_it(job: Lake, kind):
    pack(job)
    prune(job)
    of, damage, fault, remedy = DAMAGE[kind]
    damage(of(job))
    for way in ways(job)[:6]:
        with pytest.raises(BadInputError, match=fault) as refused:
            way()
        assert remedy in str(refused.value) and "\n" not in str(refused.value)
    named = call("lake", "verify", "--home", job.home)
    assert named.code == 2 and str(of(job).name) in named.out and remedy in named.out
    asked = call("sql", ALL, "--home", job.home)
    assert asked.code == 2 and not asked.out and len(asked.err.splitlines()) == 1


def test_a_damaged_packed_file_is_made_anew_of_the_files_that_were_kept(job: Lake):
    before = answers(job)
    pack(job)
    truncate(packed_file(job))
    with pytest.raises(BadInputError):
        job.query(ALL)
    assert prune(job) == RANKS, "those of the other table"
    assert pack(job) == ["kernels"]
    assert answers(job) == before and verify(job).faults == ()


def test_a_damaged_packed_file_without_kept_files_is_fixed_rank_by_rank(job: Lake, sample):
    pack(job)
    prune(job)
    truncate(packed_file(job))
    left = packed_file(job).read_bytes()
    assert pack(job) == [], "nothing is packed of what is lost"
    assert packed_file(job).read_bytes() == left, "what is left of it stays"
    for rank in range(RANKS):
        write(job, sample, 1, rank)
    assert verify(job).faults == () or pack(job) == ["kernels"]
    assert len(job.query(ALL)) == 20


def test_a_packed_file_that_comes_back_is_read_though_it_was_to_be_packed_anew_meanwhile(job: Lake):
    before = answers(job)
    pack(job)
    prune(job)
    away = packed_file(job).rename(job.home / "away")
    told = call("lake", "pack", "--home", job.home)
    assert told.code == 2 and packed_file(job).name in told.err and "Nothing to pack" not in told.out
    away.rename(packed_file(job))
    assert answers(job) == before and verify(job).faults == ()
    assert call("lake", "pack", "--home", job.home).code == 0


def test_a_rank_written_anew_as_it_was_and_damaged_since_spoils_no_other_where_packing_is_killed(
    job: Lake, sample, monkeypatch
):
    others = [kernels_of(job, rank) for rank in range(4)]
    pack(job)
    prune(job)
    write(job, sample, 1, 4)
    truncate(job.path("kernels", run=RUN, iteration=1, rank=4))
    monkeypatch.setattr(recorded, "write_packs", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        pack(job, least=1)
    assert {fault.rank for fault in verify(job).faults if not fault.is_left_over} == {4}
    assert [kernels_of(open_lake(job.home), rank) for rank in range(4)] == others


def test_an_iteration_whose_packed_files_are_lost_is_set_aside_and_written_anew(job: Lake, sample):
    pack(job)
    prune(job)
    truncate(record_file(job))
    moved = call("lake", "verify", "--set-aside", "--home", job.home)
    assert "settled" in moved.err
    assert list((job.tables_folder / ".set_aside").rglob("kernels.*.parquet"))
    assert [one.iteration for one in job.partitions("kernels")] == [2] * RANKS
    for rank in range(RANKS):
        write(job, sample, 1, rank)
    assert len(job.query(ALL)) == 20


def test_sources_that_are_damaged_are_named_and_let_answers_be(job: Lake):
    pack(job)
    pack_of_kernels = recorded.recorded(job.tables_folder, RUN, 1).packs["kernels"]
    truncate(packed_file(job).with_name(pack_of_kernels.sources))
    assert len(job.query(ALL)) == 20
    assert job.content("kernels", run=RUN, iteration=1, rank=1) is None, "so the rank is analysed again"
    assert {fault.path.name for fault in verify(job).faults} == {pack_of_kernels.sources}


def test_a_kept_file_that_is_not_what_was_packed_and_a_stray_one_are_named_and_not_read(job: Lake):
    before = answers(job)
    pack(job)
    kept = job.tables_folder / "kernels" / Partition(RUN, 1, 3).below / "part.parquet"
    stray = job.tables_folder / "kernels" / Partition(RUN, 1, 9).below / "part.parquet"
    stray.parent.mkdir()
    stray.write_bytes(kept.read_bytes())
    truncate(kept)
    assert answers(job) == before
    assert {fault.path for fault in verify(job).faults} == {kept, stray}
    assert prune(job) == RANKS, "of the table beside which nobody put anything"


def test_the_printed_status_is_what_queries_and_the_folders_say(job: Lake):
    pack(job)
    lines = call("lake", "status", "--at-least", "5", "--home", job.home).out.splitlines()
    printed = [re.split(r"\s{2,}", line.strip()) for line in lines if line.strip().startswith(RUN)]
    for run, iteration, table, ranks, files, rows, size, packed, kept, would in printed:
        of = f"FROM {table} WHERE run = '{run}' AND iteration = {iteration}"
        assert int(rows) == job.query(f"SELECT count(*) AS n {of}")["n"].to_pylist()[0]
        there = len(list((job.tables_folder / table / Partition(RUN, int(iteration)).below).rglob("part.parquet")))
        assert (int(ranks), int(kept)) == (RANKS, there if iteration == "1" else 0)
        assert (int(files), int(packed)) == ((1, RANKS) if iteration == "1" else (there, 0))
        read = [job.path(table, run=RUN, iteration=int(iteration), rank=rank) for rank in range(RANKS)]
        assert float(size) == round(sum(path.stat().st_size for path in set(read)) / 1e6, 1)
        assert would == ("do nothing" if iteration == "1" else "make 1 file of 5")
    assert len(printed) == 4


def test_commands_say_what_packing_would_do_and_do_it(job: Lake):
    options = ("--home", job.home)
    found = call("lake", "status", "--json", *options).json
    assert {(row["iteration"], row["table"]): (row["files"], row["rows"], row["to_pack"]) for row in found} == {
        **{(iteration, "kernels"): (5, 10, False) for iteration in (1, 2)},
        **{(iteration, "overlap"): (5, 10, False) for iteration in (1, 2)},
    }
    assert "Nothing to pack" in call("lake", "pack", *options).out
    with under_way(job.home, "a%20job@2"):
        packed = call("lake", "pack", "--at-least", "5", "--prune", *options)
    assert packed.out.splitlines() == [
        "run a job, iteration 1: packed kernels, overlap",
        "run a job, iteration 1: removed 10 files of single ranks",
    ]
    assert "iteration 2 is being analysed" in packed.err
    found = call("lake", "status", "--json", "--iteration", "1", *options).json
    assert [(row["files"], row["rows"], row["packed"], row["kept"]) for row in found] == [(1, 10, 5, 0)] * 2
    table = call("lake", "status", "--at-least", "5", *options).out
    assert "make 1 file of 5" in table and "do nothing" in table


def test_packed_ranks_of_an_earlier_version_are_converted_and_packed_anew(job):
    before = job.query(ALL).to_pylist()
    pack(job)
    prune(job)
    with another_version(kernels=MORE):
        newer = open_lake(job.home)
        rows = newer.query(ALL).to_pylist()
        assert {row.pop("cache_hits") for row in rows} == {None} and rows == before
        assert verify(newer).faults == ()
        assert "kernels" in pack(newer) and prune(newer)
        assert [{**row, "cache_hits": None} for row in before] == newer.query(ALL).to_pylist()
        assert verify(newer).faults == ()
    assert open_lake(job.home).query(ALL).to_pylist() == before

"""A home at s3://: equal to a local one, whole at any kill, and of several writers nothing is lost."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pyarrow as pa
import pytest
import xxhash

from tests.damage import call
from tests.object_server import ObjectServer, variables
from tests.seaweed import Seaweed
from traceviz_dag.api.job import home_of
from traceviz_dag.errors import StoreError, UsageError
from traceviz_dag.lake import published
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partitions import Partition
from traceviz_dag.lake.published import Entry, Manifest, Published
from traceviz_dag.lake.record_lines import SETTLED, Content, line_of
from traceviz_dag.system.objects import Bucket

HOME = "s3://bucket/team/home"


@pytest.fixture(params=["fake", pytest.param("seaweed", marks=pytest.mark.long)])
def there(request, monkeypatch, tmp_path) -> Iterator[ObjectServer | Seaweed]:
    """A store: ours in the fast set, a real one in the long set."""
    if request.param == "fake":
        yield request.getfixturevalue("store")
        return
    server = Seaweed(tmp_path / "seaweed")
    try:
        server.start()
        for name, value in variables(server.port).items():
            monkeypatch.setenv(name, value)
        yield server
    finally:
        server.kill()


def tables_of(home):
    return {path.relative_to(home): path.read_bytes() for path in (home / "lake").rglob("part.parquet")}


def faults(state) -> list[str]:
    return [one.fault for one in Published(HOME, state).faults()]


def analyze(run, state):
    return call("analyze", run, "--home", HOME, "--state", state)


def test_tables_equal_those_of_a_local_home_and_another_machine_reads_them(tmp_path, there, run):
    assert analyze(run, tmp_path / "a").code == 0
    local = tables_of(run.parent / "home")
    assert tables_of(tmp_path / "a") == local
    read = call("waits", "--home", HOME, "--state", tmp_path / "b")
    assert read.out == call("waits", "--home", run.parent / "home").out
    assert tables_of(tmp_path / "b") == local
    verified = call("lake", "verify", "--home", HOME, "--state", tmp_path / "b")
    assert (verified.code, faults(tmp_path / "b")) == (0, [])
    # What is current there is not computed again here.
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "b/lake").rglob("part.parquet")}
    assert analyze(run, tmp_path / "b").code == 0
    assert times == {path: path.stat().st_mtime_ns for path in times}


def test_reading_lists_nothing_and_fetches_nothing_twice(tmp_path, store, run):
    assert analyze(run, tmp_path / "a").code == 0
    store.requests.clear()
    assert call("findings", "--home", HOME, "--state", tmp_path / "b", "--iteration", "8").code == 2
    assert store.of("GET") == ["team/home/manifest.json"]
    assert call("iterations", "--home", HOME, "--state", tmp_path / "b").code == 0
    asked = store.of("GET")
    assert "" not in asked
    parts = [key for key in asked if "/parts/" in key]
    assert len(parts) == len(set(parts))
    store.requests.clear()
    assert call("iterations", "--home", HOME, "--state", tmp_path / "b").code == 0
    assert {(method, key) for method, key, _ in store.requests} == {("GET", "team/home/manifest.json")}


@pytest.mark.long
def test_a_kill_between_parts_and_manifest_leaves_the_home_as_it_was(tmp_path, there, run, monkeypatch):
    """The iterations of before are whole; what was uploaded is named, and published by the next run."""
    assert analyze(run, tmp_path / "a").code == 0
    before = tables_of(tmp_path / "a")
    shutil.copytree(run / "iteration_7", tmp_path / "job/iteration_7")
    other = next((tmp_path / "job/iteration_7").iterdir())
    other.write_bytes(other.read_bytes() + b" ")
    put = Bucket.put

    def killed(self, key, data, **options):
        if key.endswith("manifest.json"):
            if isinstance(there, Seaweed):
                there.kill()
            else:
                there.refuse = lambda _method, _key: (503, "ServiceUnavailable")
        return put(self, key, data, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "put", killed)
        ended = analyze(tmp_path / "job", tmp_path / "c")
    assert ended.code == 2
    assert HOME in ended.err
    if isinstance(there, Seaweed):
        there.start()
    else:
        there.refuse = lambda _method, _key: None
    Published(HOME, tmp_path / "b").fetch()
    assert tables_of(tmp_path / "b") == before
    strays = faults(tmp_path / "b")
    assert strays
    assert set(strays) == {"no manifest names it"}
    verified = call("lake", "verify", "--home", HOME, "--state", tmp_path / "b")
    assert verified.code == 2
    assert "s3://bucket/team/home/parts/" in verified.out
    cleaning = ("lake", "clean", "--home", HOME, "--state", tmp_path / "d", "--json")
    young = call(*cleaning)
    assert not young.err, young.err
    assert (young.code, young.json["removed"], young.json["kept"]) == (0, [], len(strays))
    assert sorted(faults(tmp_path / "b")) == sorted(strays)
    cleaned = call(*cleaning, "--older-than", "0").json
    assert len(cleaned["removed"]) == len(strays)
    assert all(one["path"].startswith("s3://bucket/team/home/parts/") for one in cleaned["removed"])
    assert not (tmp_path / "d/lake").exists(), "nothing was fetched for it"
    assert faults(tmp_path / "b") == []
    assert analyze(tmp_path / "job", tmp_path / "c").code == 0
    Published(HOME, tmp_path / "b").fetch()
    assert tables_of(tmp_path / "b") == tables_of(tmp_path / "c")
    assert tables_of(tmp_path / "b") != before


@pytest.mark.long
def test_traces_at_s3_are_one_run_for_every_machine(tmp_path, store):
    assert analyze("s3://bucket/job", tmp_path / "a").code == 0
    times = len(store.of("GET"))
    assert analyze("s3://bucket/job", tmp_path / "b").code == 0
    assert tables_of(tmp_path / "b") == tables_of(tmp_path / "a")
    assert {one.run for one in Lake(tmp_path / "b").partitions("kernels")} == {"job"}
    assert len(store.of("GET")) > times
    store.requests.clear()
    assert analyze("s3://bucket/job", tmp_path / "a").code == 0
    assert not store.of("PUT")


def test_of_sixteen_writers_of_one_rank_one_wins_and_no_other_row_is_lost(tmp_path, there, run, monkeypatch):
    monkeypatch.setattr(published, "_LONGEST_PAUSE_SECONDS", 0.05)
    kernels = Lake(run.parent / "home").table("kernels", "job", 7, 0).arrow().drop(["run", "iteration", "rank"])
    kernels = pa.concat_tables([kernels, kernels])
    mine = {}
    for number in range(1, 17):
        folder = tmp_path / str(number)
        mine[number] = Published(HOME, folder)
        mine[number].fetch()
        for rank in (0, number):
            Lake(folder).write("kernels", kernels.slice(0, number), run="job", iteration=7, rank=rank)
    with ThreadPoolExecutor(16) as pool:
        both = list(pool.map(lambda one: one.publish(), mine.values()))
    assert sorted(map(len, both)) == [0, *[1] * 15]
    read = Published(HOME, tmp_path / "read")
    read.fetch()
    lake = Lake(tmp_path / "read")
    rows = {one.rank: lake.table("kernels", "job", 7, one.rank).arrow().num_rows for one in lake.partitions("kernels")}
    assert rows.pop(0) in rows.values()
    assert rows == {number: number for number in range(1, 17)}
    # What lost is there, and named; nothing else is.
    assert set(faults(tmp_path / "read")) == {"no manifest names it"}
    for one in mine.values():
        one.fetch()
        assert one.publish() == []
    assert all(tables_of(tmp_path / str(number)) == tables_of(tmp_path / "read") for number in mine)


@pytest.mark.long
def test_two_writers_of_different_ranks_both_stay_and_the_next_run_makes_what_is_across_them(tmp_path, there, run):
    """Each analysed its own ranks; nothing across ranks is wrong for good."""
    files = sorted((run / "iteration_7").iterdir())
    first, second = Published(HOME, tmp_path / "1"), Published(HOME, tmp_path / "2")
    first.fetch()
    second.fetch()
    assert call("analyze", *files[:2], "--home", tmp_path / "1").code == 0
    assert call("analyze", *files[2:], "--home", tmp_path / "2").code == 0
    assert first.publish() == []
    assert second.publish() == ["job@7"]
    third = tmp_path / "3"
    told = call("analyze", run, "--home", HOME, "--state", third)
    assert told.code == 0
    lake = Lake(third)
    assert [one.rank for one in lake.partitions("kernels", "job", 7)] == [0, 1, 2, 3]
    assert tables_of(third) == tables_of(run.parent / "home")


@pytest.mark.parametrize("ignored", ["all", "none"])
def test_a_bucket_that_ignores_conditions_is_refused_before_anything_is_computed(tmp_path, store, run, ignored):
    store.honours_conditions = ignored == "none"
    called = analyze(run, tmp_path / "a")
    if ignored == "none":
        assert called.code == 0
        return
    assert called.code == 2
    assert f"{HOME}: the bucket ignores If-None-Match" in called.err
    assert not (tmp_path / "a/lake").exists()
    assert analyze(run, tmp_path / "a").code == 2


def test_parts_that_are_gone_or_damaged_are_named(tmp_path, store, run):
    assert analyze(run, tmp_path / "a").code == 0
    gone, damaged, *_ = sorted(key for key in store.objects if "/parts/" in key)
    del store.objects[gone]
    store.objects[damaged] += b"\0"
    store.objects |= {f"team/home/parts/{'0' * 32}": b"", "team/home/parts/notes.txt": b""}
    assert sorted(faults(tmp_path / "a")) == [
        *("is damaged, and job@7 needs it", "is gone, and job@7 needs it", "is no part of a home"),
        "no manifest names it",
    ]
    told = call("waits", "--home", HOME, "--state", tmp_path / "b")
    assert told.code == 2
    assert "job@7 needs it" in told.err
    store.objects["team/home/manifest.json"] = b"{"
    with pytest.raises(StoreError, match="manifest is damaged"):
        Published(HOME, tmp_path / "c").fetch()
    store.objects["team/home/manifest.json"] = b'{"format": 2}'
    with pytest.raises(StoreError, match="a newer version"):
        Published(HOME, tmp_path / "c").fetch()


@pytest.mark.long
def test_a_slow_line_is_waited_for(store):
    # Longer than obstore waits by itself.
    store.refuse = lambda method, _: time.sleep(31) if method == "PUT" else None
    Bucket(HOME).put("team/home/part", b"a rank", always=True)
    assert store.of("PUT") == ["team/home/part"]


@pytest.mark.parametrize("base", ["..", ""])
def test_a_record_with_a_path_for_a_table_is_refused(tmp_path, store, run, base):
    assert analyze(run, tmp_path / "a").code == 0
    published = Published(HOME, tmp_path / "a")
    (key,), (entry,) = zip(*published._manifest()[0].iterations.items(), strict=True)
    record, data = store.objects[f"team/home/parts/{entry.record}"], b"of somebody else"
    table = f"{base or tmp_path}/outside"
    content = Content(published._put(data))
    forged = published._put(record + line_of(Partition("job", 7).below, SETTLED, (table, None), content))
    store.objects["team/home/manifest.json"] = msgspec.json.encode(Manifest({key: Entry(forged, entry.inputs)}))
    told = call("waits", "--home", HOME, "--state", tmp_path / "b")
    assert told.code == 2 and "the record of job@7 is damaged" in told.err
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes() == data]


def test_a_folder_is_of_one_address_and_no_home_of_its_own(tmp_path, store, run):
    assert "needs --state FOLDER" in call("findings", "--home", HOME).err
    assert "is a folder of this machine" in call("findings", "--home", HOME, "--state", "s3://bucket/state").err
    assert "is not packed" in call("lake", "pack", "--home", HOME, "--state", tmp_path / "p").err
    with pytest.raises(UsageError, match="name that folder here"):
        home_of(HOME)
    assert analyze(run, tmp_path / "a").code == 0
    with pytest.raises(UsageError, match="is of s3://bucket/team/home"):
        Published("s3://bucket/other", tmp_path / "a")
    with pytest.raises(UsageError, match="is a home of its own"):
        Published(HOME, run.parent / "home")


@pytest.mark.long
@pytest.mark.parametrize("lost", ["table", "record", "inputs"])
def test_what_the_bucket_lost_is_there_again_once_its_traces_are_analysed_into_another_state(
    tmp_path, store, run, lost
):
    assert analyze(run, tmp_path / "a").code == 0
    (entry,) = Published(HOME, tmp_path / "a")._manifest()[0].iterations.values()
    table = max(tables_of(tmp_path / "a").values(), key=len)
    digest = {"table": xxhash.xxh3_128_hexdigest(table), "record": entry.record}
    key = f"team/home/parts/{digest.get(lost, entry.inputs)}"
    before = dict(store.objects)
    del store.objects[key]
    reader = Published(HOME, tmp_path / "r")
    with pytest.raises(StoreError, match="analyse its traces again into another --state"):
        reader.fetch()
    told = call("lake", "verify", "--home", HOME, "--state", tmp_path / "s")
    assert told.code == 2
    assert analyze(run, tmp_path / "b").code == 0
    assert store.objects == before
    # The folder whose first fetch stopped is of this home still.
    reader.fetch()
    assert tables_of(tmp_path / "r") == tables_of(tmp_path / "a")
    assert faults(tmp_path / "r") == []


@pytest.mark.long
def test_parts_of_a_lost_record_are_not_said_to_be_strays(tmp_path, store, run):
    assert analyze(run, tmp_path / "a").code == 0
    (entry,) = Published(HOME, tmp_path / "a")._manifest()[0].iterations.values()
    del store.objects[f"team/home/parts/{entry.record}"]
    assert faults(tmp_path / "b") == ["is gone, and job@7 needs it"]


@pytest.mark.long
def test_a_first_fetch_that_stops_leaves_a_folder_of_that_home(tmp_path, store, run):
    assert analyze(run, tmp_path / "a").code == 0
    parts = sorted(key for key in store.objects if "/parts/" in key)
    store.refuse = lambda _method, key: (403, "AccessDenied") if key in parts[len(parts) // 2 :] else None
    with pytest.raises(StoreError, match="access is refused"):
        Published(HOME, tmp_path / "b").fetch()
    store.refuse = lambda _method, _key: None
    Published(HOME, tmp_path / "b").fetch()
    assert tables_of(tmp_path / "b") == tables_of(tmp_path / "a")


@pytest.mark.long
def test_a_misspelt_address_does_not_take_the_folder(tmp_path, store, run):
    assert analyze(run, tmp_path / "a").code == 0
    told = call("findings", "--home", "s3://bucket/team/hoem", "--state", tmp_path / "b")
    assert told.code == 2
    assert told.err.startswith("traceviz: s3://bucket/team/hoem: nothing is published there\n")
    Published(HOME, tmp_path / "b").fetch()
    assert tables_of(tmp_path / "b") == tables_of(tmp_path / "a")
    with pytest.raises(UsageError, match="is of s3://bucket/team/home"):
        Published("s3://bucket/team/hoem", tmp_path / "b")


def test_cleaning_leaves_what_was_written_again_and_what_a_lost_record_may_name(tmp_path, store, run, monkeypatch):
    assert analyze(run, tmp_path / "a").code == 0
    stray, again = f"team/home/parts/{'0' * 32}", f"team/home/parts/{'1' * 32}"
    store.objects |= {stray: b"1", again: b"2"}
    find = Bucket.find

    def written_meanwhile(self, key):
        store.written[again] = time.time()
        return find(self, key)

    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "find", written_meanwhile)
        told = call("lake", "clean", "--home", HOME, "--state", tmp_path / "b")
    assert told.code == 0
    assert f"s3://bucket/{stray}" in told.out
    assert "1 more were written within 24 hours" in told.out
    assert stray not in store.objects and again in store.objects
    (entry,) = Published(HOME, tmp_path / "a")._manifest()[0].iterations.values()
    del store.objects[f"team/home/parts/{entry.record}"]
    store.written.clear()
    before = dict(store.objects)
    told = call("lake", "clean", "--home", HOME, "--state", tmp_path / "c")
    assert (told.code, "a record is lost" in told.err) == (2, True)
    assert store.objects == before


def test_cleaning_removes_what_was_written_before_it_although_stores_count_whole_seconds(tmp_path, store, run):
    assert analyze(run, tmp_path / "a").code == 0
    strays = {f"team/home/parts/{number:032}": str(number).encode() for number in range(50)}
    store.objects |= strays
    store.written |= dict.fromkeys(strays, time.time())
    told = call("lake", "clean", "--home", HOME, "--state", tmp_path / "b", "--older-than", "0", "--json").json
    assert (len(told["removed"]), told["kept"]) == (len(strays), 0)
    assert all(one["hours"] >= 0 for one in told["removed"])


@pytest.mark.parametrize("manifest", [None, b"{}"])
def test_a_home_without_its_manifest_is_not_cleaned_and_verify_names_that(tmp_path, store, run, manifest):
    assert analyze(run, tmp_path / "a").code == 0
    key, before = "team/home/manifest.json", dict(store.objects)
    whole = store.objects.pop(key)
    store.objects |= {key: manifest} if manifest is not None else {}
    store.written.clear()
    for state in ("a", "b"):
        told = call("lake", "clean", "--home", HOME, "--state", tmp_path / state)
        assert told.code == 2
        assert f"s3://bucket/{key}: it is gone" in told.err
        (fault,) = faults(tmp_path / state)
        assert fault.startswith("it is gone")
    store.objects[key] = whole
    assert store.objects == before
    assert call("lake", "clean", "--home", HOME, "--state", tmp_path / "b").code == 0
    assert store.objects == before


def test_cleaning_leaves_what_is_no_part_of_this_home(tmp_path, store, run):
    """Traces below parts/ of a home at the bucket's root, another home there, a prefix that begins alike."""
    assert call("analyze", run, "--home", "s3://bucket", "--state", tmp_path / "a").code == 0
    stray = f"parts/{'0' * 32}"
    others = ("parts/job/rank0.json.gz", f"parts/team/parts/{'1' * 32}", "parts/notes.txt", f"parts2/{'2' * 32}")
    before = {**store.objects, **dict.fromkeys(others, b"x")}
    store.objects = {**before, stray: b"x"}
    store.written.clear()
    told = call("lake", "clean", "--home", "s3://bucket", "--state", tmp_path / "b", "--json")
    assert [one["path"] for one in told.json["removed"]] == [f"s3://bucket/{stray}"]
    assert store.objects == before


def test_what_was_removed_before_a_slow_writer_named_it_is_there_again(tmp_path, store, run, monkeypatch):
    """A machine that slept from its last part to the manifest for longer than cleaning waits."""
    put, removed = Bucket.put, list[str]()

    def slept(self, key, data, **options):
        if key.endswith("manifest.json"):
            removed.extend(key for key in store.objects if "/parts/" in key)
            for part in removed:
                del store.objects[part]
        return put(self, key, data, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "put", slept)
        assert analyze(run, tmp_path / "a").code == 0
    assert len(removed) > 1
    assert faults(tmp_path / "b") == []
    Published(HOME, tmp_path / "b").fetch()
    assert tables_of(tmp_path / "b") == tables_of(run.parent / "home")


@pytest.mark.long
def test_strays_may_be_deleted_whatever_other_folders_know(tmp_path, store, run):
    """The record that the first folder knows is one of them, once the second one published."""
    shutil.copytree(run, tmp_path / "job")
    assert analyze(tmp_path / "job", tmp_path / "a").code == 0
    traces = sorted((tmp_path / "job/iteration_7").iterdir())
    traces[2].write_bytes(traces[2].read_bytes() + b" ")
    assert analyze(tmp_path / "job", tmp_path / "b").code == 0
    strays = [one.path.name for one in Published(HOME, tmp_path / "b").faults()]
    assert len(strays) > 1
    for name in strays:
        del store.objects[f"team/home/parts/{name}"]
    Published(HOME, tmp_path / "a").fetch()
    assert tables_of(tmp_path / "a") == tables_of(tmp_path / "b")
    assert analyze(tmp_path / "job", tmp_path / "a").code == 0


@pytest.mark.long
def test_a_bucket_that_was_emptied_gets_what_a_folder_has(tmp_path, store, run):
    assert analyze(run, tmp_path / "a").code == 0
    before = dict(store.objects)
    for key in [key for key in store.objects if key.startswith("team/")]:
        del store.objects[key]
    assert call("iterations", "--home", HOME, "--state", tmp_path / "a").code == 0
    assert "team/home/manifest.json" not in store.objects
    assert analyze(run, tmp_path / "a").code == 0
    assert store.objects == before


def test_expired_credentials_are_a_line_and_what_was_computed_is_published_by_the_next_run(tmp_path, store, run):
    store.refuse = lambda method, key: (400, "ExpiredToken") if method == "PUT" and "/parts/" in key else None
    called = analyze(run, tmp_path / "a")
    assert called.code == 2
    assert "the credentials have expired; renew" in called.err
    store.refuse = lambda _method, _key: None
    assert analyze(run, tmp_path / "a").code == 0
    Published(HOME, tmp_path / "b").fetch()
    assert tables_of(tmp_path / "b") == tables_of(run.parent / "home")

"""Traces at s3:// give the tables that they give on the disk; what goes wrong with the store is told."""

from __future__ import annotations

import os
import sys

import pyarrow.parquet as pq
import pytest

import traceviz_dag as tv
from sensors.listing import MOST_OBJECTS, FolderLook, Unreadable, open_folders, walk
from sensors.registration import FolderTask, register_folder
from tests.damage import call
from tests.object_server import SECRET
from tests.sets import fast
from traceviz_dag.errors import StoreError, UsageError
from traceviz_dag.printable import OBJECTS_FOLDER
from traceviz_dag.read.object_views import local_view
from traceviz_dag.read.regular_file import open_stream
from traceviz_dag.system.objects import Bucket


def tables_of(home):
    return {path.relative_to(home): path for path in (home / "lake").rglob("part.parquet")}


def one_line(called) -> str:
    (line,) = called.err.strip().splitlines()
    assert SECRET not in called.err + called.out
    return line


def test_tables_equal_those_of_a_local_run_and_unchanged_ranks_are_current(tmp_path, store, run):
    assert call("analyze", "s3://bucket/job", "--home", tmp_path).code == 0
    local, stored = tables_of(run.parent / "home"), tables_of(tmp_path)
    assert local.keys() == stored.keys()
    for name, path in stored.items():
        if name.parts[1] == "traces":  # An object is told by its size and tag, not by its bytes.
            one, other = pq.read_table(path), pq.read_table(local[name])
            assert one.drop(["digest"]) == other.drop(["digest"])
            assert one["digest"] != other["digest"]
        else:
            assert path.read_bytes() == local[name].read_bytes(), name
    traces = sorted(key for key in store.objects if key.endswith(".json"))
    assert set(store.of("GET")) == {"", *store.objects.keys() - {key for key in store.objects if "truth" in key}}
    store.requests.clear()
    assert call("analyze", "s3://bucket/job", "--home", tmp_path).code == 0
    before = {path: path.stat().st_mtime_ns for path in tables_of(tmp_path).values()}
    store.objects[traces[0]] += b"\0"
    assert call("analyze", "s3://bucket/job", "--home", tmp_path).code == 0
    written = {path.relative_to(tmp_path) for path, at in before.items() if path.stat().st_mtime_ns != at}
    ranks = {name.parts[4] for name in written if len(name.parts) == 6}
    assert ranks == {"rank=0"}


@pytest.mark.long
def test_no_secret_is_kept_and_whatever_takes_a_folder_of_traces_takes_one_there(tmp_path, store, run, monkeypatch):
    monkeypatch.chdir(tmp_path)  # Commands without a home take the one in the current folder.
    called = call("doctor", "s3://bucket/job/iteration_7", "--home", tmp_path)
    assert called.code == 0
    assert call("waits", "s3://bucket/job", "--home", tmp_path).out == call("waits", run, "--home", tmp_path / "l").out
    (path, *_) = sorted((tmp_path / OBJECTS_FOLDER / "bucket/job").rglob("*.json"))
    key = path.relative_to(tmp_path / OBJECTS_FOLDER / "bucket").as_posix()
    assert call("classify", f"s3://bucket/{key}", "--home", tmp_path).code == 0
    assert "Perfetto reads files of this machine" in call("perfetto", "query", f"s3://bucket/{key}", "SELECT 1").err
    same = call("diff", "s3://bucket/job@7", f"{run}@7", "--home", tmp_path)
    assert same.code == 0
    with tv.open("s3://bucket/job") as job:
        assert [each.number for each in job.iterations] == [7]
    kept = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert SECRET.encode() not in kept
    assert call("simulate", "s3://bucket/new").code == 2


@pytest.mark.long
def test_a_home_that_was_moved_knows_its_runs(tmp_path, store):
    assert call("analyze", "s3://bucket/job", "--home", tmp_path / "a").code == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "a/lake").rglob("part.parquet")}
    (tmp_path / "a").rename(tmp_path / "b")
    assert call("analyze", "s3://bucket/job", "--home", tmp_path / "b").code == 0
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "b/lake").rglob("part.parquet")}
    assert {path.relative_to(tmp_path / "a"): at for path, at in before.items()} == {
        path.relative_to(tmp_path / "b"): at for path, at in after.items()
    }


def test_what_is_gone_from_the_store_is_gone_from_its_view(tmp_path, store):
    view = local_view("s3://bucket/job", tmp_path)
    names = sorted(path.name for path in view.rglob("*.json"))
    key = next(key for key in store.objects if key.endswith(names[0]))
    del store.objects[key]
    store.objects["job/iteration_7/rank_0009.json.tmp"] = b"{"
    store.objects["job/.hidden/rank_0009.json"] = b"{"
    store.objects["jobs/rank_0009.json"] = b"{"
    local_view("s3://bucket/job", tmp_path)
    assert sorted(path.name for path in view.rglob("*.json*")) == names[1:]


@pytest.mark.parametrize(
    ("status", "code", "fault"),
    [
        (400, "ExpiredToken", "the credentials have expired; renew"),
        (403, "SignatureDoesNotMatch", "access is refused (SignatureDoesNotMatch); check AWS_ACCESS_KEY_ID"),
        (403, "AccessDenied", "access is refused (AccessDenied)"),
        (404, "NoSuchBucket", "no such bucket"),
        (501, "NotImplemented", "the store answers NotImplemented"),
    ],
)
def test_a_fault_of_the_store_is_a_line_without_secrets(tmp_path, store, status, code, fault):
    store.refuse = lambda _method, _key: (status, code)
    line = one_line(call("analyze", "s3://bucket/job", "--home", tmp_path))
    assert line.startswith(f"traceviz: s3://bucket/job: {fault}")


def test_a_store_out_of_reach_no_objects_and_no_address_are_lines(tmp_path, store, monkeypatch):
    home = ("--home", tmp_path)
    assert "s3://bucket/none: no objects below it" in one_line(call("analyze", "s3://bucket/none", *home))
    assert "s3://other/job: no such bucket" in one_line(call("analyze", "s3://other/job", *home))
    for address in (f"s3://me:{SECRET}@bucket/job", f"s3://bucket/job?secret={SECRET}"):
        assert "credentials are in the environment alone" in one_line(call("analyze", address, *home))
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    assert "the store has no TLS; set" in one_line(call("analyze", "s3://bucket/job", *home))
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert "s3://bucket/job: the store is out of reach" in one_line(call("analyze", "s3://bucket/job", *home))


@pytest.mark.parametrize("how", fast(["gone", "replaced", "expired", "cut"], "cut"))
def test_a_rank_that_the_store_stops_giving_fails_and_is_read_by_the_next_run(tmp_path, store, how):
    """It fails as a whole: its beginning is no rank that was read in part."""
    names = sorted(key for key in store.objects if key.endswith(".json"))
    before = dict(store.objects)

    def hurt(method, key):
        # The first time it is asked for its header.
        if key == names[1] and [each for _, each, _ in store.requests].count(key) > 1:
            if how == "gone":
                store.objects.pop(key, None)
            elif how == "replaced":
                store.objects[key] = before[key] + b"\0"
            elif how == "expired":
                return 400, "ExpiredToken"
            else:
                store.longest_body = 100
        return None

    store.refuse = hurt
    called = call("analyze", "s3://bucket/job", "--home", tmp_path)
    assert called.code == 2
    assert f"s3://bucket/{names[1]}: " in called.err
    assert SECRET not in called.err
    store.refuse, store.longest_body = (lambda _method, _key: None), 1 << 40
    store.objects.update(before)
    assert call("analyze", "s3://bucket/job", "--home", tmp_path).code == 0


def test_a_stream_seeks_without_fetching_all(tmp_path, store):
    store.objects["job/big.json"] = data = os.urandom(3 << 20)
    path = local_view("s3://bucket/job/big.json", tmp_path)
    store.requests.clear()
    with open_stream(path) as stream:
        assert stream.read(10) == data[:10]
        assert stream.seek(-10, os.SEEK_END) == len(data) - 10
        assert stream.read(100) == data[-10:]
        assert stream.read(1) == b""
        assert [span for _, _, span in store.requests] == ["bytes=0-262143", f"bytes={len(data) - 10}-{len(data) - 1}"]
        stream.seek(0)
        assert stream.readall() == data


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            ("AWS_ENDPOINT_URL", value)
            for value in ("", "127.0.0.1:9", "http://", "ftp://h", "http://h:x", "http://h\n")
        ),
        *(("AWS_ENDPOINT", "http://h h"), ("AWS_ACCESS_KEY_ID", f"{SECRET}\n"), ("AWS_REGION", "us\n")),
    ],
)
def test_a_variable_that_is_none_is_a_line_that_names_it(tmp_path, store, monkeypatch, name, value):
    """The library below ends the process with a traceback at these."""
    monkeypatch.setenv(name, value)
    line = one_line(call("analyze", "s3://bucket/job", "--home", tmp_path))
    assert line.startswith(f"traceviz: s3://bucket: {name} ")


@pytest.mark.parametrize(
    "key", ["job//rank_0009.json", "job/../rank_0009.json", "job/./rank_0009.json", "job/a\x1b.json"]
)
def test_a_key_that_no_file_can_have_is_named(tmp_path, store, key):
    store.objects[key] = b"{}"
    line = one_line(call("analyze", "s3://bucket/job", "--home", tmp_path))
    assert line.startswith("traceviz: s3://bucket/job: no file can have the name of ")
    assert key.replace("\x1b", "\\u001b") in line


def test_a_bucket_in_another_region_is_a_line(tmp_path, store):
    store.refuse = lambda _method, _key: (301, "PermanentRedirect")
    assert "in another region; set AWS_REGION" in one_line(call("analyze", "s3://bucket/job", "--home", tmp_path))


@pytest.mark.long
def test_keys_with_characters_of_addresses_are_read(tmp_path, store):
    traces = sorted(key for key in store.objects if key.endswith(".json"))
    for key, mark in zip(traces, ("?a=b ", "#c%20+&", "é@7 ", ";"), strict=True):
        store.objects[key.replace("rank_", f"{mark}rank_")] = store.objects.pop(key)
    assert call("analyze", "s3://bucket/job", "--home", tmp_path).code == 0


def test_an_object_and_a_folder_of_one_name_are_a_line_and_may_follow_each_other(tmp_path, store):
    store.objects["job/x.json/y.json"] = b"{}"
    local_view("s3://bucket/job", tmp_path)
    store.objects["job/x.json"] = b"{}"
    line = one_line(call("analyze", "s3://bucket/job", "--home", tmp_path))
    assert line.startswith("traceviz: s3://bucket/job/x.json")
    assert "an object and a folder have one name" in line
    del store.objects["job/x.json/y.json"]
    assert (local_view("s3://bucket/job", tmp_path) / "x.json").is_file()
    store.objects["job/x.json/y.json"] = store.objects.pop("job/x.json")
    assert (local_view("s3://bucket/job", tmp_path) / "x.json/y.json").is_file()


def test_other_addresses_are_refused_and_not_shown(tmp_path, store):
    for address in (f"https://bucket.host/job?X-Amz-Signature={SECRET}", "S3://bucket/job", f"gs://{SECRET}/job"):
        line = one_line(call("analyze", address, "--home", tmp_path))
        assert line.endswith("name a folder or file of this machine, or s3://BUCKET/PREFIX")
    assert "s3://BUCKET/PREFIX" in one_line(call("diff", f"https://h/{SECRET}", "s3://bucket/job", "--home", tmp_path))


def test_the_sensor_lists_once_registers_and_says_what_is_too_much(tmp_path, store, monkeypatch):
    store.requests.clear()
    looks = [one for one in walk(open_folders("s3://bucket/"), "s3://bucket") if isinstance(one, FolderLook)]
    assert store.of("GET") == [""]
    found = {one.folder: one.traces for one in looks}
    assert found["s3://bucket/job/iteration_7"] == 4
    done = register_folder(tmp_path, FolderTask("s3://bucket/job/iteration_7", "s3://bucket"))
    assert [len(one.ranks) for one in done.iterations] == [4]
    monkeypatch.setattr("sensors.listing.MOST_OBJECTS", 3)
    (much,) = walk(open_folders("s3://bucket/job"), "s3://bucket/job")
    assert isinstance(much, Unreadable)
    assert "more than 3 objects; name a narrower prefix" in much.reason
    assert MOST_OBJECTS == 100_000


def test_without_the_extra_a_line_names_it(tmp_path, monkeypatch):
    for name in ("obstore", "obstore.store"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setenv("AWS_REGION", "without")
    line = one_line(call("analyze", "s3://bucket/job", "--home", tmp_path))
    assert line == "traceviz: s3:// needs the extra storage: pip install 'traceviz-dag[storage]'"


def test_a_bucket_says_when_something_else_is_there(store):
    bucket = Bucket("s3://bucket/x")
    tag = bucket.put("x", b"1")
    with pytest.raises(StoreError, match="written anew"):
        bucket.put("x", b"2")
    assert bucket.get("x") == (b"1", tag)
    with pytest.raises(StoreError, match="written anew"):
        bucket.put("x", b"2", replaces='"0"')
    bucket.put("x", b"2", replaces=tag)
    assert bucket.get("y") is None
    with pytest.raises(UsageError):
        Bucket("s3://")

"""What a listing says of folders: local ones and fsspec URLs, files in the making, faults, interrupted walks."""

from __future__ import annotations

import os
from pathlib import Path

import fsspec
import pytest

from sensors.listing import FolderLook, LocalFolders, RemoteFolders, Unreadable, is_temporary_name, open_folders, walk


def write(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("{}")


def looks_by_folder(root: Path, **options) -> dict[str, FolderLook]:
    found = list(walk(LocalFolders(), str(root), **options))
    assert not [one for one in found if isinstance(one, Unreadable)]
    return {str(Path(one.folder).relative_to(root)): one for one in found if isinstance(one, FolderLook)}


def test_folders_with_traces_or_a_topology_file_are_seen_and_others_are_not(tmp_path):
    write(tmp_path / "job/iteration_7", "rank_0000.json", "rank_0001.json.gz", "notes.md")
    write(tmp_path / "job", "unique_parallel_groups_20260101_000000.txt")
    write(tmp_path / "job/truth", "rank_0000.json")
    write(tmp_path / ".hidden", "rank_0000.json")
    write(tmp_path / "empty", "readme.txt")
    looks = looks_by_folder(tmp_path)
    assert set(looks) == {"job", "job/iteration_7"}
    assert (looks["job/iteration_7"].traces, looks["job/iteration_7"].is_leaf) == (2, True)
    assert (looks["job"].traces, looks["job"].is_leaf) == (0, False)


def test_links_in_a_circle_and_names_that_are_not_utf_8_take_nothing_along(tmp_path):
    write(tmp_path / "a/run", "rank_0000.json")
    write(tmp_path / "b", "rank_0000.json")
    (tmp_path / "a/run/rank_0001.json").symlink_to("rank_0001.json")
    for link in ("up", "again"):
        (tmp_path / "a" / link).symlink_to("..")
    (tmp_path / "a/b").symlink_to("../b")
    (tmp_path / "b/a").symlink_to("../a")
    os.mkdir(os.fsencode(tmp_path) + b"/odd_\xff")  # noqa: PTH102 - of bytes
    *looks, odd = walk(LocalFolders(), str(tmp_path), rests=lambda folder, _: not folder.encode())
    seen = {str(Path(look.folder).relative_to(tmp_path)): look.traces for look in looks}
    assert seen == {"a/b": 1, "a/run": 1, "b": 1, "b/a/run": 1}
    assert odd == Unreadable(f"{tmp_path}/odd_\\udcff", "its path is not UTF-8: rename it")


@pytest.mark.parametrize("change", ["size", "time", "name", "gone"])
def test_the_digest_follows_names_sizes_and_times(tmp_path, change):
    write(tmp_path, "rank_0000.json", "rank_0001.json")
    file = tmp_path / "rank_0001.json"
    before = looks_by_folder(tmp_path)["."].digest
    assert looks_by_folder(tmp_path)["."].digest == before
    if change == "size":
        status = file.stat()
        file.write_text("{ }")
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif change == "time":
        os.utime(file, ns=(1, 1))
    elif change == "name":
        file.rename(tmp_path / "rank_0002.json")
    else:
        file.unlink()
    assert looks_by_folder(tmp_path)["."].digest != before


@pytest.mark.parametrize(
    "name", ["rank_0.json.tmp", "rank_0.json.gz.part", ".rank_0.json.Xy12Ab", "rank_0.json~", "a.pt.trace.json.writing"]
)
def test_names_of_files_in_the_making(tmp_path, name):
    write(tmp_path, "rank_0001.json", name)
    look = looks_by_folder(tmp_path)["."]
    assert look.being_written and look.traces == 1


def test_finished_names_are_not_in_the_making():
    assert not any(map(is_temporary_name, ["rank_0.json", "rank_0.json.gz", "rank_0.json.sha256", "x.tmp", "log.part"]))


def test_a_folder_that_cannot_be_listed_is_said_to_be_so_and_the_others_are_seen(tmp_path):
    write(tmp_path / "a", "rank_0.json")
    write(tmp_path / "b", "rank_0.json")

    class Failing(LocalFolders):
        def entries(self, folder: str):
            if folder.endswith("/a"):
                raise PermissionError(13, "Permission denied")
            return super().entries(folder)

    found = list(walk(Failing(), str(tmp_path)))
    assert [(type(one).__name__, Path(one.folder).name) for one in found] == [("Unreadable", "a"), ("FolderLook", "b")]
    gone = list(walk(LocalFolders(), str(tmp_path / "missing")))
    assert [type(one) for one in gone] == [Unreadable]


def test_a_walk_goes_on_where_it_was_stopped(tmp_path):
    for name in ("a/1", "a/2", "b/1", "b/2", "c"):
        write(tmp_path / name, "rank_0.json")
    everything = list(looks_by_folder(tmp_path))
    assert everything == ["a/1", "a/2", "b/1", "b/2", "c"]
    assert list(looks_by_folder(tmp_path, after=str(tmp_path / "b/1"))) == ["b/2", "c"]


def test_a_folder_at_rest_is_not_listed(tmp_path):
    write(tmp_path / "a", "rank_0.json")
    write(tmp_path / "b", "rank_0.json")
    listed = []

    class Counting(LocalFolders):
        def entries(self, folder: str):
            listed.append(Path(folder).name)
            return super().entries(folder)

    found = list(walk(Counting(), str(tmp_path), rests=lambda folder, _: folder.endswith("/a")))
    assert [Path(one.folder).name for one in found] == ["b"] and "a" not in listed


def test_an_fsspec_url_is_walked_like_a_folder():
    store = fsspec.filesystem("memory")
    store.pipe("/traces-seam/job/iteration_7/rank_0000.json", b"{}")
    store.pipe("/traces-seam/job/iteration_7/rank_0001.json", b"{}")
    try:
        folders = open_folders("memory://traces-seam")
        assert isinstance(folders, RemoteFolders)
        (look,) = walk(folders, "memory://traces-seam")
        assert isinstance(look, FolderLook)
        assert (look.folder, look.traces) == ("memory://traces-seam/job/iteration_7", 2)
        store.pipe("/traces-seam/job/iteration_7/rank_0001.json", b"{} ")
        (changed,) = walk(folders, "memory://traces-seam")
        assert isinstance(changed, FolderLook) and changed.digest != look.digest
    finally:
        store.rm("/traces-seam", recursive=True)


def test_a_url_that_does_not_exist_is_unreadable_and_not_empty():
    assert [type(one) for one in walk(open_folders("memory://nowhere"), "memory://nowhere")] == [Unreadable]

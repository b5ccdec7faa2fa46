"""The lists of inputs: what a file held decides whether it changed, how it looks only whether it is read again."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace

import pytest

from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.lake import inputs as module
from traceviz_dag.lake.digests import stamp_of
from traceviz_dag.lake.inputs import (
    IterationInputs,
    RankInput,
    as_they_look_now,
    register,
    registered,
    registered_of_run,
    with_digests,
)
from traceviz_dag.lake.under_way import under_way


def inputs_of(*paths, run: str = "job", iteration: int = 7) -> IterationInputs:
    ranks = tuple(
        RankInput(rank, str(path), path.name, None, size, changed, format="kineto", renewed_ns=renewed)
        for rank, path in enumerate(paths)
        for size, changed, renewed in [stamp_of(path)]
    )
    return IterationInputs(run, iteration, str(paths[0].parent), ranks)


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / f"rank_{rank}.json" for rank in range(2)]
    for path in paths:
        path.write_text(path.name)
    return paths


def test_new_times_and_old_content_are_the_same_version(tmp_path, files):
    (first,) = with_digests(tmp_path, [inputs_of(*files)])
    register(tmp_path, first)
    os.utime(files[0], ns=(1, 1))
    files[1].write_text("other")
    (second,) = with_digests(tmp_path, [as_they_look_now(first)])
    assert second.ranks[0].version == first.ranks[0].version and second.ranks[0].changed_ns == 1
    assert second.ranks[1].version != first.ranks[1].version


def test_a_file_that_looks_as_registered_is_not_read_again(tmp_path, files, monkeypatch):
    (first,) = with_digests(tmp_path, [inputs_of(*files)])
    register(tmp_path, first)
    files[1].write_text("changed")
    read = []
    monkeypatch.setattr(module, "digest_of", lambda path: read.append(path) or "digest")
    with_digests(tmp_path, [inputs_of(*files)])
    assert read == [files[1]]


def test_a_file_replaced_by_one_of_its_size_and_time_is_another_version(tmp_path, files):
    (first,) = with_digests(tmp_path, [inputs_of(*files)])
    register(tmp_path, first)
    changed_ns = files[0].stat().st_mtime_ns
    files[0].write_text(files[0].read_text()[::-1])
    os.utime(files[0], ns=(changed_ns, changed_ns))
    (second,) = with_digests(tmp_path, [as_they_look_now(first)])
    assert second.ranks[0].changed_ns == first.ranks[0].changed_ns
    assert second.ranks[0].version != first.ranks[0].version and second.ranks[1] == first.ranks[1]


def test_forced_all_files_are_read_whatever_they_look_like(tmp_path, files):
    (first,) = with_digests(tmp_path, [inputs_of(*files)])
    register(tmp_path, first)
    files[1].write_text("changed")
    (second,) = with_digests(tmp_path, [first], read_again=True)
    assert second.ranks[1].version != first.ranks[1].version and second.ranks[0] == first.ranks[0]


def test_a_file_of_several_iterations_is_read_once(tmp_path, files, monkeypatch):
    read = []
    monkeypatch.setattr(module, "digest_of", lambda path: read.append(path) or "digest")
    both = with_digests(tmp_path, [inputs_of(*files), inputs_of(*files, iteration=8)])
    assert sorted(read) == files
    assert {entry.digest for one in both for entry in one.ranks} == {"digest"}


def test_a_file_that_is_gone_keeps_its_version(tmp_path, files):
    (first,) = with_digests(tmp_path, [inputs_of(*files)])
    register(tmp_path, first)
    files[0].unlink()
    (second,) = with_digests(tmp_path, [as_they_look_now(first)])
    assert second == first


def test_lists_of_older_homes_without_digests_and_formats_are_read(tmp_path, files):
    first, second = inputs_of(*files).ranks
    export = replace(second, part="100-0", format="nsys")
    old = replace(inputs_of(*files), ranks=(first, export))
    register(tmp_path, old)
    text = (tmp_path / "inputs/job@7.json").read_text()
    for field in ("digest", "format"):
        text = re.sub(f'"{field}": "[a-z]*"', '"ignored": ""', text)
    text = re.sub(r',\n  "checksum": "[0-9a-f]*"', "", text)
    (tmp_path / "inputs/job@7.json").write_text(text)
    assert "kineto" not in text
    assert registered(tmp_path, "job@7") == old
    register(tmp_path, old)
    changed = (tmp_path / "inputs/job@7.json").read_bytes().replace(b'"rank": 1', b'"rank": 3')
    (tmp_path / "inputs/job@7.json").write_bytes(changed)
    with pytest.raises(BadInputError, match="its checksum differs"):
        registered(tmp_path, "job@7")
    register(tmp_path, replace(old, iteration=8))
    shutil.copy(tmp_path / "inputs/job@8.json", tmp_path / "inputs/job@7.json")
    with pytest.raises(BadInputError, match="is the list of job@8, in the place of another"):
        registered(tmp_path, "job@7")
    assert old.ranks[0].version == f"{old.ranks[0].size_bytes}-{old.ranks[0].changed_ns}"


@pytest.mark.parametrize("damage", [b"", b'{"run": "\xff"}', b'{"other": ' + b"[" * 100_000, None])
def test_a_damaged_list_is_named_and_made_anew(tmp_path, files, damage):
    path = tmp_path / "inputs/job@7.json"
    register(tmp_path, inputs_of(*files))
    path.unlink()
    if damage is None:
        os.mkfifo(path)
    else:
        path.write_bytes(damage)
    with pytest.raises(BadInputError, match=r"job@7\.json"):
        registered(tmp_path, "job@7")
    (again,) = with_digests(tmp_path, [inputs_of(*files)])
    if damage is not None:
        register(tmp_path, again)
        assert registered(tmp_path, "job@7") == again


def test_the_newest_earlier_iterations_of_a_run(tmp_path, files):
    for run, iteration in (("job", 3), ("job", 10), ("job", 9), ("job[1]", 5), ("job-2", 8)):
        register(tmp_path, replace(inputs_of(*files), run=run, iteration=iteration))
    found = registered_of_run(tmp_path, "job", before=10, newest=2)
    assert [(one.run, one.iteration) for one in found] == [("job", 9), ("job", 3)]
    assert [one.iteration for one in registered_of_run(tmp_path, "job[1]", before=10, newest=3)] == [5]


def test_a_run_has_the_longest_name_that_all_its_files_can_have(tmp_path, files):
    longest = inputs_of(*files, run="x" * 215, iteration=(1 << 63) - 1)
    register(tmp_path, longest)
    with under_way(tmp_path, longest.key):
        assert registered(tmp_path, longest.key) == longest
    for name in ("x" * 216, "@" * 72):
        with pytest.raises(UsageError, match=r"bytes in the name of a file, over 215; shorten its folder's name"):
            register(tmp_path, inputs_of(*files, run=name))

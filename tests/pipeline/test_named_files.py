"""Files that are named one by one: each is analysed, whatever the home knows of its folder."""

from __future__ import annotations

import shutil
from itertools import permutations
from pathlib import Path

from tests.nsys_file import SECOND, UTC, Export, node_export
from tests.small_run import rank_file
from traceviz_dag.lake.inputs import IterationInputs, all_registered, register
from traceviz_dag.pipeline.discovery import inputs_below


def _named(home: Path, path: Path, **options: int) -> list[IterationInputs]:
    """What `analyze PATH` takes, which the home knows afterwards."""
    found = inputs_below([path], home=home, with_known=True, **options)
    for one in found:
        register(home, one)
    return found


def _files(home: Path) -> dict[str, set[str]]:
    """Run → the files that the home knows of it."""
    found: dict[str, set[str]] = {}
    for one in all_registered(home):
        assert not any(entry.refusal for entry in one.ranks) and not one.disputed
        found.setdefault(one.run, set()).update(entry.name for entry in one.ranks)
    return found


def _check_every_order(folder: Path, homes: Path, jobs: list[set[str]]) -> None:
    """Name the files of some jobs in every order, twice: each call takes its file, and no two jobs share a run."""
    for number, order in enumerate(permutations(sorted(set().union(*jobs)))):
        home = homes / str(number)
        for name in (*order, *order):
            found = _named(home, folder / name)
            assert found and all(name in {entry.name for entry in one.ranks} for one in found)
        assert sorted(map(sorted, _files(home).values())) == sorted(map(sorted, jobs))
        _named(home, folder)
        assert sorted(map(sorted, _files(home).values())) == sorted(map(sorted, jobs))


def test_unrelated_exports_of_one_folder_are_runs_of_their_own_in_every_order(tmp_path):
    folder = tmp_path / "d"
    for hours, name in enumerate("abc"):
        node_export(folder / f"{name}.sqlite", UTC + hours * 3600 * SECOND)
    _check_every_order(folder, tmp_path / "homes", [{"a.sqlite"}, {"b.sqlite"}, {"c.sqlite"}])


def test_traces_that_claim_one_rank_or_state_another_job_are_runs_of_their_own_in_every_order(tmp_path):
    folder = tmp_path / "d"
    for name, rank, world in (("a0", 0, 2), ("a1", 1, 2), ("b0", 0, 4)):
        rank_file(rank, world).write(folder / f"{name}.json")
    _check_every_order(folder, tmp_path / "homes", [{"a0.json", "a1.json"}, {"b0.json"}])
    home = tmp_path / "home"
    assert [one.warnings for one in _named(home, folder / "a0.json")] == [()]
    (found,) = _named(home, folder / "b0.json")
    assert found.run == "d-b0" and "separate run, d-b0: rank 0 of d@7 is a0.json" in found.warnings[0]
    rank_file(3, 4).write(folder / "b3.json")
    rank_file(3, 8).write(folder / "c3.json")
    (found,) = _named(home, folder / "b3.json")
    assert found.run == "d-b0" and [entry.name for entry in found.ranks] == ["b0.json", "b3.json"]
    (found,) = _named(home, folder / "c3.json")
    assert found.run == "d-c3" and "its world size is" in found.warnings[0]


def test_a_rank_that_is_stated_by_hand_is_that_of_the_named_file_alone(tmp_path):
    folder, home = tmp_path / "d", tmp_path / "home"
    for name in "ab":
        export = Export()
        export.kernel(SECOND + ord(name), 2 * SECOND)
        export.add("TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": UTC})
        folder.mkdir(exist_ok=True)
        export.write(folder / f"{name}.sqlite")
    _named(home, folder / "a.sqlite")
    (found,) = _named(home, folder / "b.sqlite", rank=3)
    assert found.run == "d" and [(entry.rank, entry.name) for entry in found.ranks] == [
        (0, "a.sqlite"),
        (3, "b.sqlite"),
    ]


def test_equal_names_in_two_folders_and_moved_folders_never_share_a_run(tmp_path):
    home = tmp_path / "home"
    for hours, place in enumerate(("x/d", "y/d", "x/d-b")):
        node_export(tmp_path / place / "a.sqlite", UTC + hours * 3600 * SECOND)
        _named(home, tmp_path / place / "a.sqlite")
    node_export(tmp_path / "x/d/b.sqlite", UTC + 9 * 3600 * SECOND)
    (found,) = _named(home, tmp_path / "x/d/b.sqlite")
    assert found.run.startswith("d-b-") and len({one.run for one in all_registered(home)}) == 4
    assert _named(home, tmp_path / "x/d/b.sqlite")[0].run == found.run
    shutil.move(tmp_path / "y/d", tmp_path / "moved/d")
    (moved,) = _named(home, tmp_path / "moved/d/a.sqlite")
    assert len({one.run for one in all_registered(home)}) == 5 and moved.ranks[0].path.endswith("moved/d/a.sqlite")

"""The plugin by itself: its settings, its topology and its bounds, without torch."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest

from tests.end_to_end.conftest import traceviz
from traceviz_dag.capture import plugin
from traceviz_dag.capture.plugin import Capture, Settings, Topology
from traceviz_dag.classify.parallel_sizes import ParallelSizes
from traceviz_dag.classify.rank_grids import RankGrids, compute_grids
from traceviz_dag.classify.topology import unite
from traceviz_dag.errors import BadInputError
from traceviz_dag.read.events import ProcessGroup, TraceHeader
from traceviz_dag.read.layouts import discover
from traceviz_dag.read.topology_file import read_topology_file

DESCRIPTIONS = {**plugin._AXES, "dp_cp": "DATA_PARALLEL_GROUP_WITH_CP", "mp(tp-pp)": "MODEL_PARALLEL_GROUP"}
LAYOUTS = [
    {"world": 8, "tp": 2, "pp": 2},
    {"world": 8, "pp": 4, "order": "tp-cp-ep-pp-dp"},
    {"world": 16, "tp": 2, "pp": 2, "ep": 4, "etp": 2},
    {"world": 16, "pp": 2, "ep": 4},
    {"world": 16, "tp": 2, "cp": 2, "pp": 2},
]


def topology_of(grids: RankGrids) -> Topology:
    """What the plugin would have noted while Megatron created these groups."""
    listed = [(description, group) for axis, description in DESCRIPTIONS.items() for group in grids.groups[axis]]
    groups = [
        {"name": str(number), "description": description, "ranks": list(group)}
        for number, (description, group) in enumerate(listed, start=1)
    ]
    sizes = {axis: len(grids.groups[axis][0]) for axis in plugin._AXES}
    return Topology(grids.sizes.world, sizes, grids.sizes.order, groups, complete=True, microbatches=4)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_topology_files_give_back_every_group_coordinate_and_replica(layout, tmp_path):
    grids = compute_grids(ParallelSizes.of(**layout))
    topology = topology_of(grids)
    assert tuple(map(tuple, topology.replicas())) == grids.replicas.closure
    path = tmp_path / "unique_parallel_groups_20260101_000000.json"
    path.write_text(json.dumps(topology.as_json()))
    path.with_suffix(".txt").write_text(topology.as_text())
    read = unite({}, read_topology_file(path))
    assert read.coordinates == dict(grids.coordinates)
    assert read.replicas == grids.replicas
    assert read.pipelines == grids.groups["pp"]
    assert not read.disagreements
    named = {(group.description, group.ranks) for group in read.groups if group.name is not None}
    assert {(one["description"], tuple(one["ranks"])) for one in topology.groups} == named
    for rank in range(grids.sizes.world):
        expected = grids.coordinates[rank]
        assert topology.coordinates(rank) == {axis: getattr(expected, axis) for axis in plugin._AXES}
    text = read_topology_file(path.with_suffix(".txt"))
    assert set(text.groups["dp"]) == {tuple(sorted(group)) for group in grids.groups["dp"]}


def test_one_ranks_header_and_the_file_make_the_whole_topology(tmp_path):
    grids = compute_grids(ParallelSizes.of(world=8, tp=2, pp=2, order="tp-cp-ep-pp-dp"))
    topology = topology_of(grids)
    path = tmp_path / "unique_parallel_groups_20260101_000000.json"
    path.write_text(json.dumps(topology.as_json()))
    own = tuple(
        ProcessGroup(one["name"], one["description"], tuple(one["ranks"]), len(one["ranks"]))
        for one in topology.groups
        if 5 in one["ranks"]
    )
    read = unite({5: TraceHeader(rank=5, world_size=8, process_groups=own)}, read_topology_file(path))
    assert read.pipelines == grids.groups["pp"]
    assert not read.disagreements
    garbled = json.loads(path.read_text())
    next(one for one in garbled["groups"] if one["description"] == DESCRIPTIONS["pp"] and 5 in one["ranks"])[
        "ranks"
    ] = [5]
    path.write_text(json.dumps(garbled))
    contradicted = unite({5: TraceHeader(rank=5, world_size=8, process_groups=own)}, read_topology_file(path))
    assert any("PIPELINE_MODEL_PARALLEL_GROUP" in sentence for sentence in contradicted.disagreements)


@pytest.mark.parametrize(
    "break_it",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("traceviz topology", "something else"),
        lambda text: text.replace('"ranks": [0]', '"ranks": [99]', 1),
        lambda text: text.replace('"world_size": 4', '"world_size": "four"'),
    ],
)
def test_a_broken_topology_file_is_refused_by_name(break_it, tmp_path):
    whole = json.dumps(topology_of(compute_grids(ParallelSizes.of(world=4, pp=2))).as_json())
    path = tmp_path / "unique_parallel_groups_1.json"
    path.write_text(break_it(whole))
    assert path.read_text() != whole
    with pytest.raises(BadInputError, match=path.name):
        read_topology_file(path)


def test_of_one_stamp_the_json_file_is_taken_and_never_for_a_trace(tmp_path):
    folder = tmp_path / "job"
    trace = folder / "iteration_3/rank_0000_iter_3.pt.trace.json"
    trace.parent.mkdir(parents=True)
    trace.write_text('{"schemaVersion": 1, "traceEvents": []}')
    for name in ("20260101_000000.txt", "20260101_000000.json", "20251231_000000.txt"):
        (folder / f"unique_parallel_groups_{name}").write_text("{}")
    [run] = discover([tmp_path])
    assert [file.path for file in run.files] == [trace]
    assert run.topology_file is not None
    assert run.topology_file.name == "unique_parallel_groups_20260101_000000.json"


def test_the_choice_of_ranks_follows_the_groups():
    topology = topology_of(compute_grids(ParallelSizes.of(world=16, tp=2, pp=2)))
    chosen = {
        wanted: [rank for rank in range(16) if topology.chosen(wanted, rank, rank % 8)]
        for wanted in ("replica", "stage", "node", "all", "3,5-6")
    }
    assert chosen["replica"] == [0, 1, 8, 9]
    assert chosen["stage"] == [0, 8]
    assert chosen["node"] == [0, 8]
    assert chosen["all"] == list(range(16))
    assert chosen["3,5-6"] == [3, 5, 6]
    assert all(Topology(4).chosen("replica", rank, rank) for rank in range(4))


@pytest.mark.parametrize("wrong", [{"ITERATIONS": "3-"}, {"WARMUP": "one"}, {"ITERATIONS": "3", "RANKS": "some"}])
def test_a_wrong_variable_is_a_warning_and_nothing_is_recorded(wrong, monkeypatch, capsys):
    monkeypatch.setattr(plugin, "_installed", None)
    before = list(sys.meta_path)
    for name, value in wrong.items():
        monkeypatch.setenv(f"TRACEVIZ_CAPTURE_{name}", value)
    assert plugin.install().settings.iterations == frozenset()
    assert "nothing is recorded" in capsys.readouterr().err
    assert sys.meta_path == before


def test_without_room_the_profiler_is_not_even_started(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Capture, "_prepare", lambda _: pytest.fail("the profiler was started"))
    full = Capture(Settings(iterations=frozenset({1}), out=str(tmp_path / "out"), keep_free_bytes=1 << 60))
    full.begin(1)
    spent = Capture(Settings(iterations=frozenset({1}), out=str(tmp_path / "out"), max_bytes=-1))
    spent.begin(1)
    said = capsys.readouterr().err
    assert "bytes are free" in said
    assert "MAX_BYTES" in said


def test_the_printed_plugin_is_one_file_that_needs_nothing_but_python():
    text = traceviz("capture", "plugin").stdout
    assert text == Path(plugin.__file__).read_text()
    imported = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imported |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    assert imported <= set(sys.stdlib_module_names) | {"torch"}
    at_import = {node.module for node in ast.parse(text).body if isinstance(node, ast.ImportFrom)}
    assert "torch" not in at_import

"""The plugin by itself: its settings, its topology and its bounds, without torch."""

from __future__ import annotations

import ast
import contextlib
import errno
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.end_to_end.conftest import traceviz
from traceviz_dag.analyze.model_flops import USED
from traceviz_dag.capture import plugin
from traceviz_dag.capture.plugin import Capture, CaptureSettings, Numbers, Topology, _Profiler
from traceviz_dag.classify.topology.parallel_sizes import ParallelSizes
from traceviz_dag.classify.topology.rank_grids import RankGrids, compute_grids
from traceviz_dag.classify.topology.unite import unite
from traceviz_dag.errors import BadInputError
from traceviz_dag.read.events import ProcessGroup, TraceHeader
from traceviz_dag.read.kineto.settings import ARGUMENTS, NOTED_ARGUMENTS, VARIABLES, kept_settings
from traceviz_dag.read.layouts import discover
from traceviz_dag.read.topology_file import read_topology_file
from traceviz_dag.spans import spanned

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
    assert text.sizes["dp"] == len(grids.groups["dp"][0])
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
    # What a header says of all ranks is what each of them decides for itself.
    for wanted, ranks in chosen.items():
        assert str(topology.chosen_ranks(wanted, 8)) == spanned(ranks).replace(" ", "")
    assert str(topology.chosen_ranks("3,14-20", 8)) == "3,14-15"
    own = replace(topology, complete=False)
    assert own.chosen_ranks("replica", 8) is None and topology.chosen_ranks("node", None) is None


def test_the_text_file_names_virtual_stages_and_batch_sizes():
    topology = topology_of(compute_grids(ParallelSizes.of(world=8, pp=2)))
    topology.sizes["vpp"], topology.micro_batch_size, topology.global_batch_size = 3, 2, 32
    text = topology.as_text()
    for line in ("DP Size: 4", "Virtual Pipeline Stages: 3", "Micro Batch Size: 2", "Global Batch Size: 32"):
        assert line in text.splitlines()
    assert "Number of Micro-batches: 4" in text


@pytest.fixture
def bare(monkeypatch):
    """No variable of the plugin is set and no plugin is installed."""
    monkeypatch.setattr(plugin, "_installed", None)
    for name in list(os.environ):
        if name.startswith("TRACEVIZ_CAPTURE_"):
            monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"ITERATIONS": "3-"}, "ITERATIONS=3-: '3-' is no number and no range like 4-7"),
        ({"ITERATIONS": "7-3"}, "write 3-7"),
        ({"ITERATIONS": "3", "WARMUP": "-1"}, "WARMUP=-1: must be a whole number from 0"),
        ({"ITERATIONS": "3", "WARMUP": "one"}, "WARMUP=one: must be a whole number from 0"),
        ({"ITERATIONS": "3", "STACKS": "ture"}, "STACKS=ture: must be 1 or 0"),
        ({"ITERATIONS": "3", "MEMORY": "histroy"}, "MEMORY=histroy: must be 1 or 0"),
        ({"ITERATIONS": "3", "MAX_BYTES": "8G"}, "MAX_BYTES=8G: must be a whole number"),
        ({"ITERATIONS": "3", "EXIT_SECONDS": "nan"}, "EXIT_SECONDS=nan: must be a number of seconds"),
        ({"ITERATIONS": "3", "RANKS": "some"}, "RANKS=some: must be replica, all, stage, node or numbers"),
        ({"ITERATIONS": "3", "RANKS": ","}, "RANKS=,: must be replica, all, stage, node or numbers (names no number)"),
        ({"ITERATIONS": ","}, "nothing is recorded: TRACEVIZ_CAPTURE_ITERATIONS=,: names no number"),
        ({"RANKS": "all"}, "TRACEVIZ_CAPTURE_ITERATIONS is not set"),
        ({"ITERATION": "3"}, "did you mean TRACEVIZ_CAPTURE_ITERATIONS?"),
    ],
)
def test_a_wrong_variable_is_one_line_and_nothing_is_recorded(wrong, words, bare, capsys):
    before = list(sys.meta_path)
    for name, value in wrong.items():
        bare.setenv(f"TRACEVIZ_CAPTURE_{name}", value)
    assert not plugin.install().settings.iterations
    [line] = capsys.readouterr().err.splitlines()
    assert words in line
    assert sys.meta_path == before


def test_the_patchs_variable_for_all_ranks_is_honoured():
    def ranks(**environment):
        return CaptureSettings.from_environment(environment).ranks

    assert ranks(PROFILE_ALLRANKS="1") == "all"
    assert ranks(PROFILE_ALLRANKS="0") == "replica"
    both = {"PROFILE_ALLRANKS": "1", "TRACEVIZ_CAPTURE_RANKS": "2"}
    assert ranks(**both) == "2"
    assert "no effect" in plugin.odd_variables(both)[0]


def test_an_endless_range_costs_nothing():
    endless = CaptureSettings.from_environment({"TRACEVIZ_CAPTURE_ITERATIONS": "5,1-3000000000,2-9"}).iterations
    assert str(endless) == "1-3000000000"
    assert 2_999_999_999 in endless
    assert (endless.following(7), endless.following(3_000_000_001)) == (7, None)
    assert str(endless.outside(1, 45)) == "46-3000000000"


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), min_size=1), st.integers(0, 40), st.integers(0, 40))
def test_ranges_hold_the_numbers_that_they_were_made_of(parts, one, other):
    wanted = {number for first, more in parts for number in range(first, first + more + 1)}
    numbers = Numbers.of(",".join(f"{first}-{first + more}" for first, more in parts))
    assert {number for number in range(50) if number in numbers} == wanted
    assert numbers.following(one) == min((number for number in wanted if number >= one), default=None)
    low, high = sorted((one, other))
    outside = numbers.outside(low, high)
    assert {number for number in range(50) if number in outside} == {n for n in wanted if not low <= n <= high}


@pytest.mark.parametrize(
    ("wanted", "world", "words"),
    [
        ("7", 4, "names 7, but the job has ranks 0 to 3, so no rank records"),
        ("0,2-9", 4, "names 4-9, but the job has ranks 0 to 3"),
        ("0,2", 4, None),
        ("replica", 2, "all 2 ranks record"),
        ("stage", 2, "all 2 ranks record"),
        ("replica", 1, None),
        ("all", 4, None),
        ("node", 4, None),
    ],
)
def test_ranks_that_the_job_has_not_are_named(wanted, world, words):
    said = Topology(world).misses(wanted)
    assert (said is None) == (words is None)
    assert words is None or words in said
    assert words is None or ("no rank records" in said) == ("no rank records" in words)


def test_without_room_the_profiler_is_not_even_started(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(_Profiler, "prepare", lambda _: pytest.fail("the profiler was started"))
    full = Capture(CaptureSettings(iterations=Numbers.of("1"), out=str(tmp_path / "out"), keep_free_bytes=1 << 60))
    full.begin(1)
    spent = Capture(CaptureSettings(iterations=Numbers.of("1"), out=str(tmp_path / "out"), max_bytes=-1))
    spent.begin(1)
    said = capsys.readouterr().err
    assert "KEEP_FREE_BYTES" in said
    assert "MAX_BYTES" in said


class FullDisk:
    """A profiler that records, and whose files find no room."""

    def __init__(self) -> None:
        self.warm, self.iteration, self.prepared = False, None, 0

    def prepare(self) -> None:
        self.warm = True
        self.prepared += 1

    def start(self, iteration: int) -> None:
        self.iteration = iteration

    def stop(self, header: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def give_up(self) -> None:
        self.warm, self.iteration = False, None


def test_a_full_disk_costs_one_window_and_the_others_are_counted_not_paid_for(tmp_path, capsys):
    capture = Capture(CaptureSettings(iterations=Numbers.of("1-4"), out=str(tmp_path / "out"), warmup=0))
    profiler = capture._profiler = FullDisk()
    for iteration in (1, 2, 3, 4):
        capture.begin(iteration)
        capture.end(iteration=iteration)
    capture.finish()
    said = capsys.readouterr().err
    assert profiler.prepared == 1
    assert said.count("nothing more is recorded in this process") == 1
    assert "4 wanted iterations were not recorded" in said


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


class StandInForTorch(ModuleType):
    """torch as far as a window needs it, with a GPU that it does not have; notes what it is asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__("torch")
        self.asked: list[object] = []
        memory = SimpleNamespace(
            _record_memory_history=lambda **given: self.asked.append(given),
            _dump_snapshot=lambda path: Path(path).write_bytes(b"snapshot"),
        )
        self.cuda = SimpleNamespace(is_available=lambda: True, memory=memory)
        self.profiler = SimpleNamespace(
            ProfilerActivity=SimpleNamespace(CPU=0, CUDA=1), profile=self._profile, record_function=self._function
        )
        self._C = SimpleNamespace()

    def _profile(self, **given: object) -> SimpleNamespace:
        self.asked.append(given.get("experimental_config"))
        return SimpleNamespace(
            **dict.fromkeys(("prepare_trace", "start_trace", "stop_trace"), lambda: None),
            add_metadata_json=lambda *_: None,
            export_chrome_trace=lambda path: Path(path).write_text("{}"),
        )

    def _function(self, _: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def test_allocator_history_is_a_snapshot_beside_each_trace_with_finitely_many_entries(tmp_path, monkeypatch):
    torch = StandInForTorch(tmp_path)
    parts = {
        "torch": torch,
        "torch.profiler": torch.profiler,
        "torch._C": torch._C,
        "torch._C._profiler": SimpleNamespace(_ExperimentalConfig=dict),
        "torch._C._autograd": SimpleNamespace(_profiler_enabled=lambda: False, _disable_profiler=lambda: None),
    }
    for name, part in parts.items():
        monkeypatch.setitem(sys.modules, name, part)
    variables = {"ITERATIONS": "3-4", "MEMORY": "history", "MEMORY_ENTRIES": "1000", "CUDA_SYNC": "1", "WARMUP": "0"}
    settings = CaptureSettings.from_environment(
        {f"TRACEVIZ_CAPTURE_{name}": value for name, value in {**variables, "OUT": str(tmp_path)}.items()}
    )
    assert settings.memory
    capture = Capture(settings)
    for iteration in range(1, 6):
        capture.step(iteration)
    capture.finish()
    history = {"enabled": "all", "context": "all", "stacks": "python", "max_entries": 1000}
    assert torch.asked == [{"enable_cuda_sync_events": True}, history, {"enabled": None}] * 2
    for iteration in (3, 4):
        folder = tmp_path / f"iteration_{iteration}"
        assert (folder / f"rank_0000_iter_{iteration}.memory.pickle").read_bytes() == b"snapshot"
        assert (folder / f"rank_0000_iter_{iteration}.pt.trace.json.gz").is_file()
    [run] = discover([tmp_path])
    assert [file.iteration for file in run.files] == [3, 4]


def test_settings_are_those_of_the_lists_and_nothing_else_of_the_environment(monkeypatch):
    arguments = type("Arguments", (), {"seq_length": 4096, "bf16": True, "load": "/home/alice/checkpoint", "fp8": None})
    monkeypatch.setattr(plugin, "_megatrons_arguments", lambda: arguments)
    environment = {
        "NCCL_ALGO": "Ring",
        "HF_TOKEN": "hf_secret",
        "NCCL_PROTO": "/tmp/x",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    }
    found = plugin._settings(environment)
    found.pop("torch", None)
    assert found == {"NCCL_ALGO": "Ring", "CUDA_DEVICE_MAX_CONNECTIONS": "1", "seq_length": "4096", "bf16": "True"}


def test_sizes_of_a_model_are_kept_as_they_are_in_this_iteration(monkeypatch):
    given = {"global_batch_size": 512, "rampup_batch_size": [16, 16, 1000], "moe_layer_freq": [0] + [1] * 60}
    given |= {"hybrid_layer_pattern": "M*M*/secret", "window_size": None, "mtp_num_layers": None}
    monkeypatch.setattr(plugin, "_megatrons_arguments", lambda: type("Arguments", (), given))
    layers = {"moe_layer_freq": "[0" + ",1" * 60 + "]", "hybrid_layer_pattern": "True"}
    found = plugin._settings({}, global_batch_size=48)
    found.pop("torch", None)
    assert found == layers | {"global_batch_size": "48"}
    unknown = plugin._settings({})
    unknown.pop("torch", None)
    assert unknown == layers, "the batch still ramps up, and nothing shows how far it is"
    assert dict(kept_settings({"settings": found})) == found


def test_what_the_plugin_keeps_is_read_and_has_all_that_a_count_of_operations_needs():
    lists = (plugin._KEPT_VARIABLES, plugin._KEPT_ARGUMENTS, plugin._NOTED_ARGUMENTS)
    assert lists == (VARIABLES, ARGUMENTS, NOTED_ARGUMENTS)
    assert {*ARGUMENTS, *NOTED_ARGUMENTS} >= USED

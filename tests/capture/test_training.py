"""The plugin in real training: Megatron-core's own schedules in four processes, oldest and newest, and plain torchrun.

All traces go through the pipeline; what breaks on the capture's side must not reach the losses.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.capture.conftest import HERE, WORLD, Trained, train
from tests.end_to_end.conftest import program
from traceviz_dag.classify.topology.unite import unite
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.pipeline.iteration import read_topology
from traceviz_dag.read.layouts import discover
from traceviz_dag.read.topology_file import read_topology_file

LONG = pytest.mark.long
NEVER_MIND = {
    "no folder": {"fault": "no folder"},
    "broken ranks": {"faults": {"0": "full disk", "1": "handler raises", "2": "profiler raises"}},
    "disk hangs": {"fault": "disk hangs"},
    "other profiler": {"fault": "other profiler"},
}


@pytest.fixture(scope="module")
def newest(capture_python, plugin_folder, tmp_path_factory) -> Trained:
    """The newest Megatron-core, interleaved schedule over two pipelines; the plugin stands before Megatron's import."""
    faults = [
        {"name": name, **fault, "capture": {"iterations": "3,5", "ranks": "all", "exit_seconds": "0.5"}}
        for name, fault in NEVER_MIND.items()
    ]
    # Not even root can make a folder there.
    faults[0]["capture"]["out"] = "/proc/traceviz/capture"
    slow = {"iterations": "3-5", "ranks": "all"}
    job = {
        "pp": 2,
        "vpp": 2,
        "order": "tp-cp-ep-dp-pp",
        "packages": [],
        "install_before_import": True,
        "scenarios": [
            {"name": "without", "capture": {}},
            {"name": "windows", "capture": {"iterations": "2,4-5", "ranks": "all"}},
            {"name": "resumed", "first": 101, "capture": {"iterations": "3,103"}},
            {"name": "slow disk", "fault": "slow disk", "capture": slow},
            *faults,
        ],
    }
    return train(capture_python, plugin_folder, tmp_path_factory.mktemp("newest"), job)


@pytest.fixture(scope="module")
def oldest(capture_python, plugin_folder, tmp_path_factory) -> Trained:
    """The oldest Megatron-core, one pipeline of four stages, the other rank order; the plugin comes after it."""
    job = {
        "pp": 4,
        "vpp": None,
        "order": "tp-cp-ep-pp-dp",
        "packages": [str(capture_python.parents[1] / "oldest")],
        "install_before_import": False,
        "scenarios": [
            {"name": "without", "capture": {}},
            {"name": "windows", "capture": {"iterations": "2,4", "ranks": "all", "shapes": "0"}},
            {"name": "resumed", "first": 101, "capture": {"iterations": "103", "ranks": "stage", "stacks": "0"}},
            *[
                {"name": f"no {name}", "first": 101, "without": name, "capture": {"iterations": "3,103-104,900"}}
                for name in ("curr_iteration", "train_step")
            ],
        ],
    }
    return train(capture_python, plugin_folder, tmp_path_factory.mktemp("oldest"), job)


@pytest.fixture(params=["newest", "oldest"])
def trained(request) -> Trained:
    return request.getfixturevalue(request.param)


@LONG
def test_every_rank_writes_the_wanted_iterations_by_their_logged_number(newest, oldest):
    assert newest.files("windows") == {2: [0, 1, 2, 3], 4: [0, 1, 2, 3], 5: [0, 1, 2, 3]}
    assert oldest.files("windows") == {2: [0, 1, 2, 3], 4: [0, 1, 2, 3]}


@LONG
def test_after_a_resume_iterations_are_counted_as_the_job_counts_them(newest, oldest):
    # Iteration 3 lies before the resume, and two pipelines are two replicas, of which one records.
    assert newest.files("resumed") == {103: [0, 2]}
    assert oldest.files("resumed") == {103: [0, 1, 2, 3]}


@LONG
@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("train_step", "megatron.training.training has no train_step: iterations are counted by optimizer steps"),
        ("curr_iteration", "calls of train_step (megatron.training.training does not name the iteration) counts"),
    ],
)
def test_another_megatron_is_counted_on_from_the_resumed_iteration_and_that_is_said(missing, said, oldest):
    name = f"no {missing}"
    assert oldest.files(name) == {103: [0, 1, 2, 3], 104: [0, 1, 2, 3]}
    assert said in oldest.said
    assert oldest.losses(name) == oldest.losses("resumed")
    first = 102 if missing == "train_step" else 101
    assert f"iterations 3,900 never came; {first} to 105 were counted" in oldest.said
    assert oldest.said.count("900 never came") == 2


@LONG
def test_recording_changes_no_loss(trained):
    assert any(loss for rank in trained.losses("without") for loss in rank)
    assert trained.losses("windows") == trained.losses("without")


@LONG
def test_windows_follow_each_other_while_earlier_files_are_still_being_written(newest):
    assert newest.losses("slow disk") == newest.losses("without")
    assert newest.files("slow disk") == {iteration: [0, 1, 2, 3] for iteration in (3, 4, 5)}


@LONG
@pytest.mark.parametrize("fault", NEVER_MIND)
def test_training_goes_on_to_its_end_with_the_same_losses(newest, fault):
    assert newest.losses(fault) == newest.losses("without")
    # A rank whose capture is whole neither waits for the others nor loses its files.
    assert newest.files(fault) == ({3: [3], 5: [3]} if fault == "broken ranks" else {})


@LONG
def test_what_went_wrong_is_said_and_nothing_half_written_stays(newest):
    for words in (
        "no whole trace: is the disk full?",
        "/proc/traceviz",
        "the exporter is broken",
        "the profiler is broken",
    ):
        assert words in newest.said
    assert "left before its last file was written" in newest.said
    assert newest.said.count("the job has its own profiler") == WORLD
    assert len(list(newest.out("other profiler").glob("*.pt.trace.json"))) == WORLD
    assert not [path for path in newest.out("broken ranks").rglob("*") if path.is_file() and is_left_over(path)]


def is_left_over(path: Path) -> bool:
    return path.name.startswith(".") or path.parent.name == ".staging"


@LONG
def test_the_topology_is_parallel_states_own(trained):
    [inputs] = [one for one in inputs_below([trained.out("windows")]) if one.iteration == 2]
    assert inputs.topology_file is not None
    assert inputs.topology_file.endswith(".json")
    from_file = unite({}, read_topology_file(Path(inputs.topology_file)))
    united = read_topology(inputs)
    assert not united.disagreements
    for rank in range(WORLD):
        seen = trained.seen("windows", rank)
        for topology in (from_file, united):
            groups = {(group.name, group.description, group.ranks) for group in topology.groups}
            own = {(name, text, tuple(ranks)) for name, text, ranks in seen["groups"] if text in BY_AXIS.values()}
            assert own <= groups
            assert topology.coordinates[rank].pp == seen["pp_rank"]
            assert topology.coordinates[rank].dp == seen["dp_rank"]
            assert tuple(seen["pp"]) in topology.pipelines
            for axis, description in BY_AXIS.items():
                assert any(
                    group.ranks == tuple(seen[axis]) for group in topology.groups if group.description == description
                )


BY_AXIS = {
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "cp": "CONTEXT_PARALLEL_GROUP",
    "dp": "DATA_PARALLEL_GROUP",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    "ep": "EXPERT_MODEL_PARALLEL_GROUP",
}


@LONG
def test_the_text_file_for_older_tools_says_the_same(trained):
    [path] = trained.out("windows").glob("unique_parallel_groups_*.txt")
    text = read_topology_file(path)
    whole = read_topology_file(path.with_suffix(".json"))
    assert text.sizes["world"] == WORLD
    stated = json.loads(path.with_suffix(".json").read_text())
    assert (stated["microbatches"], stated["micro_batch_size"]) == (4, 1)
    assert text.sizes["dp"] == len(trained.seen("windows", 0)["dp"])
    for line in (f"Virtual Pipeline Stages: {stated['sizes']['vpp']}", "Micro Batch Size: 1"):
        assert line in path.read_text().splitlines()
    assert set(text.full_model) == {tuple(sorted(model)) for model in whole.full_model}
    stated = {tuple(sorted(group)) for group in text.groups["pp"]}
    assert stated == {tuple(sorted(trained.seen("windows", rank)["pp"])) for rank in range(WORLD)}


@LONG
def test_the_header_carries_iteration_topology_and_a_clock_pair(newest, oldest):
    found = header(newest, "windows", 4, 3)
    assert (found["rank"], found["iteration"], found["iteration_from"]) == (3, 4, "megatron.training.training")
    assert found["coordinates"] == {"tp": 0, "cp": 0, "dp": 1, "pp": 1, "ep": 0, "etp": 0, "edp": 1}
    assert (found["sizes"]["vpp"], found["microbatches"], found["order"]) == (2, 4, "tp-cp-ep-dp-pp")
    assert found["settings"]["torch"]
    start, end = found["clock"]["start"], found["clock"]["end"]
    assert 0 < end["monotonic_ns"] - start["monotonic_ns"] < 60e9
    monotonic, utc = (end[name] - start[name] for name in ("monotonic_ns", "utc_ns"))
    assert abs(monotonic - utc) < 50e6
    other = header(oldest, "windows", 2, 1)
    assert (other["sizes"]["pp"], other["order"], other["coordinates"]["pp"]) == (4, "tp-cp-ep-pp-dp", 1)


def header(trained: Trained, scenario: str, iteration: int, rank: int) -> dict[str, Any]:
    name = f"iteration_{iteration}/rank_{rank:04d}_iter_{iteration}.pt.trace.json.gz"
    with gzip.open(trained.out(scenario) / name) as file:
        whole = json.load(file)
    assert [event["name"] for event in whole["traceEvents"] if "ProfilerStep" in str(event.get("name"))] == [
        f"ProfilerStep#{iteration}"
    ]
    found: dict[str, Any] = whole["traceviz_capture"]
    return found


@LONG
def test_the_capture_goes_through_the_pipeline(newest, tmp_path):
    folder = newest.out("windows") / "iteration_4"
    home = tmp_path / "home"
    # On a busy machine ends scatter, so that no clock is solved, and the answer is partial.
    assert program("analyze", folder, "--home", home, code=None).returncode in (0, 2)
    sql = (
        "SELECT rank, max(microbatch) + 1 AS microbatches, count(DISTINCT chunk) AS chunks, "
        "count(DISTINCT phase) FILTER (phase IN ('forward', 'backward', 'optimizer')) AS phases, "
        "avg((phase = 'unknown')::INT) AS unknown FROM kernels WHERE iteration = 4 GROUP BY rank ORDER BY rank"
    )
    rows = json.loads(program("sql", sql, "--home", home, "--json").stdout)
    assert [(row["rank"], row["microbatches"], row["chunks"], row["phases"]) for row in rows] == [
        (rank, 4, 2, 3) for rank in range(WORLD)
    ]
    assert all(row["unknown"] < 0.05 for row in rows)
    stages = json.loads(program("sql", "SELECT * FROM topology", "--home", home, "--json").stdout)
    assert {row["rank"]: row["pp"] for row in stages} == {0: 0, 1: 0, 2: 1, 3: 1}


@LONG
def test_what_was_left_out_on_purpose_is_not_there(oldest):
    def marks(scenario: str, iteration: int) -> tuple[bool, bool]:
        path = oldest.out(scenario) / f"iteration_{iteration}/rank_0001_iter_{iteration}.pt.trace.json.gz"
        text = gzip.decompress(path.read_bytes())
        return b'"python_function"' in text, b'"Input Dims"' in text

    assert marks("windows", 2) == (True, False)
    assert marks("resumed", 103) == (False, True)


@LONG
@pytest.mark.parametrize("way", ["torchrun", "sitecustomize"])
def test_a_plain_pytorch_job_is_captured_without_a_change(way, capture_python, plugin_folder, tmp_path):
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TRACEVIZ_CAPTURE_")},
        "TRACEVIZ_CAPTURE_ITERATIONS": "3",
        "TRACEVIZ_CAPTURE_OUT": str(tmp_path / "out"),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(plugin_folder),
    }
    script = str(HERE / "plain_job.py")
    if way == "torchrun":
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "traceviz_capture"]
        ranks = [0, 1]
    else:
        (tmp_path / "sitecustomize.py").write_text("import traceviz_capture\ntraceviz_capture.install()\n")
        environment["PYTHONPATH"] += f":{tmp_path}"
        launcher, ranks = [], [0]
    result = subprocess.run(
        [capture_python, *launcher, script], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("trained to") == len(ranks)
    [run] = discover([tmp_path / "out"])
    assert [(file.iteration, file.rank) for file in run.files] == [(3, rank) for rank in ranks]
    with gzip.open(run.files[0].path) as file:
        found = json.load(file)["traceviz_capture"]
    assert (found["iteration_from"], found["sizes"]) == ("optimizer", {})


def test_bridges_own_classes_take_what_is_rendered_for_releases(capture_python, plugin_folder, monkeypatch):
    """Bridge itself needs a GPU's packages: its dataclasses and its callback manager are taken out of its sources."""
    from tests.capture.bridge_sources import callback_manager, dataclass_fields, profiling_config
    from tests.capture.test_plan import NSYS, TORCH, targets

    sources = capture_python.parents[1] / "bridge"
    monkeypatch.setitem(sys.modules, "megatron.bridge.training.config", profiling_config(sources))
    for given in (TORCH, NSYS):
        rendered = targets(given)
        config = SimpleNamespace()
        exec(rendered["bridge-older"].text, {"config": config})
        assert (config.profiling.profile_step_start, config.profiling.profile_ranks) == (20, [0, 1, 8, 9])
    for given, name in ((TORCH, "PyTorchProfilerPlugin"), (NSYS, "NsysPlugin")):
        fields = dataclass_fields(sources, name)
        call = rendered_call(targets(given)["nemo-run"].text)
        assert set(call) <= fields
        assert call["profile_ranks"] == [0, 1, 8, 9]
    specification = importlib.util.spec_from_file_location("traceviz_capture", plugin_folder / "traceviz_capture.py")
    assert specification is not None
    assert specification.loader is not None
    plugin = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, "traceviz_capture", plugin)
    specification.loader.exec_module(plugin)
    calls: list[Any] = []
    monkeypatch.setattr(plugin.Capture, "begin", lambda _, *given: calls.append(given))
    monkeypatch.setattr(plugin.Capture, "end", lambda _, *given: calls.append(given))
    manager = callback_manager(sources)()
    manager.add([plugin.BridgeCallback()])
    context = SimpleNamespace(state=SimpleNamespace(train_state=SimpleNamespace(step=41)))
    manager.fire("on_train_step_start", context)
    manager.fire("on_train_step_end", context)
    assert calls == [(42, "bridge callback", "bridge callback"), ("bridge callback", 42)]


def rendered_call(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    recorder = {name: lambda **given: found.update(given) for name in ("NsysPlugin", "PyTorchProfilerPlugin")}
    exec(text.split("\n\n", 1)[1], recorder)
    return found

"""A trace that lost kernels is read in part: their launches are there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.damage import events_of, write_events
from tests.simulate.conftest import small
from traceviz_dag.read.kineto.reader import read_kineto
from traceviz_dag.simulate import simulate


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (path,) = simulate(small(), tmp_path_factory.mktemp("job") / "run", workers=1).glob("*/rank_0000_*")
    return path


def without(trace: Path, folder: Path, *, every: int, captured: bool = False, name: str = "") -> str | None:
    """What is said of the trace without every so many-th kernel of a name."""
    path = Path(shutil.copy(trace, folder))
    events = events_of(path)
    kernels = [event for event in events["traceEvents"] if event.get("cat") == "kernel" and name in event["name"]]
    lost = {id(event) for event in kernels[every // 2 :: every]}
    events["traceEvents"] = [event for event in events["traceEvents"] if id(event) not in lost]
    if captured:
        call = next(event for event in events["traceEvents"] if event.get("cat") == "cuda_runtime")
        events["traceEvents"].append({**json.loads(json.dumps(call)), "name": "cudaStreamBeginCapture_v10000"})
    write_events(path, events)
    return read_kineto(path).report.fault


def test_it_is_said_how_many_launches_have_no_kernel(trace, tmp_path):
    fault = without(trace, tmp_path, every=20)
    assert fault is not None and "launches have no kernel: the trace lost them; capture fewer training steps" in fault
    lost, every = (int(part.replace(",", "")) for part in fault.partition(" launches")[0].split(" of "))
    assert every > 100 and lost / every == pytest.approx(1 / 20, abs=0.01)


def test_a_whole_trace_a_single_kernel_or_a_captured_graph_is_no_loss(trace, tmp_path):
    assert read_kineto(trace).report.fault is None
    assert without(trace, tmp_path, every=10**9) is None
    assert without(trace, tmp_path, every=20, captured=True) is None


@pytest.mark.long
def test_no_recorded_trace_has_lost_any(shared_data):
    paths = [*shared_data.glob("megatron_gpu/*/*/*.json.gz"), *shared_data.glob("kineto/dlrm8/*.json.gz")]
    assert paths and [path for path in paths if read_kineto(path).report.fault is not None] == []

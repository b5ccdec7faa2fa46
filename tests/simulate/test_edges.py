"""Edges between streams: the truth's, and those that rows of synchronisation tell a reader who knows CUDA's rules."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pandas as pd
import pytest

from tests.sets import fast
from tests.simulate.conftest import CONFIGURATIONS, Job, decode, nanoseconds, small
from traceviz_dag.errors import UsageError
from traceviz_dag.simulate import simulate
from traceviz_dag.simulate.settings import Edges, Format, Layout
from traceviz_dag.simulate.timing.model import Model

GPU_ROWS = ("kernel", "gpu_memcpy", "gpu_memset")
TOLD = ("interleaved", "layer_graphs", "old_torch", *(name for name, job in CONFIGURATIONS.items() if job.cuda_sync))
Identity = tuple[int, int]
"""Correlation of a kernel, and its node in a CUDA graph (-1: none)."""
Edge = tuple[Identity, Identity]


@pytest.fixture(scope="module")
def told_job(job_of: Callable[[str], Job], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Job]:
    """Configuration name → its job with rows of synchronisation."""

    @cache
    def get(name: str) -> Job:
        settings = replace(CONFIGURATIONS[name], cuda_sync=True)
        if settings == CONFIGURATIONS[name]:
            return job_of(name)
        return Job(settings, simulate(settings, tmp_path_factory.mktemp(name), workers=1))

    return get


def _rows(trace: dict, *categories: str) -> list[dict]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X" and event["cat"] in categories]


def _kernels(trace: dict) -> dict[Identity, dict]:
    rows = _rows(trace, *GPU_ROWS)
    return {(event["args"]["correlation"], event["args"].get("graph node id", -1)): event for event in rows}


def _span(event: dict) -> tuple[int, int]:
    begin = nanoseconds(event["ts"])
    return begin, begin + nanoseconds(event["dur"])


def _edges(job: Job, rank: int) -> pd.DataFrame:
    edges = pd.read_parquet(job.folder / "truth/edges.parquet")
    return edges[edges["rank"] == rank]


def _pairs(edges: pd.DataFrame) -> set[Edge]:
    columns = ["waiting", "waiting_graph_node", "waited_for", "waited_for_graph_node"]
    return {((a, b), (c, d)) for a, b, c, d in edges[columns].itertuples(index=False)}


def _told(trace: dict) -> tuple[set[Edge], set[Edge]]:
    """Edges by CUDA's rules, in the order of the host's calls: by one wait, and by waits that are passed on.

    A record covers what its stream has run, and what the stream waits for; a wait holds back the next kernel.
    """
    waits = [event for event in _rows(trace, "cuda_sync") if event["name"] == "Stream Wait Event"]
    records = {e["args"]["wait_on_cuda_event_record_corr_id"]: e["args"]["wait_on_stream"] for e in waits}
    calls = [(identity[0], 1, (identity, event)) for identity, event in _kernels(trace).items()]
    calls += [(correlation, 0, (correlation, stream)) for correlation, stream in records.items() if correlation > 0]
    calls += [(event["args"]["correlation"], 2, event["args"]) for event in waits]
    last: dict[int, Identity] = {}
    waiting: dict[int, set[tuple[Identity, int, bool]]] = defaultdict(set)
    covered: dict[int, set[tuple[Identity, int, bool]]] = {}
    found: tuple[set[Edge], set[Edge]] = set(), set()
    for _, kind, what in sorted(calls, key=lambda call: call[:2]):
        if kind == 0:
            correlation, stream = what
            own = {(last[stream], stream, True)} if stream in last else set()
            covered[correlation] = own | {(kernel, of, False) for kernel, of, _ in waiting[stream]}
        elif kind == 1:
            identity, event = what
            stream = event["args"]["stream"]
            for kernel, of, direct in waiting.pop(stream, set()):
                if of != stream:
                    found[not direct].add((identity, kernel))
            last[stream] = identity
        elif what["wait_on_cuda_event_record_corr_id"] > 0:
            waiting[what["stream"]] |= covered[what["wait_on_cuda_event_record_corr_id"]]
    return found


@pytest.mark.parametrize("name", fast(TOLD, *TOLD[::6]))
def test_rows_show_the_waits_of_the_truth_and_no_others(told_job: Callable[[str], Job], name: str):
    job = told_job(name)
    for rank in (0, job.settings.world - 1):
        truth = _edges(job, rank)
        assert set(truth[truth["kind"] == "event_wait"]["recorded"]) == {True}
        direct, passed_on = _told(job.trace(rank))
        assert direct == _pairs(truth[truth["kind"] == "event_wait"])
        assert passed_on - direct == _pairs(truth[truth["kind"] == "passed_on_wait"])


@pytest.mark.parametrize("name", fast(TOLD, *TOLD[1::3]))
def test_nothing_starts_before_what_it_waits_for_has_ended(told_job: Callable[[str], Job], name: str):
    job = told_job(name)
    kernels, truth = _kernels(job.trace(0)), _edges(job, 0)
    assert len(truth) == len(_pairs(truth)) > 0
    for waiting, waited_for in _pairs(truth):
        assert kernels[waiting]["args"]["stream"] != kernels[waited_for]["args"]["stream"]
        assert _span(kernels[waiting])[0] >= _span(kernels[waited_for])[1]


@pytest.mark.parametrize(
    "name",
    fast(
        ["interleaved", "experts_on_wider_tensor", "whole_graph", "layer_graphs", "old_torch"],
        "layer_graphs",
        "old_torch",
    ),
)
def test_the_truth_has_edges_without_rows_of_synchronisation(job_of: Callable[[str], Job], name: str):
    job = job_of(name)
    kernels, truth = _kernels(job.trace(0)), _edges(job, 0)
    assert len(truth) and not truth["recorded"].any()
    assert not _rows(job.trace(0), "cuda_sync")
    for waiting, waited_for in _pairs(truth):
        assert _span(kernels[waiting])[0] >= _span(kernels[waited_for])[1]
    # Every computation after a communication of its own stream's making waits for it, and the reverse.
    assert set(truth["kind"]) >= ({"cuda_graph"} if "graph" in name else {"event_wait", "host_synchronisation"})


@pytest.mark.long
def test_rows_of_synchronisation_are_kineto_s(told_job: Callable[[str], Job], shared_data: Path):
    """Keys, places and arrows are those of recorded traces."""
    shapes: dict[str, set] = defaultdict(set)
    for path in sorted((shared_data / "kineto/hta_sync").glob("*.json.gz")):
        trace = decode(path.read_bytes())
        for event in _rows(trace, "cuda_sync"):
            shapes[event["name"]].add(_shape(trace, event))
    mine: dict[str, set] = defaultdict(set)
    for name in ("interleaved", "experts"):
        trace = told_job(name).trace(0)
        for event in _rows(trace, "cuda_sync"):
            mine[event["name"]].add(_shape(trace, event))
    assert set(mine) == {"Stream Wait Event", "Stream Sync", "Context Sync"}
    for name, found in mine.items():
        assert found <= shapes[name]


def _shape(trace: dict, event: dict) -> tuple:
    """What a row of synchronisation has, where it is, and what the call is that it is about."""
    arguments = event["args"]
    correlation, stream = arguments["correlation"], arguments["stream"]
    (call,) = (row for row in _rows(trace, "cuda_runtime") if row["args"]["correlation"] == correlation)
    arrows = {(e["ph"], e["tid"] == event["tid"]) for e in trace["traceEvents"] if e.get("id") == correlation}
    place = "device" if event["tid"] == -1 else "stream" if event["tid"] == stream else "elsewhere"
    within = _span(call)[0] <= _span(event)[0] and _span(event)[1] <= _span(call)[1] + 1_000
    same = arguments["External id"] == call["args"]["External id"]
    on_device = event["pid"] == arguments["device"]
    resolved = arguments.get("wait_on_cuda_event_record_corr_id", 0) > 0
    kind = arguments["cuda_sync_kind"] == event["name"]
    return frozenset(arguments), call["name"], frozenset(arrows), place, within, same, on_device, resolved, kind


def test_event_ids_are_used_again(told_job: Callable[[str], Job]):
    waits = [e["args"] for e in _rows(told_job("interleaved").trace(0), "cuda_sync") if "wait_on_stream" in e["args"]]
    records = {row["wait_on_cuda_event_record_corr_id"]: row["wait_on_cuda_event_id"] for row in waits}
    assert max(Counter(records.values()).values()) > 3


@pytest.mark.parametrize("replicas", [1, 2])
def test_waits_name_a_record_of_their_file_or_none(tmp_path: Path, replicas: int):
    """With one replica nothing gathers parameters, and the hooks' waits find no record."""
    settings = small(pp=2, dp=replicas, iterations=2, cuda_sync=True)
    job = Job(settings, simulate(settings, tmp_path, workers=1))
    resolved: Counter[bool] = Counter()
    for path in sorted(job.folder.glob("iteration_*/rank_0000_*")):
        trace = decode(path.read_bytes())
        calls = {row["args"]["correlation"]: row["name"] for row in _rows(trace, "cuda_runtime")}
        for row in _rows(trace, "cuda_sync"):
            if row["name"] != "Stream Wait Event":
                continue
            record, stream = (row["args"][f"wait_on_{what}"] for what in ("cuda_event_record_corr_id", "stream"))
            resolved[record > 0] += 1
            assert calls[record].startswith("cudaEventRecord") and stream >= 0 if record > 0 else record == stream == -1
    assert resolved[True] and bool(resolved[False]) is (replicas == 1)


def test_rows_of_synchronisation_leave_the_work_as_it_is():
    for name in ("combined", "experts", "interleaved", "layer_graphs", "userbuffers"):
        plain, told = (
            [
                (times.starts.tolist(), times.ends.tolist(), times.match)
                for times in Model(replace(CONFIGURATIONS[name], cuda_sync=cuda_sync)).step(1)
            ]
            for cuda_sync in (False, True)
        )
        assert plain == told


@pytest.mark.parametrize("layout", [Layout.ITERATION, Layout.TORCH_PROFILE])
def test_edges_name_kernels_of_the_truth_whatever_the_file_holds(tmp_path: Path, layout: Layout):
    edges = Edges(early_kernels=True, missing_launches=0.1)
    settings = small(tp=2, pp=2, iterations=2, layout=layout, edges=edges, cuda_sync=True)
    job = Job(settings, simulate(settings, tmp_path, workers=1))
    truth = job.truth(1)
    streams = {
        (step, key): stream for step, key, stream in truth[["step", "correlation", "stream"]].itertuples(index=False)
    }
    found = _edges(job, 1)
    assert set(found["step"]) == set(found["iteration"]) == {10, 11}
    across = 0
    for step, waiting, waited_for in found[["step", "waiting", "waited_for"]].itertuples(index=False):
        here = streams.get((step, waited_for)) or streams[step - 1, waited_for]
        across += (step, waited_for) not in streams
        assert here != streams[step, waiting]
    assert bool(across) is (layout is Layout.TORCH_PROFILE)


def test_exports_have_no_rows_of_synchronisation():
    with pytest.raises(UsageError, match="--cuda-sync is of Kineto traces"):
        small(cuda_sync=True, format=Format.NSYS).validate()

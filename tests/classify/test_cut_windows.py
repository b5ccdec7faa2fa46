"""Windows that do not hold whole training steps: nothing untrue is reported of micro-batches, and the file says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.accuracy import SMALL
from benchmarks.cut_windows import SCHEDULES, one_job
from tests.classify.test_kernels import run
from tests.damage import events_of, write_events
from tests.kineto_file import KinetoFile
from tests.sets import fast
from traceviz_dag.analyze.accuracy import compared, shares
from traceviz_dag.classify.kernels import Classification
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.pipeline.iteration import read_topology
from traceviz_dag.pipeline.ranks import classify_trace, window_fault
from traceviz_dag.read.kineto.reader import read_kineto
from traceviz_dag.read.truth import read_truth, truth_folder
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import Edges, Layout

STARTS, STOPS, SEVERAL, LOST = "the window starts in", "the window stops in", "parts of several", "its host did for"
ALONE, PIPELINED = replace(SMALL, microbatches=8), replace(SMALL, microbatches=8, pp=2)
INTERLEAVED = replace(PIPELINED, vpp=2)
TWO = {"iterations": 2, "layout": Layout.TORCH_PROFILE}
ONE_MARK = Edges(shifted_marks=0.7, window_from=0.35, window_to=0.85)
CASES: dict[str, tuple[JobSettings, Edges, str]] = {
    "starts between two micro-batches": (ALONE, Edges(window_from=0.4), STARTS),
    "starts, stages": (INTERLEAVED, Edges(window_from=0.62), STARTS),
    "stops": (PIPELINED, Edges(window_to=0.6), STOPS),
    "from step to step": (replace(INTERLEAVED, **TWO), Edges(window_from=0.2, window_to=0.7), STARTS),
    "one mark over two steps": (replace(PIPELINED, **TWO), ONE_MARK, SEVERAL),
    "shifted marks": (replace(INTERLEAVED, **TWO), Edges(shifted_marks=0.4), SEVERAL),
    "lost rows": (PIPELINED, Edges(lost_rows_from=0.3, lost_rows_to=0.45), LOST),
    "without stacks: starts between two micro-batches": (ALONE, Edges(window_from=0.4), STARTS),
    "without stacks: starts, stages": (PIPELINED, Edges(window_from=0.4), STARTS),
    "without stacks: starts with the last micro-batch": (ALONE, Edges(window_from=0.7957), ""),
    "without stacks: stops": (
        INTERLEAVED,
        Edges(window_to=0.6),
        "known to be recorded whole: nothing shows where it ends",
    ),
    "without stacks: stops in the optimizer": (ALONE, Edges(window_to=0.975), STOPS),
    "with stacks: stops in the warm-up": (replace(PIPELINED, pp=4, microbatches=4), Edges(window_to=0.17), STOPS),
    "without stacks: one mark over two steps": (replace(ALONE, **TWO), ONE_MARK, SEVERAL),
    "without stacks: shifted marks, and the loss is reported": (
        replace(ALONE, dp=2, microbatches=4, **TWO),
        Edges(shifted_marks=0.17),
        SEVERAL,
    ),
    "without stacks: marks begin before the optimizer": (
        replace(PIPELINED, **TWO),
        Edges(shifted_marks=0.94),
        SEVERAL,
    ),
    "without stacks: lost rows": (INTERLEAVED, Edges(lost_rows_from=0.6, lost_rows_to=0.7), LOST),
    "first rows lost": (replace(PIPELINED, cp=2, microbatches=4), Edges(lost_rows_to=0.17), LOST),
    "first rows lost, interleaved": (replace(INTERLEAVED, microbatches=4), Edges(lost_rows_to=0.4), LOST),
    "within a forward step": (replace(SMALL, dp=2, microbatches=2), Edges(window_from=0.093, window_to=0.136), STARTS),
    "lost rows around a mark": (
        replace(SCHEDULES["combined 1F1B"], microbatches=8, **TWO),
        Edges(lost_rows_from=0.4, lost_rows_to=0.58),
        LOST,
    ),
    "without stacks: lost rows around a mark": (
        replace(PIPELINED, **TWO),
        Edges(lost_rows_from=0.456, lost_rows_to=0.689),
        LOST,
    ),
    "without stacks: stops before a backward step": (replace(PIPELINED, pp=4), Edges(window_to=0.15), STOPS),
}


def classified(settings: JobSettings, folder: Path) -> list[tuple[Classification, float]]:
    """Each file, and the share of its kernel time whose micro-batch or chunk is reported wrongly; the sizes of batches
    are not used."""
    simulate(settings, folder, workers=1)
    found = []
    for inputs in inputs_below([folder])[:1]:
        topology = read_topology(inputs)
        for entry in inputs.ranks:
            events = read_kineto(Path(entry.path))
            events = replace(events, header=replace(events.header, settings=()))
            one = classify_trace(events, entry.rank, topology, load_rules())
            of_file = inputs.iteration if settings.layout is Layout.ITERATION else None
            truth = read_truth(truth_folder(folder), entry.rank, of_file).to_pandas()
            wrong = shares(compared(one.kernels.to_pandas(), truth)).wrong
            found.append((one, max(wrong["microbatch"], wrong["chunk"])))
    return found


@pytest.mark.parametrize(
    "name",
    fast(
        CASES,
        *("shifted marks", "without stacks: stops before a backward step"),
    ),
)
def test_a_cut_window_gets_no_wrong_micro_batch_and_says_why(tmp_path, name):
    settings, edges, why = CASES[name]
    settings = replace(settings, edges=edges, stacks="without stacks" not in name, seed=7)
    files = classified(settings, tmp_path / "run")
    assert len(files) == settings.world
    for one, wrong in files:
        fault = window_fault(one.steps.cuts, None)
        assert wrong < 0.001
        assert fault is not None and fault.endswith("; start and stop the profiler between training steps")
    assert any(why in (window_fault(one.steps.cuts, None) or "") for one, _ in files)


def test_a_file_without_the_rows_before_a_time_has_no_numbers(tmp_path):
    """As a script cuts it: frames and marks that cross that time are gone as well, on stage 1 without a trace."""
    folder = simulate(replace(PIPELINED, microbatches=4, tp=2, seed=9), tmp_path / "run", workers=1)
    (inputs,) = inputs_below([folder])
    topology = read_topology(inputs)
    for entry in inputs.ranks:
        path = Path(entry.path)
        trace = events_of(path)
        kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
        first, last = (end(event["ts"] for event in kernels) for end in (min, max))
        cut = first + 0.4 * (last - first)
        trace["traceEvents"] = [event for event in trace["traceEvents"] if event.get("ph") != "X" or event["ts"] >= cut]
        write_events(path, trace)
        one = classify_trace(read_kineto(path), entry.rank, topology, load_rules())
        assert set(one.kernels["microbatch"].to_pylist()) == {None} and one.steps.cuts


@pytest.mark.parametrize(("variant", "seed"), [("stops in a step", 41063), ("starts and stops in a step", 41014)])
def test_few_steps_without_stacks_and_group_names_are_no_training_or_evaluation_of_their_own(variant, seed):
    """One forward and backward step of an interleaved job, and the end of one's backward with the next one's begin."""
    one = one_job(variant, seed)
    assert one.wrong == 0 and one.marked == one.files


@pytest.mark.parametrize("stacks", fast([True, False], False))
def test_two_whole_steps_stay_as_they_are(tmp_path, stacks):
    for one, wrong in classified(replace(INTERLEAVED, **TWO, stacks=stacks, seed=7), tmp_path / "run"):
        assert wrong == 0 and not one.steps.cuts
        assert set(one.steps.microbatch.tolist()) == set(range(8)) and set(one.steps.chunk.tolist()) == {0, 1}


@pytest.mark.parametrize("within", [True, False])
def test_a_whole_step_that_lost_its_mark_is_not_called_cut(tmp_path, within):
    """The frame around the training step outlasts it; without one, nothing shows what the window holds."""
    simulate(replace(PIPELINED, seed=7), tmp_path / "run", workers=1)
    (inputs,) = inputs_below([tmp_path / "run"])
    said = []
    for entry in inputs.ranks:
        trace = events_of(Path(entry.path))
        lost = ("ProfilerStep#",) if within else ("ProfilerStep#", "train_step")
        of = [event for event in trace["traceEvents"] if not any(name in event.get("name", "") for name in lost)]
        write_events(Path(entry.path), trace | {"traceEvents": of})
        events = read_kineto(Path(entry.path))
        one = classify_trace(events, entry.rank, read_topology(inputs), load_rules())
        said.append(window_fault(one.steps.cuts, None) or "")
    assert "the window st" not in "".join(said)
    assert any("no ProfilerStep mark, and nothing else, shows where it ends" in each for each in said) is not within
    assert within or "not known to be recorded whole" in "".join(said)


def test_numbers_go_on_after_a_step_whose_beginning_is_lost(tmp_path):
    """The second training step of the file begins in the window: its numbers are known."""
    (one, _), *_ = classified(replace(ALONE, **TWO, edges=Edges(window_from=0.3), seed=7), tmp_path / "run")
    by_step = {number: one.steps.microbatch[one.steps.step == number] for number in (10, 11)}
    assert (by_step[10] < 0).all() and sorted(by_step[11]) == sorted([*range(8), *range(8)])


def test_batch_sizes_show_that_forward_steps_are_missing(tmp_path):
    job = replace(PIPELINED, stacks=False, seed=7)
    simulate(job, tmp_path / "run", workers=1)
    (inputs,) = inputs_below([tmp_path / "run"])
    topology, events = read_topology(inputs), read_kineto(Path(inputs.ranks[0].path))
    settings = {**dict(events.header.settings), "global_batch_size": "12", "micro_batch_size": "1"}
    events = replace(events, header=replace(events.header, settings=tuple(settings.items())))
    one = classify_trace(events, 0, topology, load_rules())
    said = window_fault(one.steps.cuts, 10)
    assert said is not None and "it has 8 forward steps, and the batch sizes give 12 micro-batches" in said
    assert window_fault(one.steps.cuts, 9) is None and (one.steps.microbatch < 0).all()


def test_launches_that_are_lost_here_and_there_are_no_lost_rows(tmp_path):
    job = replace(PIPELINED, edges=Edges(missing_launches=0.3), seed=7)
    for one, wrong in classified(job, tmp_path / "run"):
        assert not one.steps.cuts and wrong < 0.001


def test_a_trace_of_operators_alone_is_not_called_cut(tmp_path):
    file = KinetoFile()
    file.annotation("ProfilerStep#3", 0, 10_000)
    file.operator("aten::mm", 100, 200)
    assert run(file, tmp_path).steps.cuts == ()

"""``traceviz advise``: rows and text of traces, of memory, of records, and how it ends where it cannot answer."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import pytest

from tests.commands.jobs import home_of
from tests.commands.test_causes import ask, rows
from tests.made_once import made_once
from tests.read.records.test_primus_records import _job, _write
from traceviz_dag.analyze.causes.gains import named_change
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import Edges

JOB = JobSettings(pp=4, layers=8, microbatches=8, hidden=1024, heads=8, feed_forward=4096, seed=4, memory=True)


@pytest.fixture(scope="module")
def home():
    def make(folder):
        simulate(JOB, folder / "job", workers=1)
        code, _, line = ask("analyze", folder / "job", "--home", folder / "home")
        assert code == 0, line

    return made_once("advised_with_memory", make) / "home"


def test_rows_have_the_change_the_step_its_bar_and_the_flags_and_are_what_what_if_predicts(home):
    found = rows("advise", "--home", home)
    first = found[0]
    assert first["wins"] and first["run"] == "job" and first["reason"] is None
    assert first["low_ns"] <= first["predicted_step_ns"] <= first["high_ns"] < first["step_ns"]
    assert all(row["flags"]["megatron_lm"] and row["not_predictable"] for row in found)
    two = next(row for row in found if row["change"] == {"chunks": 2})
    (asked,) = rows("what-if", "--home", home, "--chunks", 2)
    assert asked["predicted_step_ns"] == two["predicted_step_ns"] and asked["chunks"] == 2
    layers = next(row for row in found if set(row["change"]) == {"layers"})
    (asked,) = rows("what-if", "--home", home, "--layers", layers["change"]["layers"])
    assert asked["predicted_step_ns"] == layers["predicted_step_ns"]


def test_whether_a_change_fits_is_known_from_snapshots_and_the_memory_of_a_gpu(home):
    # The traces state 79 GiB.
    assert {row["fits"] for row in rows("advise", "--home", home)} == {True}
    assert {row["fits"] for row in rows("advise", "--home", home, "--gpu-gib", 80)} == {True}
    assert {row["fits"] for row in rows("advise", "--home", home, "--gpu-gib", 1e300)} == {True}
    found = rows("advise", "--home", home, "--gpu-gib", 1.5)
    assert any(row["fits"] is False and row["fits_reason"] for row in found) and found[0]["fits"] is not False
    assert {row["fits_reason"] for row in rows("advise", "--home", home_of("slow_rank"))} == {
        "no memory snapshot beside the traces, and no memory events in them"
    }


def test_memory_events_of_traces_bound_what_a_change_needs(tmp_path):
    job = JobSettings(pp=2, layers=4, microbatches=4, hidden=512, heads=4, feed_forward=2048, sequence=2048, seed=3)
    simulate(job, tmp_path / "job", workers=1)
    for path in (tmp_path / "job").rglob("rank*.json.gz"):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        trace["profile_memory"] = 1
        times = [event["ts"] for event in trace["traceEvents"] if event.get("cat") == "kernel"]
        # 30 GiB are allocated before the step, 60 in the middle of it.
        for ts, gib in ((min(times) - 1e5, 30), ((min(times) + max(times)) / 2, 60)):
            args = {"Total Allocated": gib << 30, "Total Reserved": 60 << 30, "Device Id": 0, "Device Type": 1}
            args |= {"Bytes": 512, "Addr": 4096}
            where = {"ph": "i", "s": "t", "pid": 1, "tid": 1, "ts": ts}
            trace["traceEvents"].append({**where, "name": "[memory]", "args": args})
        path.write_bytes(gzip.compress(json.dumps(trace).encode()))
    # Two chunks keep half as many micro-batches more on the last stage: 30 + 30 * 1.5 GiB at most.
    for gpu_gib, fit in ((78, True), (70, None)):
        found = rows("advise", tmp_path / "job", "--home", tmp_path / "home", "--gpu-gib", gpu_gib)
        chunks = [row for row in found if row["change"].get("chunks") == 2 and "layers" not in row["change"]]
        assert chunks and {row["fits"] for row in chunks} == {fit}


@pytest.mark.long
def test_snapshots_beside_traces_that_are_named_count_as_those_of_a_home(home, tmp_path):
    named = rows("advise", home.parent / "job", "--home", tmp_path, "--gpu-gib", 1.5)
    assert {row["fits"] for row in named} >= {True, False}
    stored = rows("advise", "--home", home, "--gpu-gib", 1.5)
    assert [(row["change"], row["fits"]) for row in named] == [(row["change"], row["fits"]) for row in stored]


def test_the_text_says_what_the_rows_have(home):
    found = rows("advise", "--home", home)
    best = found[0]
    _, output, _ = ask("advise", "--home", home, "--all")
    said = " ".join(output.split())
    gain = 100 * (1 - best["predicted_step_ns"] / best["step_ns"])
    assert f"Best: {named_change(best['change'])}, {gain:.1f}% of the step shorter." in said
    for row in found:
        faster = row["tokens_per_second"] > 1
        step = f"{row['predicted_step_ns'] / 1e6:.3f} {row['low_ns'] / 1e6:.3f} {row['high_ns'] / 1e6:.3f}"
        assert (f"{step} {row['tokens_per_second']:.3f}x {max(row['in_flight']):g} yes" in said) == faster
    assert all(f"- {line}" in said for line in best["not_predictable"])
    assert all(flag in said for flag in best["flags"]["megatron_lm"])


def test_the_table_has_the_rows_of_the_command_or_why_there_are_none(home):
    stored = open_lake(home).query("FROM advice ORDER BY place").to_pylist()
    told = rows("advise", "--home", home)
    assert [row["predicted_step_ns"] for row in stored] == [row["predicted_step_ns"] for row in told]
    assert [row["chunks"] for row in stored] == [row["change"].get("chunks") for row in told]
    assert stored[0]["wins"] and stored[0]["megatron_lm"] == ", ".join(told[0]["flags"]["megatron_lm"])
    (refused,) = open_lake(home_of("one_rank")).query("FROM advice").to_pylist()
    assert refused["refusal"] and refused["place"] is None


def test_the_finding_of_a_slow_stage_says_the_best_way_to_share_layers_out_as_advice_has_it(home):
    best = next(row for row in rows("advise", "--home", home) if {*row["change"]} == {"layers"})
    (found,) = (row for row in rows("findings", "--home", home) if row["rule"] == "slow_stage")
    gain = round(100 * (1 - best["predicted_step_ns"] / best["step_ns"]), 1)
    said = f"With layers {best['change']['layers']} of the stages the step is predicted to be "
    assert best["wins"] and said in found["remedy"]
    assert float(found["remedy"].split(said)[1].split(" %")[0]) == pytest.approx(gain, abs=0.5)
    # Where GPUs are slow, or no other share wins, it does not.
    assert not any("advise" in (row["remedy"] or "") for row in rows("findings", "--home", home_of("slow_rank")))


def test_what_is_kept_stays_and_a_job_without_a_pipeline_wins_nothing(home):
    kept = [f"--keep={name}" for name in ("vpp", "schedule", "microbatches")]
    assert all(set(row["change"]) == {"layers"} for row in rows("advise", "--home", home, *kept))
    code, output, _ = ask("advise", "--home", home_of("dp_only"))
    assert code == 0 and "Nothing predicted to win over 1 %." in output
    assert "tensor, context and expert parallel sizes" in output


def test_of_a_job_not_read_whole_the_reason_says_what_would_change(tmp_path):
    simulate(replace(JOB, memory=False, edges=Edges(missing_rank=2)), tmp_path / "job", workers=1)
    code, output, _ = ask("advise", tmp_path / "job", "--home", tmp_path / "home")
    assert code == 2 and "other settings would also change 1 rank that was not read whole" in " ".join(output.split())


SIZED = JobSettings(pp=2, layers=4, microbatches=12, hidden=512, heads=4, feed_forward=2048, sequence=2048, seed=3)


@pytest.fixture(scope="module")
def sizes():
    def make(folder):
        four = replace(SIZED, batch=4, microbatches=3)
        jobs = {"one": SIZED, "four": four, "longer": replace(four, sequence=4096), "wider": replace(four, hidden=1024)}
        jobs |= {"deeper": replace(four, layers=8), "six": replace(SIZED, microbatches=6)}
        for name, settings in jobs.items():
            simulate(settings, folder / name, workers=1)
        code, _, line = ask("analyze", *(folder / name for name in jobs), "--home", folder / "home")
        assert code == 0, line

    return made_once("advised_sizes", make) / "home"


@pytest.mark.long
def test_a_second_capture_tells_of_sizes_of_micro_batches_up_to_its_own(sizes):
    found = rows("advise", "--home", sizes, "--run", "one", "--beside", "four")
    alone = [row for row in found if set(row["change"]) == {"microbatch_size", "microbatches"}]
    told = {row["change"]["microbatch_size"]: row["change"]["microbatches"] for row in alone}
    assert told == {2.0: 6, 3.0: 4, 4.0: 3}, "the batch stays"
    assert all(row["same_batch"] and row["low_ns"] <= row["predicted_step_ns"] <= row["high_ns"] for row in alone)
    two, four = (next(row for row in alone if row["change"]["microbatch_size"] == size) for size in (2.0, 4.0))
    assert two["flags"]["megatron_lm"] == ["--micro-batch-size 2 times as large"]
    assert max(two["in_flight"]) == 4, "two micro-batches, twice as large"
    (step,) = rows("iterations", "--home", sizes, "--run", "four")
    assert four["predicted_step_ns"] == pytest.approx(step["step_ns"], rel=0.002), "as captured"
    assert any("micro-batch sizes below or above" in line for line in two["not_predictable"])
    others = rows("advise", "--home", sizes, "--run", "one")
    assert [row for row in found if "microbatch_size" not in row["change"]] == [
        {**row, "not_predictable": two["not_predictable"]} for row in others
    ]
    _, output, _ = ask("advise", "--home", sizes, "--run", "one", "--beside", "four")
    assert "with micro-batches of another size alone" in output and "micro-batch sizes below or above" in output
    kept = rows("advise", "--home", sizes, "--run", "one", "--beside", "four", "--keep", "microbatches")
    assert not any("microbatch_size" in row["change"] for row in kept)


@pytest.mark.parametrize(
    ("other", "line"),
    [
        ("longer", "also differ in setting seq_length: 2048 and 4096"),
        ("wider", "also differ in setting hidden_size: 512 and 1024"),
        ("deeper", "also differ in most layers of a model chunk: 2 and 4"),
        ("six", "the two captures have micro-batches of one size"),
        ("one", "the two captures have micro-batches of one size"),
        ("missing", "no such run"),
    ],
)
def test_captures_that_differ_in_anything_else_are_refused(sizes, other, line):
    code, _, said = ask("advise", "--home", sizes, "--run", "one", "--beside", other)
    assert code == 2 and line in said


def test_records_of_primus_are_advised_on(tmp_path):
    folder = _write(tmp_path / "job", _job(4, 8, (0.0, 7.0, 1.0, 0.0)))
    found = rows("advise", "--records", folder, "--steps", 4)
    assert found[0]["change"]["chunks"] == 2 and found[0]["records"] == "job" and found[0]["wins"]
    code, output, _ = ask("what-if", "--records", folder, "--chunks", 2)
    assert code == 0 and "2 model chunks a stage" in output


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--keep", "tp"), "--keep tp: there are vpp, layers, microbatches, schedule, recompute, order"),
        (("--steps", "3"), "--steps is for --records"),
        (("--records", "x", "--beside", "y"), "--beside is for traces"),
        (("--records", "x", "--gpu-gib", "80"), "--gpu-gib is for traces"),
        (("--gpu-gib", "nan"), "--gpu-gib nan: give a number"),
        (("--gpu-gib", "inf"), "--gpu-gib inf: give a number"),
        (("--records", "x", "--run", "job"), "name traces or --records, not both"),
    ],
)
def test_what_cannot_be_asked_is_one_line(home, words, line):
    code, _, said = ask("advise", "--home", home, *words)
    assert code == 2 and said.startswith(line)


def test_ranks_that_were_not_read_leave_nothing_to_advise():
    code, output, line = ask("advise", "--home", home_of("one_rank"))
    assert code == 2 and "nothing can be advised" in output and line
    (row,) = rows("advise", "--home", home_of("one_rank"), code=2)
    assert row["change"] is None and not row["certain"] and row["reason"]

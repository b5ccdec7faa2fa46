"""`waits` and `periods` exit with 0 where they answer in full, and with 2 where they cannot; the JSON says the same."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.adversarial import healthy, unsolvable_clocks
from tests.analyze.across_ranks import analysed_here
from tests.commands.jobs import home_of
from tests.kineto_file import KinetoFile
from tests.small_run import GEMM, REDUCE
from traceviz_dag.commands.main import app
from traceviz_dag.simulate import JobSettings, simulate


def ask(*words: object) -> tuple[int, dict]:
    result = CliRunner().invoke(app, [*map(str, words), "--json"])
    return getattr(result.exception, "exit_code", result.exit_code), json.loads(result.stdout)[0]


@pytest.fixture(scope="module")
def homes(tmp_path_factory) -> dict[str, Path]:
    """Of a job whose clocks are solved, and of one whose are not."""
    folder = tmp_path_factory.mktemp("homes")
    analysed_here(healthy(meetings=10).write(folder / "whole"), folder / "home")
    return {"whole": folder / "home", "scattered": home_of("scattered")}


def test_waits_that_nothing_shows_end_with_2_and_a_healthy_job_with_0(homes):
    answers = {name: ask("waits", "--home", home) for name, home in homes.items()}
    code, answer = answers["whole"]
    assert (code, answer["uncertain"], answer["reason"]) == (0, 0, None)
    code, answer = answers["scattered"]
    assert (code, answer["uncertain"]) == (2, answer["communication_kernels"])
    assert "have no certain wait" in answer["reason"]


@pytest.mark.long
def test_analyze_and_findings_end_with_2_and_say_so_where_nothing_shows_who_waited(tmp_path):
    for name, job, code in (("whole", healthy(meetings=10), 0), ("scattered", unsolvable_clocks(), 2)):
        traces, home = job.write(tmp_path / name), ["--home", str(tmp_path / f"home_{name}")]
        told = {
            words[0]: CliRunner().invoke(app, [*words, *home]) for words in (["analyze", str(traces)], ["findings"])
        }
        for result in told.values():
            assert getattr(result.exception, "exit_code", result.exit_code) == code, result.output
            assert ("have no certain wait" in str(result.exception)) == (code == 2)
        assert ("who is late is not known: " in told["analyze"].stdout) == (code == 2)
        _, _, not_judged = told["findings"].stdout.partition("Not judged")
        assert ("slow_rank: which rank comes late is not known: " in not_judged) == (code == 2)


def test_doctor_promises_waits_only_where_members_are_there_and_lists_agree(tmp_path):
    def says(folder: Path) -> dict:
        [answer] = json.loads(CliRunner().invoke(app, ["doctor", str(folder), "--json"]).stdout)
        return next(each for each in answer["questions"] if each["question"].startswith("Who waits"))

    half = healthy(world=4).write(tmp_path / "half")
    next(half.rglob("*rank*3*.json")).unlink()
    assert (says(half)["answer"], "are all members there" in says(half)["why"]) == ("no", True)
    for name, more in (("alike", 0), ("longer", 1)):
        for rank in range(3):
            file = KinetoFile(rank=rank, world_size=3)
            file.annotation("ProfilerStep#7", 0, 9_000_000)
            for number in range(4 + more * (rank == 1)):
                facts = {"Collective name": "allreduce", "Group size": 3, "In msg nelems": 8, "dtype": "Float"}
                start = 1_000_000 * (number + 1)
                file.kernel(REDUCE, start, start + 500_000, launched=start - 5_000, stream=32, **facts)
            file.write(tmp_path / name / f"iteration_7/rank_{rank}_iter_7.pt.trace.json")
    assert says(tmp_path / "alike")["answer"] == "in part"
    longer = says(tmp_path / "longer")
    assert (longer["answer"], "look at rank 1" in longer["why"]) == ("no", True)


@pytest.mark.parametrize(("job", "code"), [("dp_only", 0), ("without_micro_batches", 2), ("healthy", 0)])
def test_periods_end_with_0_where_nothing_is_to_overlap_and_with_2_where_nothing_shows(job, code):
    found, answer = ask("periods", "--home", home_of(job))
    assert (found, answer["certain"]) == (code, code == 0)
    assert (answer["reason"] is None) == (job == "healthy")


@pytest.mark.parametrize("threshold", [0.1, 0.99])
def test_a_pair_that_is_judged_over_fewer_than_all_its_ranks_ends_with_2_and_says_so(threshold, tmp_path):
    pairs = tmp_path / "pairs.toml"
    pairs.write_text(f'[[pair]]\nname = "first"\nstages = [0, 1]\nthreshold = {threshold}\n')
    words = ["gate", "--pairs", str(pairs), "--home", str(home_of("blind_rank"))]
    result = CliRunner().invoke(app, words)
    why = "is judged over fewer than all its ranks: pipeline 1: no forward and backward steps are known of stage 1"
    assert getattr(result.exception, "exit_code", result.exit_code) == 2
    assert why in result.stdout and why in str(result.exception)
    assert ("passed, PARTIAL" if threshold < 0.5 else "FAILED, PARTIAL") in result.stdout
    [row] = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert (row["passed"], row["over_fewer_ranks"]) == (threshold < 0.5, True)
    assert (row["ranks"], row["ranks_without"]) == (1, 1)


def test_clocks_end_with_2_where_a_rank_has_none_that_is_solved(homes):
    for name, code in (("whole", 0), ("scattered", 2)):
        found, answer = ask("clocks", "--home", homes[name])
        assert (found, answer["clocks"]["solved"] == answer["clocks"]["ranks"]) == (code, code == 0)


def test_ranks_that_hold_different_training_steps_are_no_whole_iteration(tmp_path):
    mixed, other = healthy(world=4).write(tmp_path / "job", step=7), healthy(world=4).write(tmp_path / "other", step=8)
    for at in (mixed, other):
        assert len(list(at.rglob("*rank*1*.json"))) == 1
    shutil.copy(next(other.rglob("*rank*1*.json")), next(mixed.rglob("*rank*1*.json")))
    result = CliRunner().invoke(app, ["analyze", str(mixed), "--home", str(tmp_path / "home"), "--json"])
    [answer] = json.loads(result.stdout)
    assert getattr(result.exception, "exit_code", result.exit_code) == 2
    assert answer["partial"] and answer["measures"]["partial"]
    assert answer["different_steps"] == [{"steps": [7], "ranks": [0, 2, 3]}, {"steps": [8], "ranks": [1]}]
    assert "its ranks hold different training steps (step 7 on ranks 0, 2–3; step 8 on rank 1)" in result.stderr


@pytest.mark.long
def test_stages_that_hold_different_numbers_of_micro_batches_are_no_whole_iteration(tmp_path):
    """Each file alone is whole; doctor sees it before anything is computed."""
    job = JobSettings(pp=2, layers=2, microbatches=4, iterations=1, seed=3)
    mixed = simulate(job, tmp_path / "job", workers=1)
    other = simulate(replace(job, microbatches=3), tmp_path / "other", workers=1)
    shutil.copy(next(other.rglob("rank_0001_*.json.gz")), next(mixed.rglob("rank_0001_*.json.gz")))
    home = str(tmp_path / "home")
    result = CliRunner().invoke(app, ["doctor", str(mixed), "--home", home])
    assert getattr(result.exception, "exit_code", result.exit_code) == 2
    assert "training step 10 are of 3 and 3 micro-batches, those of rank 0 of 4 and 4" in " ".join(
        result.stdout.split()
    )
    result = CliRunner().invoke(app, ["analyze", str(mixed), "--home", home, "--json"])
    [answer] = json.loads(result.stdout)
    assert getattr(result.exception, "exit_code", result.exit_code) == 2 and answer["partial"]
    held = [{"step": 10, "forward": count, "backward": count, "ranks": [rank]} for rank, count in ((0, 4), (1, 3))]
    assert answer["different_microbatches"] == held and answer["partial_ranks"] == []
    assert "(4 forward and 4 backward on rank 0; 3 forward and 3 backward on rank 1)" in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["analyze", "{traces}", "--home", "{loop}"], marks=pytest.mark.long),
        ["classify", "{trace}", "--output", "{loop}"],
    ],
)
def test_a_link_that_leads_to_itself_is_one_line(words, tmp_path):
    traces, loop = healthy(world=2).write(tmp_path / "job"), tmp_path / "loop.parquet"
    loop.symlink_to(loop)
    places = {"traces": traces, "trace": next(traces.rglob("*.json")), "loop": loop}
    program = [sys.executable, "-m", "traceviz_dag.commands.main", *(word.format(**places) for word in words)]
    ended = subprocess.run(program, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ended.returncode == 2
    [line] = ended.stderr.splitlines()
    assert "loop.parquet" in line and "fault of traceviz" not in line


def test_findings_of_a_served_model_say_so_in_their_first_line(tmp_path):
    file = KinetoFile()
    for start in range(0, 5_000_000, 500_000):
        file.operator("vllm::unified_attention", start, start + 9_000)
        file.kernel(GEMM, start + 8_000, start + 20_000, launched=start + 3_000)
    file.write(tmp_path / "serve/rank_0.json")
    answers = [
        CliRunner().invoke(app, [*words, "--home", str(tmp_path / "home")]).stdout
        for words in (["analyze", str(tmp_path / "serve")], ["findings"])
    ]
    assert all(" · inference" in answer.strip().splitlines()[0] for answer in answers)
    assert "makes the step" not in answers[1] and "of the step wide" not in answers[1]
    assert "--cuda-graph-impl" not in answers[1] and "optimizer" not in answers[1]

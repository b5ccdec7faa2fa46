"""Every number that the commands print is that of the tables: each line is read, and held against SQL."""

from __future__ import annotations

import re

import pytest
import typer
from typer.testing import CliRunner

from tests.commands.jobs import JOBS, analysed_at, home_of, traces_of
from tests.commands.printed import Reader
from tests.commands.sentences import SENTENCES, TABLES
from tests.commands.what_doctor_says import hold
from tests.show.drawn import title
from traceviz_dag.commands.clocks import clocks
from traceviz_dag.commands.common.summary import iteration_summary, print_summary
from traceviz_dag.commands.doctor.doctor import _captures, doctor
from traceviz_dag.commands.iterations import iterations
from traceviz_dag.commands.overlap import overlap
from traceviz_dag.commands.periods import periods
from traceviz_dag.commands.pipelines import pipelines
from traceviz_dag.errors import IncompleteError, NoEvidenceError
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.orchestration.orchestrate import IterationResult
from traceviz_dag.pipeline.figures import LakeSource
from traceviz_dag.show.figures.bubble_waterfall import draw_bubble_waterfall
from traceviz_dag.show.figures.pipeline_group import draw_pipeline_group
from traceviz_dag.show.figures.rank_timeline import draw_rank_timeline

COMMANDS = {"clocks": clocks, "iterations": iterations, "overlap": overlap, "periods": periods, "pipelines": pipelines}

LACKS_RANKS = ("one_rank", "missing_stage")
"""Jobs of which not every rank has a trace: all answers are partial."""

SAYS_NOTHING = {
    ("one_rank", "pipelines"): None,
    ("missing_stage", "pipelines"): None,
    ("without_topology", "pipelines"): "no pipeline is known",
    ("without_micro_batches", "pipelines"): "no micro-batch is known",
    ("without_micro_batches", "periods"): "no micro-batch is known",
}
"""(job, command) → why it ends with 2."""


def run(command, *words: object) -> tuple[str, BaseException | None]:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command)
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(
        result.exception, NoEvidenceError | IncompleteError | SystemExit
    ):
        raise result.exception
    return result.output, result.exception


def reader(job: str) -> Reader:
    return Reader(open_lake(home_of(job)), SENTENCES, TABLES)


@pytest.mark.parametrize("job", JOBS)
def test_the_summary_of_a_job_is_what_its_tables_say(job, capsys):
    found = analysed_at(traces_of(job))
    reading = reader(job)
    for each in found:
        result = IterationResult(f"{each.run}@{each.iteration}", each.run, each.iteration, each.ranks, aggregated=True)
        summary = iteration_summary(home_of(job), result)
        print_summary(summary)
        reading.check(capsys.readouterr().out)
        lines = [line for line in reading.read if "outside the training steps" in line]
        assert bool(lines) == ((summary["windows"]["outside_share"] or 0) >= 0.0005)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("job", JOBS)
def test_what_a_command_prints_is_what_the_tables_say(job, command):
    output, error = run(COMMANDS[command], "--home", home_of(job))
    reading = reader(job)
    reading.check(output)
    assert reading.read, "nothing was said"
    if isinstance(error, NoEvidenceError):
        assert (job, command) in SAYS_NOTHING and (SAYS_NOTHING[job, command] or "") in str(error)
    else:
        assert (job, command) not in SAYS_NOTHING or job in LACKS_RANKS
        # iterations lists what is in the home, and marks the partial ones.
        whole = job not in LACKS_RANKS or command == "iterations"
        assert error is None if whole else isinstance(error, IncompleteError)


@pytest.mark.parametrize(
    ("true", "false"),
    [
        (r"above the mean of the 2 stages", "above the mean of the 3 stages"),
        (r"ms of computation a micro-batch", "ms of computation in a step of 10"),
        (r"longest of 2 steps", "longest of 3 steps"),
        (r"exposed communication (\d)", r"exposed communication 1\1"),
    ],
)
def test_a_number_that_is_not_so_does_not_pass(true, false, capsys):
    (each,) = analysed_at(traces_of("two_steps"))
    result = IterationResult(f"{each.run}@10", each.run, each.iteration, each.ranks, aggregated=True)
    print_summary(iteration_summary(home_of("two_steps"), result))
    output = capsys.readouterr().out
    wrong = re.sub(true, false, output)
    assert wrong != output
    with pytest.raises(AssertionError):
        reader("two_steps").check(wrong)


@pytest.mark.parametrize("job", [name for name in JOBS if name != "two_iterations"])
def test_what_doctor_answers_is_what_its_tables_say_and_what_analysis_gives(job):
    (capture,) = _captures(traces_of(job), home_of(job))
    (each,) = analysed_at(traces_of(job))
    output, _ = run(doctor, traces_of(job))
    reading = reader(job)
    reading.sentence(output.strip().splitlines()[0])
    for answer in capture.answers:
        for part in answer.why.split("; "):
            reading.sentence(part)
        hold(each, answer)


@pytest.mark.parametrize("job", ["healthy", "bad_split", "alone_in_stage", "two_steps"])
def test_titles_of_figures_say_what_the_tables_say(job):
    (each,) = analysed_at(traces_of(job))
    reading = reader(job)
    reading.place = {"run": each.run, "iteration": each.iteration}
    source = LakeSource(each.lake, each.run, each.iteration)
    drawn = [draw_pipeline_group(source, 0), draw_bubble_waterfall(source), draw_rank_timeline(source, 0)]
    for figure in drawn:
        for sentence in title(figure).split("; "):
            reading.sentence(sentence)
    assert ("step 10" in title(drawn[-1])) == (job == "two_steps")


@pytest.mark.parametrize(
    "path",
    [
        "kineto/dlrm8",
        "kineto/hta/nccl_parser_config.json.gz",
        "kineto/tracelens/b200_vllm_eager.json.gz",
        "kineto/hta_sync/alexnet.json.gz",
        "megatron_gpu/pp4_1f1b",
        "megatron_gpu/tp2_pp2_vpp2_full",
        "megatron_gpu/pp2_ep2_moe",
        "megatron_cpu/pp2_dp2_distopt_overlap",
    ],
)
def test_what_doctor_answers_of_real_traces_is_what_analysis_gives(path, shared_data, tmp_path):
    (capture, *_) = _captures(shared_data / path, tmp_path)
    (each, *_) = [found for found in analysed_at(shared_data / path) if found.iteration == capture.iteration]
    for answer in capture.answers:
        hold(each, answer)

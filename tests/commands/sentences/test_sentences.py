"""Every number that the commands print is that of the tables: each line is read, and held against SQL."""

from __future__ import annotations

import re
from functools import cache
from itertools import product

import pytest
import typer
from typer.testing import CliRunner

from tests.commands.jobs import JOBS, analysed_at, home_of, traces_of
from tests.commands.sentences.of_causes import CAUSES, CAUSES_TABLES, TITLES_OF_CAUSES
from tests.commands.sentences.of_commands import EARLIER, SENTENCES, TABLES
from tests.commands.sentences.of_kernels import (
    KERNELS,
    KERNELS_TABLES,
    LENGTHS,
    LENGTHS_TABLES,
    MODULES,
    MODULES_TABLES,
    UTILIZATION,
    UTILIZATION_TABLES,
)
from tests.commands.sentences.of_topology import GATE, GATE_TABLES, PAIRS, TOPOLOGY, TOPOLOGY_TABLES
from tests.commands.sentences.of_truth import ACCURACY, ACCURACY_TABLES, WithTruth
from tests.commands.sentences.of_waits import WAIT_MAP, WAIT_TABLES, WAITS
from tests.commands.sentences.printed import Home, Reader
from tests.commands.sentences.what_doctor_says import hold
from tests.sets import fast
from tests.show.drawn import texts, title
from tests.show.job import empty_table
from traceviz_dag.commands.accuracy import accuracy
from traceviz_dag.commands.clocks import clocks
from traceviz_dag.commands.common.output import at_most
from traceviz_dag.commands.common.summary import iteration_summary, print_summary
from traceviz_dag.commands.critical_path.critical_path import critical_path
from traceviz_dag.commands.doctor.doctor import _captures, _print_captures
from traceviz_dag.commands.efficiencies import efficiencies
from traceviz_dag.commands.gate import gate
from traceviz_dag.commands.iterations import iterations
from traceviz_dag.commands.kernels.kernels import kernels
from traceviz_dag.commands.overlap import overlap
from traceviz_dag.commands.periods import periods
from traceviz_dag.commands.pipelines import pipelines
from traceviz_dag.commands.topology import topology
from traceviz_dag.commands.utilization import utilization
from traceviz_dag.commands.waits import waits
from traceviz_dag.commands.what_if.what_if import what_if
from traceviz_dag.errors import IncompleteError, NoEvidenceError, UsageError
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.pipeline.analysis import IterationResult
from traceviz_dag.pipeline.lake_source import LakeSource
from traceviz_dag.show.figures.bubble_waterfall import draw_bubble_waterfall
from traceviz_dag.show.figures.critical_path import draw_critical_path
from traceviz_dag.show.figures.efficiency_tree import draw_efficiency_tree
from traceviz_dag.show.figures.pipeline_group import draw_pipeline_group
from traceviz_dag.show.figures.predicted_gains import draw_predicted_gains
from traceviz_dag.show.figures.rank_timeline import draw_rank_timeline
from traceviz_dag.show.figures.wait_map import draw_wait_map

COMMANDS = {
    **{"clocks": clocks, "iterations": iterations, "overlap": overlap, "periods": periods, "pipelines": pipelines},
    **{
        "waits": waits,
        "critical-path": critical_path,
        "what-if": what_if,
        "efficiencies": efficiencies,
        "kernels": kernels,
        "utilization": utilization,
    },
}

ALL_SENTENCES = (*CAUSES, *KERNELS, *UTILIZATION, *WAITS, *WAIT_MAP, *TOPOLOGY, *GATE, *SENTENCES)
ALL_TABLES = (
    *CAUSES_TABLES,
    *KERNELS_TABLES,
    *UTILIZATION_TABLES,
    *WAIT_TABLES,
    *TOPOLOGY_TABLES,
    *GATE_TABLES,
    *TABLES,
)

LACKS_RANKS = ("one_rank", "missing_stage", "split_pipelines")
"""Jobs of which not every rank has a trace: all answers are partial."""

WITHOUT_CLOCKS = ("without_clocks", "clock_ahead", "scattered")
"""Jobs of one stage, a few kernels each, whose clocks nothing solves."""

SAYS_NOTHING = {
    **{(job, "pipelines"): "no pipeline is known" for job in WITHOUT_CLOCKS},
    **{(job, "periods"): "no micro-batch is known" for job in WITHOUT_CLOCKS},
    **{(job, "utilization"): "neither MFU nor HFU is known" for job in WITHOUT_CLOCKS},
    ("without_micro_batches", "utilization"): "neither MFU nor HFU is known",
    ("one_rank", "pipelines"): None,
    ("missing_stage", "pipelines"): None,
    ("without_topology", "pipelines"): "no pipeline is known",
    ("without_micro_batches", "pipelines"): "no micro-batch is known",
    ("without_micro_batches", "periods"): "no micro-batch is known",
    ("without_topology", "waits"): "have no certain wait",
    ("without_topology", "critical-path"): "so the path may run on other ranks",
    ("blind_rank", "critical-path"): "so the path may run on other ranks",
    ("without_topology", "efficiencies"): "so what of them is transfer is not known",
    ("blind_rank", "efficiencies"): "so what of them is transfer is not known",
    ("without_micro_batches", "efficiencies"): "no matched communication ties ranks 1–3 to rank 0",
    ("one_rank", "efficiencies"): "1 of 4 ranks were read",
    ("missing_stage", "efficiencies"): "3 of 4 ranks were read",
    ("split_pipelines", "efficiencies"): "2 of 4 ranks were read",
    ("blind_rank", "waits"): "have no certain wait",
    ("scattered", "waits"): "have no certain wait",
    ("blind_rank", "pipelines"): "not every bubble can be parted",
    ("blind_rank", "periods"): "are those of fewer than all ranks",
}
"""(job, command) → why it ends with 2."""


def run(command, *words: object) -> tuple[str, BaseException | None]:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command)
    with at_most(0):
        result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(
        result.exception, NoEvidenceError | IncompleteError | UsageError | SystemExit
    ):
        raise result.exception
    return result.output, result.exception


class WithoutFindings(LakeSource):
    """Tables of an iteration without findings: titles of figures are then their own."""

    def table(self, name, columns, rank=None):
        return empty_table(name, columns) if name == "findings" else super().table(name, columns, rank)


def own_title(draw, source: LakeSource, *words: object) -> str | None:
    """The title of a figure without the verdict, which it leads with where it names somebody or one of its edits."""
    own, led = draw(WithoutFindings(source.lake, source.run, source.iteration), *words), draw(source, *words)
    if own is None or led is None:
        assert own is led is None
        return None
    if title(led) != title(own):
        statements = {row["statement"] for row in source.table("findings", ("statement",)).to_pylist()}
        assert title(led).removeprefix(f"{title(own).split(': ')[0]}: ").removesuffix(" (PARTIAL trace)") in statements
    return title(own)


def reader(job: str) -> Reader:
    return Reader(Home(home_of(job)), ALL_SENTENCES, ALL_TABLES)


SAY_NOTHING_MORE = (
    *(
        "bad_split",
        "two_iterations",
        "with_sizes",
        "clock_ahead",
        "missing_stage",
        "bursts",
        "without_stacks",
        "split_pipelines",
    ),
)
"""Jobs of which commands print next to no sentence that they do not print of others, too."""

MOST_JOBS = fast(JOBS, *(name for name in JOBS if name not in SAY_NOTHING_MORE))

SUMMED_UP_LIKE_OTHERS = ("without_clocks",)
"""More jobs whose summaries take no way through the code that those of others do not take."""

ANSWERED_LIKE_OTHERS = (
    *("alone_in_stage", "slow_link", "slow_rank", "two_steps", "without_clocks", "split_pipelines", "dp_only"),
)
"""Of which ``doctor`` takes no way of its own."""

COMMANDS_OF = {
    "waits": (
        "slow_rank",
        "slow_link",
        "uneven_experts",
        "blind_rank",
        "scattered",
        "without_clocks",
    ),
    "pipelines": ("slow_rank", "dp_only", "blind_rank", "scattered", "without_micro_batches"),
    "periods": ("slow_link", "dp_only", "blind_rank", "without_topology", "without_micro_batches"),
    "critical-path": ("healthy", "two_steps", "without_topology", "without_micro_batches"),
    "efficiencies": ("slow_link", "without_clocks"),
    "what-if": ("slow_rank", "without_micro_batches"),
    "clocks": ("one_rank", "scattered", "without_micro_batches"),
    "overlap": ("one_rank", "two_steps"),
    "iterations": ("one_rank", "two_steps"),
    "kernels": ("slow_rank", "one_rank"),
    "utilization": ("with_sizes", "two_steps", "one_rank", "without_clocks"),
}
"""Command → the jobs of which it prints what it prints of no other; of split_pipelines in the long set."""


_TOO_WIDE = ("with_sizes", "kernels")
"""Of which a table is wider than a page: its last columns come below, as the reader of printed tables has none."""


@pytest.mark.parametrize(
    "job", fast(JOBS, *(name for name in JOBS if name not in (*SAY_NOTHING_MORE, *SUMMED_UP_LIKE_OTHERS)))
)
def test_the_summary_of_a_job_is_what_its_tables_say(job, capsys):
    found = analysed_at(traces_of(job))
    reading = reader(job)
    for each in found:
        result = IterationResult(f"{each.run}@{each.iteration}", each.run, each.iteration, each.ranks, aggregated=True)
        summary = iteration_summary(open_lake(home_of(job)), result)
        print_summary(summary)
        reading.check(capsys.readouterr().out)
        lines = [line for line in reading.read if "outside the training steps" in line]
        assert bool(lines) == ((summary["windows"]["outside_share"] or 0) >= 0.0005)


@pytest.mark.parametrize(
    ("job", "command"),
    fast(
        [each for each in product(JOBS, COMMANDS) if each != _TOO_WIDE],
        *((job, command) for command, jobs in COMMANDS_OF.items() for job in jobs),
    ),
)
def test_what_a_command_prints_is_what_the_tables_say(job, command):
    output, error = run(COMMANDS[command], "--home", home_of(job))
    reading = reader(job)
    reading.check(output)
    assert reading.read, "nothing was said"
    if isinstance(error, NoEvidenceError):
        assert (job, command) in SAYS_NOTHING and (SAYS_NOTHING[job, command] or "") in str(error)
        if command == "waits" or (job == "blind_rank" and command == "periods"):
            reading.sentence(str(error))
    else:
        assert (job, command) not in SAYS_NOTHING or job in LACKS_RANKS
        whole = job not in LACKS_RANKS
        # Without a communication no clock is solved, and clocks says so with 2.
        whole &= command != "clocks" or job not in (*WITHOUT_CLOCKS, "without_micro_batches")
        assert error is None if whole else isinstance(error, IncompleteError)


@pytest.mark.parametrize(
    "job", fast(["slow_rank", "without_stacks", "uneven_experts", "two_iterations"], "slow_rank", "without_stacks")
)
def test_what_kernels_prints_by_module_is_what_the_tables_say(job):
    output, error = run(kernels, "--home", home_of(job), "--by", "module")
    if isinstance(error, NoEvidenceError):
        assert "no module is recorded" in str(error)
        return
    reading = Reader(Home(home_of(job)), (*MODULES, *EARLIER), MODULES_TABLES)
    reading.check(output)
    assert len(reading.read) >= 3


@pytest.mark.parametrize("job", ["slow_rank", "without_stacks", "uneven_experts"])
def test_what_kernels_prints_by_length_is_what_the_tables_say(job):
    output, error = run(kernels, "--home", home_of(job), "--by", "length")
    reading = Reader(Home(home_of(job)), LENGTHS, LENGTHS_TABLES)
    reading.check(output)
    assert error is None and len(reading.read) >= 4


@pytest.mark.parametrize("job", MOST_JOBS)
def test_what_topology_prints_is_what_the_tables_say(job):
    output, error = run(topology, traces_of(job))
    reading = reader(job)
    reading.check(output)
    assert error is None and len(reading.read) >= 4 + (len(analysed_at(traces_of(job))) > 1)


@pytest.mark.parametrize("job", fast(JOBS, "healthy", "one_rank", "blind_rank", "slow_link", "without_topology"))
def test_what_the_gate_judges_is_what_the_tables_say(job, tmp_path):
    (tmp_path / "pairs.toml").write_text(PAIRS)
    output, error = run(gate, "--pairs", tmp_path / "pairs.toml", "--home", home_of(job))
    reading = reader(job)
    reading.check(output)
    assert "OverlapScore gate" in reading.read
    if isinstance(error, UsageError):
        reading.sentence(str(error))
    elif job not in LACKS_RANKS:
        assert "FAILED" in output and getattr(error, "code", None) == 1


@pytest.mark.parametrize(
    "job", fast(["slow_rank", "two_steps", "missing_stage", "without_topology"], "slow_rank", "without_topology")
)
def test_what_accuracy_prints_is_so_by_the_truth_beside_the_traces(job):
    output, error = run(accuracy, traces_of(job), "--home", home_of(job))
    reading = Reader(WithTruth(Home(home_of(job)), traces_of(job)), ACCURACY, ACCURACY_TABLES)
    reading.check(output)
    assert error is None and len(reading.read) >= 6


@pytest.mark.parametrize(
    "job", fast(JOBS, "blind_rank", "uneven_experts", "without_clocks", "alone_in_stage", "scattered", "slow_rank")
)
def test_the_title_of_the_wait_map_is_what_the_tables_and_waits_say(job):
    for each in analysed_at(traces_of(job)):
        reading = reader(job)
        reading.place = {"run": each.run, "iteration": each.iteration}
        found = own_title(draw_wait_map, LakeSource(each.lake, each.run, each.iteration))
        told = each.lake.query("FROM collectives WHERE clocks IS NOT NULL AND fault IS NULL").num_rows
        assert (found is None) == (told == 0)
        for sentence in found.split("; ") if found else ():
            reading.sentence(sentence)


@pytest.mark.parametrize(
    ("true", "false"),
    [
        (r"above the mean of the 2 stages", "above the mean of the 3 stages"),
        (r"ms of computation per micro-batch", "ms of computation in a step of 10"),
        (r"longest of 2 steps", "longest of 3 steps"),
        (r"exposed communication (\d)", r"exposed communication 1\1"),
        (r"MFU (\d)", r"MFU 1\1"),
        (r"of 989 TFLOP/s", "of 835 TFLOP/s"),
    ],
)
def test_a_number_that_is_not_so_does_not_pass(true, false, capsys):
    (each,) = analysed_at(traces_of("two_steps"))
    result = IterationResult(f"{each.run}@10", each.run, each.iteration, each.ranks, aggregated=True)
    print_summary(iteration_summary(open_lake(home_of("two_steps")), result))
    output = capsys.readouterr().out
    wrong = re.sub(true, false, output)
    assert wrong != output
    with pytest.raises(AssertionError):
        reader("two_steps").check(wrong)


FALSE = [
    ("waits", "slow_rank", r"delayed its peers by (\d)", r"delayed its peers by 1\1"),
    ("waits", "slow_rank", r"ms of its own \([\w ]+\)", "ms of its own (host)"),
    ("waits", "slow_rank", r"([\d.]+) % of the step", r"1\1 % of the step"),
    ("waits", "slow_rank", r"last in (\d+) of", r"last in 1\1 of"),
    ("waits", "slow_rank", r"(\n +5 +124 .*)yes", r"\1no "),
    ("waits", "slow_rank", r"(\n +TP +\d+ +)(\d)", r"\g<1>1\2"),
    ("waits", "slow_rank", r"(\n +4 +5 +TP +)(\d)", r"\g<1>1\2"),
    ("waits", "slow_rank", "ends agree within 0.1 µs", "ends agree within 0.2 µs"),
    ("waits", "healthy", "no rank is to blame .*", "nobody can be blamed: no wait among peers of one stage is known"),
    (
        "waits",
        "missing_stage",
        r"in the (\d+) of (\d+) communication kernels",
        r"in the \2 of \2 communication kernels",
    ),
    ("waits", "slow_link", "take 3.5 times", "take 3.6 times"),
    ("waits", "slow_link", "slow links inside its node", "slow links to other nodes"),
    (
        "waits",
        "slow_link",
        "rank 3 has slow links to other nodes: .*",
        "rank 7 has slow links to other nodes: its transfers take 5.1 times the usual",
    ),
    ("waits", "uneven_experts", "experts of rank 0 take", "experts of rank 2 take"),
    ("waits", "uneven_experts", "take 1.70 times the mean", "take 1.71 times the mean"),
    ("waits", "without_clocks", "waits of 16 comm", "waits of 15 comm"),
    (
        "waits",
        "clock_ahead",
        "waits of 8 comm.*",
        "no wait is known for 8 matched communication kernels: neither solved clocks nor durations show it",
    ),
    ("waits", "scattered", "known for 48 matched", "known for 47 matched"),
    ("waits", "missing_stage", "members missing, peer missing", "peer missing"),
    ("waits", "alone_in_stage", "nobody can be blamed: .*", "no rank is to blame for the waiting of its stage's peers"),
    (
        "waits",
        "healthy",
        r"(no rank is to blame)",
        r"no rank can be compared with peers of its stage: no kernel ran equally often on all ranks of a stage (\n\1",
    ),
    ("critical-path", "slow_rank", r"runs on rank (\d)", r"runs on rank 1\1"),
    ("critical-path", "slow_rank", r"on (\d) ranks in all", r"on 1\1 ranks in all"),
    ("critical-path", "slow_rank", r"(\d+) of (\d+) items", r"1\1 of \2 items"),
    ("critical-path", "slow_rank", r"(\d+) inferred", r"1\1 inferred"),
    ("critical-path", "slow_rank", r"(\n +work +)(\d)", r"\g<1>1\2"),
    ("critical-path", "slow_rank", r"(\n +PP communication +)(\d)", r"\g<1>1\2"),
    ("critical-path", "two_steps", "2 steps, ", "3 steps, "),
    ("critical-path", "bad_split", r"(\n +backward computation +[\d.]+ +)(\d)([\d.]+ +\d+\.)", r"\g<1>1\2\3"),
    ("what-if", "slow_rank", "fix rank 5", "fix rank 4"),
    ("what-if", "slow_rank", r"(fix rank 5 +)(\d)", r"\g<1>1\2"),
    ("what-if", "two_steps", "2 steps, ", "3 steps, "),
    ("topology", "healthy", "world size 4", "world size 5"),
    ("topology", "healthy", "from distributed_info, text_file", "from distributed_info"),
    ("topology", "healthy", r"(\n +0 +2 +)\[0, 2\]", r"\1[2, 0]"),
    ("topology", "healthy", r"(complete model +1 +2 +)\[1, 3\]", r"\1[0, 3]"),
    ("topology", "healthy", r"(EMBEDDING_GROUP +embedding +\w+ +)2", r"\g<1>3"),
    ("gate", "healthy", r"passed( +)(\d)", r"FAILED\1\2"),
    ("gate", "healthy", r"passed( +)0\.(\d)", r"passed\g<1>1.\2"),
    ("gate", "dp_only", "has no pair of stages 0 and 1", "has no pair of computation and pp communication"),
    ("gate", "blind_rank", r"passed, PARTIAL", "passed         "),
    ("gate", "blind_rank", r"pipeline 1: no forward", "pipeline 0: no forward"),
    ("gate", "blind_rank", "is judged over fewer than all its ranks", "leaves out ranks with nothing to overlap"),
    ("gate", "healthy", "ranks 0–1: no dp", "ranks 0–2: no dp"),
    ("periods", "slow_link", "(two modes: )50 %", r"\g<1>51 %"),
    ("periods", "slow_link", r"(\d)(\d\d ms, 50 % near)", r"8\1\2"),
    ("periods", "blind_rank", r"1 of 2 ranks have", "1 of 3 ranks have"),
    ("periods", "blind_rank", r"PARTIAL, 1 of", "1 of"),
    ("periods", "split_pipelines", r"pipeline 0: (.*) stage 1;", r"pipeline 0: \1 stage 0;"),
    ("accuracy", "slow_rank", r"(\d+) ranks read", r"1\1 ranks read"),
    ("accuracy", "slow_rank", r"spans: (\d+) of", r"spans: 1\1 of"),
    ("accuracy", "slow_rank", r"rows: (\d+) of (\d+) equal", r"rows: \1 of 1\2 equal"),
    ("accuracy", "slow_rank", r"(\n +microbatch +)100\.0%", r"\g<1>99.99%"),
    ("accuracy", "slow_rank", r"(\n +memory +)(\d)", r"\g<1>1\2"),
    ("accuracy", "slow_rank", r"(autograd_node +)(\d)", r"\g<1>1\2"),
]
"""(command, job, what it prints, what would be false instead)."""


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """(command, job) → what the command prints of it, asked once."""
    pairs = tmp_path_factory.mktemp("pairs") / "pairs.toml"
    pairs.write_text(PAIRS)

    @cache
    def output(command: str, job: str) -> str:
        words = {
            "waits": (waits, "--home", home_of(job)),
            "critical-path": (critical_path, "--home", home_of(job)),
            "what-if": (what_if, "--home", home_of(job)),
            "periods": (periods, "--home", home_of(job)),
            "topology": (topology, traces_of(job)),
            "gate": (gate, "--pairs", pairs, "--home", home_of(job)),
            "accuracy": (accuracy, traces_of(job), "--home", home_of(job)),
        }
        return run(*words[command])[0]

    return output


@pytest.mark.parametrize(
    ("command", "job", "true", "false"),
    fast(FALSE, *(false for false in FALSE[::3] if false[1] not in SAY_NOTHING_MORE)),
)
def test_no_false_line_of_a_command_passes(command, job, true, false, printed):
    output = printed(command, job)
    wrong = re.sub(true, false, output, count=1)
    assert wrong != output
    reading = reader(job)
    if command == "accuracy":
        reading = Reader(WithTruth(Home(home_of(job)), traces_of(job)), ACCURACY, ACCURACY_TABLES)
    with pytest.raises(AssertionError):
        reading.check(wrong)


# That the ends of communications scatter, so that no clock is solved, is known only by all ranks together.
@pytest.mark.parametrize(
    "job",
    [
        *fast(
            [name for name in JOBS if name not in ("two_iterations", "scattered")],
            *(name for name in JOBS if name not in (*SAY_NOTHING_MORE, *ANSWERED_LIKE_OTHERS, "scattered")),
        )
    ],
)
def test_what_doctor_answers_is_what_its_tables_say_and_what_analysis_gives(job, capsys):
    (capture,) = _captures(traces_of(job), home_of(job))
    (each,) = analysed_at(traces_of(job))
    _print_captures([capture])
    output = capsys.readouterr().out
    reading = reader(job)
    reading.sentence(output.strip().splitlines()[0])
    for answer in capture.answers:
        for part in answer.why.split("; "):
            reading.sentence(part)
        hold(each, answer)


@pytest.mark.parametrize(
    "job", fast(["healthy", "bad_split", "alone_in_stage", "two_steps"], "alone_in_stage", "two_steps")
)
def test_titles_of_figures_say_what_the_tables_say(job):
    (each,) = analysed_at(traces_of(job))
    reading = reader(job)
    reading.place = {"run": each.run, "iteration": each.iteration}
    source = LakeSource(each.lake, each.run, each.iteration)
    drawn = ((draw_pipeline_group, 0), (draw_bubble_waterfall,), (draw_rank_timeline, 0))
    titles = [own_title(draw, source, *words) or "" for draw, *words in drawn]
    for sentence in [sentence for found in titles for sentence in found.split("; ")]:
        reading.sentence(sentence)
    assert ("step 10" in titles[-1]) == (job == "two_steps")


CAUSES_OF = (
    *("healthy", "slow_rank", "bad_split", "two_steps", "dp_only", "uneven_experts", "without_clocks"),
    *("without_micro_batches", "without_topology", *LACKS_RANKS),
)


@cache
def titles_of_causes(job: str) -> list[tuple[Reader, str]]:
    """The sentences in the titles of the figures of causes, each with a reader at its place."""
    found = []
    for each in analysed_at(traces_of(job)):
        reading = Reader(Home(home_of(job)), TITLES_OF_CAUSES, ())
        reading.place = {"run": each.run, "iteration": each.iteration}
        source = LakeSource(each.lake, each.run, each.iteration)
        for draw in (draw_critical_path, draw_predicted_gains, draw_efficiency_tree):
            figure = draw(source)
            if figure is None:
                # Of one rank of several nothing can be predicted.
                assert (job, "efficiencies") in SAYS_NOTHING if draw is draw_efficiency_tree else job == "one_rank"
                continue
            lines = " ".join(texts(figure))
            assert ("PARTIAL" in lines) == (job in LACKS_RANKS)
            found += [(reading, sentence) for sentence in (own_title(draw, source) or "").split("; ")]
    return found


@pytest.mark.parametrize(
    "job",
    fast(
        CAUSES_OF,
        *("slow_rank", "two_steps", "dp_only", "without_micro_batches", "one_rank"),
    ),
)
def test_titles_of_the_path_and_of_gains_say_what_the_tables_say(job):
    found = titles_of_causes(job)
    for reading, sentence in found:
        reading.sentence(sentence)
    assert sum(len(reading.read) for reading in {id(each): each for each, _ in found}.values()) == len(found)


@pytest.mark.parametrize(
    ("job", "true", "false"),
    [
        pytest.param("bad_split", r"limited by stage (\d)", r"limited by stage 1\1", marks=pytest.mark.long),
        pytest.param("bad_split", r" for (\d)", r" for 1\1", marks=pytest.mark.long),
        ("slow_rank", r" of the path is host", " of the path is synchronisation"),
        ("two_steps", r"of 2 steps", "of 3 steps"),
        ("healthy", r"The largest predicted gain is (\d)", r"The largest predicted gain is 1\1"),
    ],
)
def test_a_false_title_does_not_pass(job, true, false):
    wrong = [(reading, re.sub(true, false, said)) for reading, said in titles_of_causes(job) if re.search(true, said)]
    assert wrong
    for reading, sentence in wrong:
        with pytest.raises(AssertionError):
            reading.sentence(sentence)


@pytest.mark.parametrize(
    "path",
    [
        "kineto/hta_sync/alexnet.json.gz",
        *(
            pytest.param(path, marks=pytest.mark.long)
            for path in (
                "megatron_cpu/pp2_dp2_distopt_overlap",
                "kineto/dlrm8",
                "kineto/hta/nccl_parser_config.json.gz",
                "kineto/tracelens/b200_vllm_eager.json.gz",
                "megatron_gpu/pp4_1f1b",
                "megatron_gpu/tp2_pp2_vpp2_full",
                "megatron_gpu/pp2_ep2_moe",
            )
        ),
    ],
)
def test_what_doctor_answers_of_real_traces_is_what_analysis_gives(path, shared_data, tmp_path):
    (capture, *_) = _captures(shared_data / path, tmp_path)
    (each, *_) = [found for found in analysed_at(shared_data / path) if found.iteration == capture.iteration]
    for answer in capture.answers:
        hold(each, answer)

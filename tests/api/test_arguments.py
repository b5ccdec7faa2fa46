"""Whatever a program passes, a public function answers or raises an error of ours, in one line with what it takes."""

from __future__ import annotations

import math
import shlex
import shutil
import signal
from functools import partial
from inspect import Parameter, signature

import numpy as np
import pytest

import traceviz_dag as tv
from tests.commands.jobs import home_of, traces_of
from tests.damage import call
from tests.in_process import ranks_in_this_process
from tests.sets import fast
from traceviz_dag.commands.what_if.what_if import what_if

ODD = (
    *("", "0", "name", "\ud800", "a\0b", "x" * 300, b"rank", -1, 10**30, 1.5, math.nan, True, [], [[]], ["a", "a"]),
    *([None], {}, {"tp": "x"}, {1: 2}, set(), object(), np.float64(2), np.array([[1]]), range(0), float("inf")),
)
SHORT = ("start_ns", "columns", "number", "run", "fix_ranks", "faster", "least")
FIXED = {"name": "kernels", "query": "SELECT 1", "finding": 1, "kind": "wait_map", "words": "waits"}


def functions() -> dict[str, object]:
    """Each public function of a job, and of an iteration."""
    job = tv.open(home_of("slow_rank"))
    step = job.iteration()
    methods = {f"{type(one).__name__}.{name}": getattr(one, name) for one in (job, step) for name in dir(one)}
    every = {name: one for name, one in methods.items() if "._" not in name and callable(one)}
    return every | {"open": tv.open, "diff": partial(tv.diff, home=job.home)}


NAMED = [(name, parameter) for name, one in functions().items() for parameter in signature(one).parameters]


@pytest.mark.parametrize(("name", "parameter"), fast(NAMED, *(each for each in NAMED if each[1] in SHORT)))
def test_an_odd_argument_is_answered_or_refused_in_one_line(name, parameter):
    function = functions()[name]
    known = signature(function).parameters
    needed = {each: FIXED.get(each, "slow_rank") for each, one in known.items() if one.default is Parameter.empty}
    if name == "Iteration.measure":
        needed["name"] = "exposed_ns"
    for odd in ODD:
        try:
            if known[parameter].kind is Parameter.VAR_POSITIONAL:
                function(odd)
            else:
                function(**{**needed, parameter: odd})
        except tv.TracevizError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda step: step.table("kernels", []), "columns takes a list of different names, such as ['rank'], not []"),
        (lambda step: step.table("kernels", ["name", "name"]), "different names, such as ['rank'], not ['name', 'na"),
        (lambda step: step.table("kernels", "name"), "columns takes a list of different names, such as ['rank'], not"),
        (lambda step: step.overlap(start_ns="0"), "start_ns takes a whole number, not '0'"),
        (lambda step: step.measure("exposed_ns", end_ns=1.5), "end_ns takes a whole number, not 1.5"),
        (lambda step: step.overlap(rank=True), "rank takes a whole number, not True"),
        (lambda step: step.overlap(3), "dimension takes a text, not 3"),
        (lambda step: step.what_if(faster="tp=2"), "faster takes a mapping of names to numbers, not 'tp=2'"),
        (
            lambda step: step.what_if(fix_ranks=[0, 1]),
            "fix_ranks takes a text for ranks that are fixed together, such as",
        ),
        (lambda step: step.what_if(hide=3), "hide takes dimensions, such as 'tp', not 3"),
        (lambda step: step.what_if(fix_links=3), "fix_links takes a text for ranks that are fixed together, such as"),
        (lambda step: step.what_if(fix_ranks="0-99999999999"), "--fix-ranks 0-99999999999: name ranks, as in 0-3,6"),
        (lambda step: step.overlap(end_ns=0), "--end-ns 0 is before the first kernel"),
        (lambda step: step.what_if(no_pauses="no"), "no_pauses takes True or False, not 'no'"),
        (lambda step: tv.diff(step, step, least="1"), "least takes a number, not '1'"),
        (lambda step: tv.open(5), "path takes a path, not 5"),
        (lambda step: tv.analyze(5), "paths takes a path, not 5"),
    ],
)
def test_the_line_says_what_an_argument_takes(ask, words):
    with pytest.raises(tv.UsageError) as raised:
        ask(tv.open(home_of("slow_rank")).iteration())
    assert words in str(raised.value)


def test_numbers_and_truth_values_of_numpy_are_taken():
    step = tv.open(home_of("slow_rank")).iteration()
    assert len(step.table("kernels", ["rank"], rank=np.int64(3))) == len(step.table("kernels", ["rank"], rank=3))
    assert step.what_if(no_pauses=np.bool_(True)).rows == step.what_if(no_pauses=True).rows


def test_a_program_may_limit_the_time_of_a_query_by_a_signal():
    def late(*_: object) -> None:
        raise TimeoutError("no time left")

    job = tv.open(home_of("slow_rank"))
    former = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(TimeoutError, match=r"^no time left$"):
            job.sql("SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range + b.range < 0")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


def test_a_program_may_ask_for_each_edit_of_the_command():
    others = {"path", "steady", "records", "steps", "run", "iteration", "rules", "home", "json"}
    assert set(signature(tv.Iteration.what_if).parameters) - {"self"} == set(signature(what_if).parameters) - others
    step = tv.open(home_of("slow_rank")).iteration()
    assert step.what_if(chunks=2).statement.startswith("2 model chunks a stage: would add ")
    assert "stages must share the layers" in step.what_if(layers="4,4").reason
    assert "nothing shows what is recomputed" in step.what_if(no_recompute="0").reason


@pytest.fixture
def short(tmp_path, monkeypatch):
    """Where jobs of traces keep their tables."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def test_a_closed_job_says_that_it_is_closed(short):
    with ranks_in_this_process():
        job = tv.open(traces_of("slow_rank"))
    step = job.iteration()
    assert len(step.ranks) == 8
    job.close()
    asked = [one for name, one in functions().items() if name.startswith("Iteration.") and name != "Iteration.command"]
    questions = [partial(getattr(step, one.__name__)) for one in asked]
    needed = {"explain": [1], "figure": ["wait_map"], "measure": ["exposed_ns"], "table": ["kernels"]}
    for question in questions:
        with pytest.raises(tv.UsageError, match="is closed, and its tables are gone; open it again"):
            question(*needed.get(question.func.__name__, []))
    for ask in (
        lambda: step.ranks,
        lambda: step.partial,
        lambda: step.step_ns,
        lambda: job.sql("SELECT 1"),
        lambda: job.table("kernels"),
        lambda: tv.diff(step, step),
        lambda: step.measure("step_ns"),
        lambda: step.overlap(start_ns=0),
    ):
        with pytest.raises(tv.UsageError, match="is closed, and its tables are gone; open it again"):
            ask()
    assert not list(short.iterdir())


def test_an_iteration_keeps_the_tables_of_its_traces(short):
    with ranks_in_this_process():
        step = tv.open(traces_of("slow_rank")).iteration()
    assert step.findings().statement == tv.open(home_of("slow_rank")).iteration().findings().statement
    del step
    assert not list(short.iterdir())


@pytest.mark.long
def test_a_comparison_of_traces_names_these_in_its_command(short, tmp_path_factory):
    several = tmp_path_factory.mktemp("several")
    for name in ("two_iterations", "slow_rank"):
        shutil.copytree(traces_of(name), several / name)
    with ranks_in_this_process(), tv.open(traces_of("two_iterations")) as job:
        first, second = job.iterations
        answer = tv.diff(first, second)
        of_home = tv.diff(tv.open(home_of("two_iterations")).iteration(), second)
        printed = call(*shlex.split(answer.command)[1:], "--json")
        assert str(short) not in answer.command
        assert printed.json["step"] == answer.values["step"]
        assert printed.json["parts"] == answer.values["parts"]
        assert str(short) not in of_home.command
        assert call(*shlex.split(of_home.command)[1:], "--json").json["step"] == of_home.values["step"]
    with ranks_in_this_process(), tv.open(several) as job:
        step = job.iteration(run="two_iterations")
        answer = tv.diff(step, step)
        assert call(*shlex.split(answer.command)[1:], "--json").json["parts"] == answer.values["parts"]

"""The evaluations score right answers alone, and tools give the answers: a scripted client has all right."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.evaluations.jobs import WORDS, draw
from benchmarks.evaluations.questions import Question, questions
from benchmarks.evaluations.score import _said
from tests.test_docs import REPOSITORY

SEEDS = (5, 17)


@pytest.mark.parametrize(
    ("question", "said", "right"),
    [
        (Question("", Path(), ("3",)), "It is rank 3.\nANSWER: 3\n", True),
        (Question("", Path(), ("3",)), "ANSWER: 3\nNo, wait.\nanswer: 4.", False),
        (Question("", Path(), ("3",)), "3", False),
        (Question("", Path(), ("3",)), "ANSWER: 3 or 4", False),
        (Question("", Path(), ("unknown",)), "ANSWER: Unknown.", True),
        (Question("", Path(), ("unknown",)), "ANSWER: 0", False),
        (Question("", Path(), ("12.5",), 0.5), "ANSWER: 12.9 ms", True),
        (Question("", Path(), ("12.5",), 0.5), "ANSWER: 13.1", False),
        (Question("", Path(), ("12.5",), 0.5), "ANSWER: unknown", False),
        (Question("", Path(), ("12.5",), 0.5), "ANSWER: nan", False),
        (Question("", Path(), ("3",)), "", False),
        (Question("", Path(), ("3",)), "ANSWER: rank 3", True),
        (Question("", Path(), ("3",)), "**ANSWER: 3**", True),
        (Question("", Path(), ("3",)), "ANSWER: **3**", True),
        (Question("", Path(), ("3",)), "ANSWER: rank 4", False),
        (Question("", Path(), ("25",), 0.5), "ANSWER: 25 %", True),
        (Question("", Path(), ("amber, birch",)), "ANSWER: run Amber,birch.", True),
        (Question("", Path(), ("amber, birch",)), "ANSWER: amber", False),
    ],
)
def test_only_a_right_last_answer_counts(question, said, right):
    assert question.is_right(said) is right


@pytest.mark.parametrize("command", [["no-such-command"], ["printf", r"ANSWER: \377"]])
def test_a_command_that_is_not_there_or_prints_no_text_gives_no_answer(command, tmp_path):
    assert not Question("", tmp_path, ("3",)).is_right(_said(command, "?", tmp_path))


def test_a_folder_of_another_seed_is_refused(tmp_path):
    (tmp_path / "made").write_text("seed 5, layout 2")
    with pytest.raises(SystemExit, match="holds the jobs of seed 5, layout 2; name another folder"):
        draw(8, tmp_path)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[int, Path]:
    """Seed → where its jobs are kept."""
    return {seed: tmp_path_factory.mktemp(f"seed_{seed}") for seed in SEEDS}


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_the_scripted_client_has_all_questions_right_on_jobs_of_another_seed(seed, folders):
    score = [sys.executable, "-m", "benchmarks.evaluations.score", "--seed", str(seed), "--folder", str(folders[seed])]
    ended = subprocess.run(score, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    asked = questions(draw(seed, folders[seed]))
    assert len(asked) == 28
    assert f"{len(asked)} of" in ended.stdout or "30 of 30 right" in ended.stdout
    silent = subprocess.run([*score, "true"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert silent.returncode == 1
    assert "\n0 of " in silent.stdout


@pytest.mark.long
def test_nothing_that_a_question_names_holds_what_is_true(folders):
    for seed, folder in folders.items():
        for question in questions(draw(seed, folder)):
            assert question.home.is_relative_to(folder / "asked")
    for folder in folders.values():
        assert list((folder / "true").rglob("rank_*.parquet"))
        assert not [path for path in (folder / "asked").rglob("*") if "true" in path.name or "truth" in path.name]


@pytest.mark.long
@pytest.mark.parametrize(("seed", "other"), [SEEDS, SEEDS[::-1]])
def test_a_client_that_opens_nothing_has_few_right(seed, other, folders):
    asked, known = (questions(draw(each, folders[each])) for each in (seed, other))
    by_kind = {_kind(question.text): question.true[0] for question in known}
    by_place = [question.true[0] for question in known]
    first = [re.split(r", | and ", question.text.removeprefix("Of the runs "))[0] for question in asked]
    for said in (
        [by_kind.get(_kind(question.text), "unknown") for question in asked],
        by_place,
        first,
        ["unknown"] * len(asked),
        *([str(number)] * len(asked) for number in range(9)),
    ):
        right = [each.is_right(f"ANSWER: {one}") for each, one in zip(asked, said, strict=True)]
        assert sum(right) < 6, [each.text for each, good in zip(asked, right, strict=True) if good]


def _kind(text: str) -> str:
    """A question without its numbers and names of runs."""
    return re.sub(rf"\d+|\b({'|'.join(WORDS)})\b", "…", text)


def test_the_scripted_client_knows_no_job():
    text = (REPOSITORY / "benchmarks/evaluations/scripted.py").read_text()
    assert "evaluations.jobs" not in text
    assert "evaluations.questions" not in text
    assert "truth" not in text

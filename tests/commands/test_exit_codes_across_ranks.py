"""`waits` and `periods` exit with 0 where they answer in full, and with 2 where they cannot; the JSON says the same."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tests.adversarial import healthy, unsolvable_clocks
from tests.analyze.across_ranks import analysed_here
from tests.commands.jobs import home_of
from traceviz_dag.commands.main import app


def ask(*words: object) -> tuple[int, dict]:
    result = CliRunner().invoke(app, [*map(str, words), "--json"])
    return getattr(result.exception, "exit_code", result.exit_code), json.loads(result.stdout)[0]


def test_waits_that_nothing_tells_end_with_2_and_a_healthy_job_with_0(tmp_path):
    answers = {}
    for name, job in {"whole": healthy(meetings=10), "scattered": unsolvable_clocks()}.items():
        analysed_here(job.write(tmp_path / name), tmp_path / f"home_{name}")
        answers[name] = ask("waits", "--home", tmp_path / f"home_{name}")
    code, answer = answers["whole"]
    assert (code, answer["uncertain"], answer["reason"]) == (0, 0, None)
    code, answer = answers["scattered"]
    assert (code, answer["uncertain"]) == (2, answer["communication_kernels"])
    assert "have no certain wait" in answer["reason"]


@pytest.mark.parametrize(("job", "code"), [("dp_only", 0), ("without_micro_batches", 2), ("healthy", 0)])
def test_periods_end_with_0_where_nothing_is_to_overlap_and_with_2_where_nothing_tells(job, code):
    found, answer = ask("periods", "--home", home_of(job))
    assert (found, answer["certain"]) == (code, code == 0)
    assert (answer["reason"] is None) == (job == "healthy")

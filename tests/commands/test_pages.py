"""The commands of the README and of docs/analyze.md do what the pages say, on a job in the place of the reader's."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.analyze.across_ranks import SMALL
from tests.damage import call
from traceviz_dag.simulate import JobSettings, simulate

REPOSITORY = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def traces(tmp_path_factory) -> Path:
    """A folder in the place of /traces: a run job-7 with iteration 120, and a home."""
    folder = tmp_path_factory.mktemp("traces")
    settings = JobSettings(tp=2, pp=2, microbatches=4, first_iteration=120, **{**SMALL, "layers": 4})
    simulate(settings, folder / "job-7", workers=1)
    return folder


def _blocks(page: str, language: str) -> list[str]:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    return [block for said, block in _BLOCK.findall(text) if said == language]


def _commands(page: str) -> list[list[str]]:
    """The calls of a page's blocks, as words; those that make a simulated job have tests of their own."""
    lines = [line for block in _blocks(page, "") for line in block.splitlines()]
    calls = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("traceviz ")]
    return [call for call in calls if not any(word.startswith("/tmp/") for word in call)]


@pytest.mark.parametrize(("page", "least"), [("README.md", 7), ("docs/analyze.md", 12)])
def test_every_command_of_the_page_succeeds(page, least, traces, monkeypatch):
    [rank] = (traces / "job-7/iteration_120").glob("rank_0000*")
    rules = traces / "mine.toml"
    for example in _blocks(page, "toml"):
        # The entry points of another package are no rules: tests/pipeline/test_tables_of_others.py installs them.
        if "[project]" not in example:
            rules.write_text(example)
    places = {"rank_0000.json.gz": str(rank), "rank0.json.gz": str(rank), "mine.toml": str(rules)}
    commands = _commands(page)
    assert len(commands) >= least
    monkeypatch.setenv("TRACEVIZ_HOME", str(traces / "home"))
    for words in commands:
        given = [places.get(word, word.replace("/traces/", f"{traces}/")) for word in words]
        answer = call(*given)
        assert (answer.code, bool(answer.out.strip())) == (0, True), (words, answer.err)

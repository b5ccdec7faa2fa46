"""Without ``--iteration``, commands print the newest iteration of a run, and JSON has all."""

from __future__ import annotations

import re

import pytest

from tests.commands.jobs import home_of
from tests.damage import call
from tests.sets import fast
from traceviz_dag.lake.lake import open_lake

COMMANDS = (
    *("advise", "clocks", "critical-path", "efficiencies", "findings", "kernels", "overlap", "periods", "pipelines"),
    *("topology", "utilization", "waits", "what-if"),
)


@pytest.mark.parametrize("command", fast(COMMANDS, "findings", "what-if", "overlap"))
def test_the_newest_iteration_is_printed_and_a_line_names_the_others(command):
    home = home_of("two_iterations")
    parts = open_lake(home, refresh=False).partitions("kernels")
    [run], (older, newest) = {part.run for part in parts}, sorted({part.iteration for part in parts})
    text = call(command, "--home", home).out
    assert re.search(rf"{run}(,| ·) iteration {newest}\b", text)
    assert not re.search(rf"{run}(,| ·) iteration {older}\b", text)
    assert f"Not printed: iteration {older} of {run}; --iteration shows one, --json has all" in text
    named = call(command, "--home", home, "--iteration", older).out
    assert re.search(rf"{run}(,| ·) iteration {older}\b", named)
    assert "Not printed" not in named
    of_all = call(command, "--home", home, "--json").json
    assert {row["iteration"] for row in of_all} == {older, newest}

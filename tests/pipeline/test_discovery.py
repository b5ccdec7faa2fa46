"""What is found below a path: nothing that is left out is left unnamed."""

from __future__ import annotations

from tests.small_run import rank_file
from traceviz_dag.pipeline.discovery import inputs_below


def test_a_run_of_which_nothing_can_be_placed_is_named_beside_one_that_can(tmp_path):
    for name in ("rank_0000_iter_7.pt.trace.json", "rank_0001_iter_7.pt.trace.json"):
        rank_file(0, 2).write(tmp_path / "copied/iteration_7" / name)
    rank_file(0, 2).write(tmp_path / "sound/iteration_7/rank_0000_iter_7.pt.trace.json")
    (found,) = inputs_below([tmp_path], home=tmp_path / "home")
    assert found.run == "sound"
    (problem,) = found.problems
    assert "copied/iteration_7" in problem and "claimed by" in problem

"""``traceviz kernels``: whose sums its titles say they are, and which operations are rows of their own."""

from __future__ import annotations

import json
import re

from tests.commands.test_ncu import launches, run
from tests.kineto_file import KinetoFile
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.operation_summaries import OPERATIONS_SQL, asked


def test_titles_say_whose_sums_they_are_in_every_way_of_summing():
    home, _ = launches()
    for by in ("operation", "module", "length"):
        printed = " ".join(run("--home", home, "--by", by, "--rank", 1).split())
        assert "all ranks together" not in printed and "rank 1 alone" in printed
        assert "all ranks together" in " ".join(run("--home", home, "--by", by).split())


def test_backward_passes_that_only_their_forward_pass_tells_apart_are_rows_of_their_own():
    home, _ = launches()
    lake = Lake(home)
    (run_name, iteration) = lake.query("SELECT DISTINCT run, iteration FROM operations").to_pylist()[0].values()
    rows = asked(lake, OPERATIONS_SQL, run_name, iteration, rank=None).to_pylist()
    backward = [row for row in rows if row["name"] == "_LinearBackward"]
    assert len(backward) == 2 and len({row["tera_flops_per_s"] for row in backward}) == 2
    assert all(re.match(r"of \[\[", row["shapes"]) for row in backward)


def test_kernels_that_take_no_time_have_no_share_of_it(tmp_path):
    file = KinetoFile()
    for number in range(3):
        file.kernel("gemm", 1_000 + number, 1_000 + number, launched=100 + number)
    (found,) = json.loads(run(file.write(tmp_path / "rank_0.json"), "--by", "length", "--json"))
    (row,) = found["lengths"]
    assert (row["kernels"], row["kernel_ns"], row["kernel_share"], row["time_share"]) == (3, 0, 1.0, None)

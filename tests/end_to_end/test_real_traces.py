"""Every real trace goes the whole way, and the overlap of each equals the values that are known for it."""

from __future__ import annotations

import json

import pytest

from tests.end_to_end.conftest import program, traceviz
from tests.sets import fast
from traceviz_dag.lake.lake import open_lake

FILES = (
    "kineto/hta/nccl_parser_config.json.gz",
    "kineto/hta/ns_resolution_rank-0.json.gz",
    "kineto/hta/trace_filter_rank-0.json.gz",
    "kineto/hta/trace_filter_rank-1.json.gz",
    "kineto/tracelens/b200_vllm_eager.json.gz",
    "kineto/tracelens/mi300_resnet_act_checkpoint.json.gz",
)
FOLDERS = ("kineto/dlrm8", "megatron_gpu", "megatron_cpu")

KNOWN_OVERLAP = {
    # hidden / communication in percent and hidden / min(computation, communication), over the whole file.
    "kineto/hta/trace_filter_rank-0.json.gz": {0: (14.95, 0.282)},
    "kineto/hta/trace_filter_rank-1.json.gz": {1: (19.93, 0.278)},
    "kineto/hta/nccl_parser_config.json.gz": {0: (15.61, 0.156)},
    "kineto/tracelens/mi300_resnet_act_checkpoint.json.gz": {0: (22.22, 0.617)},
    "kineto/dlrm8": {
        0: (4.50, 0.252), 1: (2.47, 0.225), 2: (7.88, 0.257), 3: (3.31, 0.261),
        4: (0.56, 0.033), 5: (0.64, 0.038), 6: (7.56, 0.256), 7: (9.51, 0.157),
    },
}  # fmt: skip


@pytest.mark.long
def test_every_real_trace_goes_the_whole_way(shared_data, home):
    paths = [shared_data / name for name in (*FILES, *FOLDERS)]
    # Of some of them nothing shows who waited for whom: the exit code says so.
    summaries = json.loads(program("analyze", *paths, "--home", home, "--json", code=2).stdout)
    assert not [entry for entry in summaries if entry["failures"]]
    assert not [entry for entry in summaries if entry["ranks_failed"]]
    assert all(entry["aggregated"] for entry in summaries)
    lake = open_lake(home)
    statuses = lake.query("SELECT DISTINCT status FROM traces WHERE file NOT LIKE '%b200%'").to_pylist()
    assert statuses == [{"status": "read"}]
    by_run = lake.query("SELECT run, count(DISTINCT (iteration, rank)) AS parts FROM kernels GROUP BY run").to_pylist()
    parts = {row["run"]: row["parts"] for row in by_run}
    assert parts["dlrm8"] == 8
    assert sum(count for run, count in parts.items() if run.startswith(("pp", "tp"))) == 32
    # Three unrelated jobs in one folder.
    steps = lake.query("SELECT run, list(DISTINCT iteration ORDER BY iteration) AS steps FROM kernels GROUP BY run")
    assert {row["run"]: row["steps"] for row in steps.to_pylist() if row["run"].startswith("hta-")} == {
        "hta-nccl_parser_config": [4, 5, 6],
        "hta-ns_resolution_rank-0": [101, 102, 103, 104, 105],
        "hta-trace_filter_rank-0": [551, 552],
    }
    stored = str([lake.table(name).arrow().to_pylist() for name in ("traces", "topology", "process_groups", "runs")])
    listed = "".join(path.read_text() for path in (home / "inputs").glob("*.json"))
    for secret in ("twshared", "mast_hpc", "sraikund"):
        assert secret not in stored + listed, "host and user names of a header must not be kept"


@pytest.mark.parametrize("name", fast(KNOWN_OVERLAP, *list(KNOWN_OVERLAP)[::2]))
def test_overlap_of_a_file_equals_the_known_values(shared_data, name):
    rows = json.loads(traceviz("overlap", shared_data / name, "--window", "file", "--json").stdout)
    found = {
        row["rank"]: (round(100 * row["hidden_share"], 2), round(row["hidden_over_min"], 3))
        for row in rows
        if row["dimension"] == "all"
    }
    assert found == KNOWN_OVERLAP[name]

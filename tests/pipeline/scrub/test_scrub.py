"""Scrubbed traces tell nothing of their site, and are analysed to the same numbers."""

from __future__ import annotations

import gzip
import json
import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analyze.across_ranks import SMALL, analysed_here, store_across_ranks
from traceviz_dag.errors import UsageError
from traceviz_dag.pipeline.scrub.folder import scrub
from traceviz_dag.pipeline.scrub.names import Names
from traceviz_dag.simulate import JobSettings, simulate

SITE = re.compile("acme|alice|zeppelin|quux|王伟|10-12-0-17".encode(), re.IGNORECASE)
NAMED = {
    *("name", "operator", "module", "module_path", "kernel", "operation", "caller", "doing", "shapes", "file", "run"),
    *("bytes", "digest", "evidence_sql", "detail"),
}
"""Columns that hold names, or sizes and digests of files."""


def _of_a_site(path):
    """Give a simulated trace the names of a site."""
    text = gzip.decompress(path.read_bytes()).decode()
    text = text.replace("pretrain_gpt.py", "/home/alice/acme_llm/pretrain_zeppelin.py")
    text = text.replace("nn.Module: SelfAttention", "nn.Module: AcmeSelfAttention")
    trace = json.loads(text)
    trace["traceviz_capture"] |= {"captured_ranks": "alice", "clock": {"start": {"utc_ns": "acme", "of": "acme"}}}
    trace |= {
        "host_name": "gpu-17.acme.internal",
        "environment": {"USER": "alice"},
        "traceName": "/scratch/alice/x.json",
    }
    for event in trace["traceEvents"]:
        event.setdefault("args", {})["Quux path"] = "/home/alice"
    trace["traceEvents"] += [
        {"ph": "X", "cat": "acme", "name": {"alice": "acme"}, "pid": "王伟", "tid": 0, "ts": "quux", "dur": 0},
        {"ph": "X", "cat": "user_annotation", "name": "王伟 on 10-12-0-17", "pid": 0, "tid": 9, "ts": 1, "dur": 0},
    ]
    path.write_bytes(gzip.compress(json.dumps(trace, ensure_ascii=False).encode(), 1))


def _tables(folder, home):
    iteration = analysed_here(folder, home)
    store_across_ranks(iteration)
    lake, place = iteration.lake, (iteration.run, iteration.iteration)
    made = [part.name for part in sorted((home / "lake").iterdir()) if not part.name.startswith(".")]
    return {name: lake.rows(name, *place) for name in made if lake.partitions(name)}


def _differing(one: dict[str, pa.Table], other: dict[str, pa.Table]) -> list[str]:
    return [
        f"{name}.{column}"
        for name, table in one.items()
        for column in table.column_names
        if column not in NAMED and table[column].to_pylist() != other[name][column].to_pylist()
    ]


def test_a_scrubbed_job_has_the_same_numbers_and_none_of_its_sites_names(tmp_path):
    simulate(JobSettings(**SMALL, tp=2, pp=2, microbatches=2, shapes=True), tmp_path / "acme_job", workers=1)
    for path in (tmp_path / "acme_job").rglob("*.json.gz"):
        _of_a_site(path)
    found = scrub(tmp_path / "acme_job", tmp_path / "out")
    assert not found.left_out and found.words > 0
    for path in (tmp_path / "out").rglob("*"):
        assert not SITE.search(bytes(path.relative_to(tmp_path / "out")))
        if path.is_file():
            text = path.read_bytes()
            assert not SITE.search(gzip.decompress(text) if path.suffix == ".gz" else text)
    before, after = (_tables(tmp_path / name, tmp_path / f"home_{name}") for name in ("acme_job", "out"))
    assert before.keys() == after.keys() and before["kernels"].num_rows > 1000
    assert not _differing(before, after)


@pytest.mark.long
def test_a_recorded_job_is_analysed_alike(shared_data, tmp_path):
    folder = shared_data / "kineto" / "megatron_tp8_a100"
    assert not scrub(folder, tmp_path / "out").left_out
    before, after = (
        _tables(each, tmp_path / f"home {number}") for number, each in enumerate((folder, tmp_path / "out"))
    )
    assert not _differing(before, after)


def test_what_is_no_whole_trace_is_left_out_and_the_target_stays_apart(tmp_path):
    simulate(JobSettings(**SMALL, dp=2, microbatches=2), tmp_path / "job", workers=1)
    (first, second) = sorted((tmp_path / "job").rglob("*.json.gz"))
    whole = gzip.decompress(first.read_bytes())
    first.write_bytes(gzip.compress(whole[: len(whole) // 2]))
    found = scrub(tmp_path / "job", tmp_path / "out")
    assert len(found.left_out) == 1 and first.name in found.left_out[0]
    assert [path.name for path in found.written if path.suffix == ".gz"] == [second.name]
    assert not [*(tmp_path / "out").rglob(f"*{first.stem}*")]
    for target in (tmp_path / "out", tmp_path / "job" / "inside", tmp_path):
        with pytest.raises(UsageError):
            scrub(tmp_path / "job", target)


@given(st.lists(st.from_regex(r"[a-z]{4,12}", fullmatch=True), min_size=2, max_size=20, unique=True))
def test_each_word_has_one_made_up_word_wherever_it_stands(words):
    names = Names()
    made = {word: names.given(word) for word in words}
    assert len(set(made.values())) == len(words)
    for word, other in made.items():
        assert names.given(f"{word}_{word.upper()}7.py(3): {word}") == f"{other}_{other.upper()}7.py(3): {other}"
        assert names.library(f"{word}::{word}<3>") != "" and names.given(word) == other


def test_words_of_the_field_and_the_kind_of_a_kernel_stay():
    names = Names()
    assert names.given("nn.Module: SelfAttention_3") == "nn.Module: SelfAttention_3"
    assert "gemm" in names.library("void quuxgemm_bf16<128, 64>")
    assert names.function("/home/alice/src/megatron/core/tensor_parallel/layers.py(80): forward") == (
        "megatron/core/tensor_parallel/layers.py(80): forward"
    )
    assert "alice" not in names.function("/home/alice/run.py(3): main")
    first, other = (names.given(f"ip-10-12-0-{number}_812.1733.pt.trace.json") for number in (17, 18))
    assert "10-12" not in first and first.endswith("_812.1733.pt.trace.json") and first != other

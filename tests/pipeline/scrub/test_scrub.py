"""Scrubbed traces tell nothing of their site, and are analysed to the same numbers."""

from __future__ import annotations

import gzip
import json
import pickle
import re
import shutil
import sqlite3
from contextlib import closing

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analyze.across_ranks import SMALL, analysed_here, store_across_ranks
from tests.sets import fast
from traceviz_dag.analyze.memory.examination import examined
from traceviz_dag.analyze.memory.tables import memory_tables
from traceviz_dag.analyze.operations.formulas import FORMULAS
from traceviz_dag.analyze.operations.tensors import ELEMENT_BYTES
from traceviz_dag.classify.topology.group_dimensions import DESCRIPTIONS
from traceviz_dag.errors import UsageError
from traceviz_dag.pipeline.scrub.folder import scrub
from traceviz_dag.pipeline.scrub.names import Names
from traceviz_dag.read.memory.files import is_snapshot_name
from traceviz_dag.read.memory.reader import read_snapshot
from traceviz_dag.read.nsys.profile import SCHEMAS
from traceviz_dag.read.nsys.reader import read_nsys
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import Format

HOSTS = "10-12-0-17 10.12.0.17:29500 [fe80::1ff:fe23:4567:890a] 2001:db8::7 a0:36:9f:11:22:33"
SITE = re.compile("acme|alice|zeppelin|quux|王伟|10.12.0.17|fe80|2001:|a0:36".encode(), re.IGNORECASE)
NAMED = {
    *("name", "operator", "module", "module_path", "kernel", "operation", "caller", "doing", "shapes", "file", "run"),
    *("bytes", "digest", "evidence_sql", "detail", "site", "python_text", "text"),
    *("unknown", "unknown_names", "lost", "lost_names", "settings"),
}
"""Columns that hold names, settings as texts, sizes and digests of files, or what of a file was left unread."""


def _of_a_site(path):
    """Give a simulated trace the names of a site."""
    text = gzip.decompress(path.read_bytes()).decode()
    text = text.replace("pretrain_gpt.py", "/home/alice/acme_llm/pretrain_zeppelin.py")
    text = text.replace("nn.Module: SelfAttention", "nn.Module: AcmeSelfAttention")
    trace = json.loads(text)
    trace["traceviz_capture"]["settings"] |= {"experimental_attention_variant": "zeppelin", "torch": "2.9.0+acme1"}
    trace["traceviz_capture"] |= {"captured_ranks": "alice", "clock": {"start": {"utc_ns": "acme", "of": "acme"}}}
    trace["deviceProperties"][0] |= {"acme": 7}
    trace |= {
        "host_name": "gpu-17.acme.internal",
        "environment": {"USER": "alice"},
        "traceName": "/scratch/alice/x.json",
    }
    for event in trace["traceEvents"]:
        event.setdefault("args", {})["Quux path"] = "/home/alice"
    trace["traceEvents"] += [
        {"ph": "X", "cat": "acme", "name": {"alice": "acme"}, "pid": "王伟", "tid": 0, "ts": "quux", "dur": 0},
        {"ph": "X", "cat": "user_annotation", "name": f"王伟 on {HOSTS}", "pid": 0, "tid": 9, "ts": 1, "dur": 0},
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": f"acme::load {HOSTS}",
            "pid": HOSTS,
            "tid": 9,
            "ts": 1,
            "dur": 0,
            "args": {"Process Group Description": HOSTS, "Concrete Inputs": [HOSTS]},
        },
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
    one, other = (json.loads(tables["traces"]["settings"][0].as_py()) for tables in (before, after))
    assert {name for name, value in one.items() if other[name] != value} == {"experimental_attention_variant", "torch"}
    assert other["num_layers"] and other["torch"].startswith("2.9.0+")


def _read(path):
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


@pytest.mark.long
def test_a_scrubbed_export_has_the_same_numbers_and_none_of_its_sites_names(tmp_path):
    settings = JobSettings(**SMALL, tp=2, pp=2, microbatches=2, node_size=2, format=Format.NSYS)
    simulate(settings, tmp_path / "acme_job", workers=1)
    for path in (tmp_path / "acme_job").rglob("*.sqlite"):
        with closing(sqlite3.connect(path)) as export:
            export.executescript("""
                CREATE TABLE PROCESSES (globalPid, pid, name); INSERT INTO PROCESSES VALUES (1, 1, 'quux');
                CREATE TABLE META_DATA_CAPTURE (name, value); INSERT INTO META_DATA_CAPTURE VALUES ('acme', 'alice');
                CREATE TABLE IF NOT EXISTS META_DATA_EXPORT (name, value);
                INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_COMMAND', 'alice'), ('EXPORT_PRODUCT_NAME', 'acme');
                INSERT INTO StringIds VALUES (9999999, 'printed by alice'), (9999998, 'acme thread');
                CREATE TABLE IF NOT EXISTS ThreadNames (nameId, priority, globalTid);
                INSERT INTO ThreadNames VALUES (9999998, 1, 1);
                ALTER TABLE NVTX_EVENTS ADD COLUMN quux;
                UPDATE NVTX_EVENTS SET quux = 'quux';
                INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid) VALUES
                    (1, 2, 59, 'zeppelin of 王伟', 1),
                    (1, 2, 59, 'acme::load 10.12.0.17', 1),
                    (1, 2, 59, 'acme, seq = 3, sizes = [[8, 8]], concrete_inputs = quux', 1);
            """)
            export.commit()
    found = scrub(tmp_path / "acme_job", tmp_path / "out")
    assert not found.left_out and len(found.written) > 1
    assert not any(SITE.search(_read(path)) for path in found.written)
    before, after = (_tables(tmp_path / name, tmp_path / f"home_{name}") for name in ("acme_job", "out"))
    assert before.keys() == after.keys() and before["kernels"].num_rows > 1000 and before["nvtx_ranges"].num_rows
    assert not _differing(before, after)


@pytest.mark.parametrize("name", fast(["h100_2gpu_1s", "mfu_2gpu_before"], "mfu_2gpu_before"))
def test_a_recorded_export_reads_alike_but_for_names(shared_data, tmp_path, name):
    source = shared_data / "nsys" / f"{name}.sqlite"
    [written] = scrub(source, tmp_path / "out").written
    before, after = read_nsys(source), read_nsys(written)
    for table, schema in SCHEMAS.items():
        for column in set(schema.names) - {"name", "short_name"}:
            assert before.table(table, column).equals(after.table(table, column)), (table, column)
    told = {"tables", "columns", "missing"}
    facts = [
        {key: value for key, value in msgspec.structs.asdict(one.facts).items() if key not in told}
        for one in (before, after)
    ]
    assert facts[0] == facts[1]


def test_a_scrubbed_snapshot_of_memory_has_the_same_numbers_and_none_of_its_sites_names(tmp_path):
    settings = JobSettings(**SMALL, pp=2, microbatches=2, memory=True)
    simulate(settings, tmp_path / "acme_job", workers=1)
    snapshots = [path for path in (tmp_path / "acme_job").rglob("*") if is_snapshot_name(path.name)]
    for path in snapshots:
        content = pickle.loads(path.read_bytes())
        of_site = [{"name": "alice_step", "filename": "/home/alice/acme_llm/zeppelin.py", "line": 7}]
        content["segments"][0]["frames"] = of_site
        content["device_traces"][0].append({"action": "oom", "addr": 0, "size": 5, "frames": of_site, "device_free": 3})
        content["allocator_settings"] = {"PYTORCH_CUDA_ALLOC_CONF": "alice:True", "trace_alloc_max_entries": 9}
        content["external_annotations"] = [
            {"name": name, "stage": stage, "device": 0, "time_us": time}
            for name, stage, time in [
                ("acme", "START", 1),
                ("acme", "END", 5),
                ("acme", "START", 5),
                ("Optimizer.step#Adam.step", "END", 9),
            ]
        ]
        content["quux"] = {"alice": "acme"}
        path.write_bytes(pickle.dumps(content))
    found = scrub(tmp_path / "acme_job", tmp_path / "out")
    assert not found.left_out
    scrubbed = [path for path in found.written if is_snapshot_name(path.name)]
    assert len(scrubbed) == len(snapshots) == 2
    for before, after in zip(sorted(snapshots), sorted(scrubbed), strict=True):
        assert SITE.search(before.read_bytes()) and not SITE.search(after.read_bytes())
        one, other = (memory_tables(read, examined(read)) for read in map(read_snapshot, (before, after)))
        assert one["memory_events"].num_rows > 100 and one["memory_peaks"].num_rows
        assert not _differing(one, other)


@pytest.mark.parametrize("name", fast(["transformer_128_training", "transformer_512_inference"]))
def test_a_recorded_snapshot_is_read_alike_but_for_names(shared_data, tmp_path, name):
    source = shared_data / "memory" / f"{name}.pickle"
    # It is found by its name.
    shutil.copy(source, tmp_path / "snapshot_0.pickle")
    [written] = scrub(tmp_path / "snapshot_0.pickle", tmp_path / "out").written
    one, other = (memory_tables(read, examined(read)) for read in map(read_snapshot, (source, written)))
    assert one["memory_blocks"].num_rows and not _differing(one, other)


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


def test_words_that_differ_in_capitals_differ_when_made_up():
    words = ["acme", "Acme", "ACME", "éà", "éÀ", "ÉÀ", "10.1.2.3", "10-1-2-3", "A0:36:9F:11:22:33", "a0:36:9f:11:22:33"]
    names = Names()
    assert len({names.given(word) for word in words}) == len({names.library(word) for word in words}) == len(words)


def test_words_of_the_field_and_the_kind_of_a_kernel_stay():
    names = Names()
    assert names.given("nn.Module: SelfAttention_3") == "nn.Module: SelfAttention_3"
    assert "gemm" in names.library("void quuxgemm_bf16<128, 64>")
    assert names.function("/home/alice/src/megatron/core/tensor_parallel/layers.py(80): forward") == (
        "megatron/core/tensor_parallel/layers.py(80): forward"
    )
    assert names.function("/usr/lib/python3.11/threading.py(982): run") == "threading.py(982): run"
    assert names.function("multiprocessing/process.py(9): run") == "multiprocessing/process.py(9): run"
    assert names.library("c10d::allreduce_ 12:30:45 2.21.5") == "c10d::allreduce_ 12:30:45 2.21.5"
    first, other = (names.given(f"ip-10-12-0-{number}_812.1733.pt.trace.json") for number in (17, 18))
    assert "10-12" not in first and first.endswith("_812.1733.pt.trace.json") and first != other


@pytest.mark.parametrize(
    "name",
    ["/home/alice/run.py(3): bilinear", "/home/al/run.py(3): bilinear", "/home/alice/code/dispatcher.py(3): bilinear",
        "platform/run.py(3): bilinear", "/opt/python3/site-packages/acme/run.py(3): bilinear"],
)  # fmt: skip
def test_words_of_users_are_hidden_also_of_two_letters_and_in_folders_named_like_modules_of_python(name):
    kept = re.findall(r"[a-z]+", Names().function(name))
    assert "py" in kept and not {"alice", "al", "code", "platform", "bilinear", "acme"} & set(kept)


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("/home/al/acme.py(3): torch_dynamo_resume_in_forward_at_31", ": torch_dynamo_resume_in_forward_at_31"),
        ("/home/al/acme.py(3): gc_collect", ": gc_collect"),
        ("/home/al/gc.py(3): acme", "/gc.py(3): "),
        ("/home/al/acme.py(3): synchronize", ": synchronize"),
        ("/home/al/acme.py(3): get_batch", ": get_batch"),
    ],
)
def test_functions_of_users_by_whose_names_the_hosts_work_is_known_keep_them(name, kept):
    assert kept in Names().function(name)


@pytest.mark.parametrize(
    "name", ["Python GC", "garbage collection", "execute_context_3", "CustomFSDP.forward", "DistributedDataParallel"]
)
def test_ranges_by_which_training_and_pauses_are_known_keep_their_names(name):
    assert Names().range(name).endswith(name.removeprefix("Python "))


def test_operators_types_and_groups_that_the_analysis_knows_keep_their_names():
    further = ["megatron/core/timers.py(3): stop", "megatron/training/utils.py(9): report_memory", "trtllm::gemm"]
    further += ["void cublasLt::splitKreduce_kernel<32, 16>"]
    further += ["cuMemUnmap", "cudaHostUnregister", "cuLinkCreate", "cuLibraryLoadData"]
    known, names = [*FORMULAS, *ELEMENT_BYTES, *DESCRIPTIONS, *further], Names()
    assert len(known) > 300 and not [name for name in known if names.library(name) != name]

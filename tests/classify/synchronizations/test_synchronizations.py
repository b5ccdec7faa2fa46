"""Who waits for whom: against a model of CUDA's streams and events, and in the profiler's own odd forms."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.classify.synchronizations.cuda_model import Model
from tests.classify.test_kernels import run
from tests.kineto_file import KinetoFile
from traceviz_dag.classify.synchronizations.operations import NO_ROW, NOTHING_AFTER, NOTHING_BEFORE

WAIT, SYNC = "cudaStreamWaitEvent", "Stream Wait Event"


def found(file: KinetoFile, folder: Path) -> list[dict[str, object]]:
    """The rows of the table, with the names of kernels in place of their ids."""
    classified = run(file, folder)
    names = dict(zip(*(classified.kernels[name].to_pylist() for name in ("kernel_id", "name")), strict=True))
    rows = classified.synchronizations.to_pylist()
    return [
        {
            **row,
            "waited_for": names.get(row["waited_for_kernel_id"]),
            "waiting": names.get(row["waiting_kernel_id"]),
        }
        for row in rows
    ]


def numbers(model: Model) -> dict[int, dict[str, object]]:
    """Correlation → its row, with the model's numbers of operations."""
    with TemporaryDirectory() as folder:
        rows = found(model.file, Path(folder))
    for row in rows:
        for name in ("waited_for", "waiting"):
            row[name] = None if row[name] is None else int(str(row[name]).split()[-1])
    assert len({row["correlation"] for row in rows}) == len(rows)
    return {row["correlation"]: row for row in rows}  # type: ignore[misc]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), threads=st.integers(1, 3), listed=st.booleans())
def test_every_wait_has_the_operations_that_cuda_gives_it_where_calls_do_not_overlap(seed, threads, listed):
    model = Model(seed, threads=threads, listed=listed, named="nothing" if listed else "right")
    rows = numbers(model)
    never_recorded = rows.keys() - {wait.correlation for wait in model.waits}
    assert all(rows[one]["fault"].startswith(NO_ROW) and rows[one]["waited_for"] is None for one in never_recorded)
    for wait in model.waits:
        row = rows[wait.correlation]
        assert (row["kind"], row["waited_for"], row["waiting"]) == (wait.kind, wait.waited_for, wait.waiting)
        faults = [NOTHING_BEFORE] * (wait.waited_for is None) + [NOTHING_AFTER] * (wait.waiting is None)
        assert (row["fault"] or "") == "; ".join(faults)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    threads=st.integers(1, 3),
    named=st.sampled_from(["right", "last", "nothing"]),
    listed=st.booleans(),
    microseconds=st.booleans(),
)
def test_no_wait_has_a_wrong_operation_however_calls_overlap_and_whatever_the_profiler_names(
    seed, threads, named, listed, microseconds
):
    model = Model(seed, threads=threads, apart=False, named=named, listed=listed, microseconds=microseconds)
    rows = numbers(model)
    for wait in model.waits:
        row = rows[wait.correlation]
        assert row["waited_for"] in (None, wait.waited_for) or (
            wait.kind == "device_synchronize" and model.ends_together(row["waited_for"], wait.waited_for)
        )
        assert row["waiting"] in (None, wait.waiting)
        assert row["fault"] or None not in (row["waited_for"], row["waiting"])

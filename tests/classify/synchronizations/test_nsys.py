"""Synchronisations of Nsight Systems exports: of the right process, GPU and record, and of exports without them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nsys_file import Export
from traceviz_dag.classify.dimensions.communication import job_groups
from traceviz_dag.classify.kernels import classify
from traceviz_dag.classify.nsys.trace import NsysPart, trace_events
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.classify.synchronizations.event_records import NO_RECORD
from traceviz_dag.classify.synchronizations.operations import NO_ROW
from traceviz_dag.classify.topology.unite import unite
from traceviz_dag.pipeline.nsys.ranks import parts_of
from traceviz_dag.read.events import TraceHeader
from traceviz_dag.read.nsys.profile import NsysProfile
from traceviz_dag.read.nsys.reader import read_nsys

WAIT, RECORD = "cudaStreamWaitEvent_v3020", "cudaEventRecordWithFlags_v11010"


def found(profile: NsysProfile, part: NsysPart) -> list[dict[str, object]]:
    """The rows of the table, with the names of kernels beside their ids."""
    header = TraceHeader(rank=0)
    classified = classify(trace_events(profile, part, header), load_rules(), job_groups(unite({0: header})), None)
    names = dict(zip(*(classified.kernels[name].to_pylist() for name in ("kernel_id", "name")), strict=True))
    return [
        {
            **row,
            "waited_for": names.get(row["waited_for_kernel_id"]),
            "waiting": names.get(row["waiting_kernel_id"]),
        }
        for row in classified.synchronizations.to_pylist()
    ]


def work(export: Export, process: int, device: int, context: int, **told: int) -> None:
    """A kernel on stream 7, an event there, a wait of stream 20, a kernel there; correlation ids 1 to 4."""
    place = {"process": process, "thread": process}
    where = {"process": process, "device": device, "contextId": context}
    for start, correlation, name in ((10, 1, "cudaLaunchKernel"), (20, 2, RECORD), (30, 3, WAIT), (40, 4, "cuLaunch")):
        export.call(start, start + 5, correlation, name=name, **place)
    export.kernel(100, 200, f"producer {process}", correlation=1, **where)
    export.kernel(210, 300, f"consumer {process}", stream=20, correlation=4, **where)
    export.synchronization(31, 32, 3, context=context, process=process, **told)


def test_each_process_has_the_waits_of_its_gpu_by_the_ids_of_its_own_records(tmp_path):
    export = Export()
    # Numbers of events and ids are the same in both processes, as is the device of a synchronisation, which is 0.
    for process, device, context in ((11, 0, 1), (22, 1, 2)):
        work(export, process, device, context, sync_id=900)
        export.record(2, 900, context=context, process=process)
        export.record(9, 901, stream=24, context=context, process=process)
    profile = read_nsys(export.write(tmp_path / "two.sqlite"))
    for part, process in zip(parts_of(profile)[0], (11, 22), strict=True):
        (row,) = found(profile, part)
        assert (row["kind"], row["evidence"], row["fault"]) == ("stream_wait", "recorded", None)
        assert (row["name"], row["thread"], row["start_ns"]) == ("cudaStreamWaitEvent", process, 30)
        assert (row["device"], row["stream"], row["wait_on_stream"]) == (f"gpu:{part.device}", 20, 7)
        assert (row["waited_for"], row["waiting"]) == (f"producer {process}", f"consumer {process}")


@pytest.mark.parametrize("records", [(), (901,), (900, 900)])
def test_without_the_one_record_of_an_event_nothing_is_waited_for(tmp_path, records):
    export = Export()
    work(export, 11, 0, 1, sync_id=900)
    for stream, sync_id in enumerate(records, 7):
        export.record(2, sync_id, stream=stream, process=11)
    profile = read_nsys(export.write(tmp_path / "one.sqlite"))
    (row,) = found(profile, parts_of(profile)[0][0])
    assert (row["waited_for"], row["waiting"], row["fault"]) == (None, "consumer 11", NO_RECORD)


def test_an_export_without_the_tables_says_so_and_keeps_the_calls(tmp_path):
    export = Export()
    work(export, 11, 0, 1)
    del export.tables["CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"]
    profile = read_nsys(export.write(tmp_path / "old.sqlite"))
    assert any("no table CUPTI_ACTIVITY_KIND_SYNCHRONIZATION" in sentence for sentence in profile.facts.missing)
    (row,) = found(profile, parts_of(profile)[0][0])
    assert (row["evidence"], row["stream"], row["waited_for"], row["fault"]) == ("order", None, None, NO_ROW)


def test_waits_on_other_gpus_of_the_process_belong_to_their_ranks(tmp_path):
    export = Export()
    work(export, 11, 0, 1)
    export.kernel(400, 500, "elsewhere", device=1, process=11, contextId=2)
    export.call(50, 60, 9, name=WAIT, process=11, thread=11)
    export.synchronization(51, 52, 9, context=2, process=11)
    profile = read_nsys(export.write(tmp_path / "both.sqlite"))
    by_gpu = {part.device: [row["correlation"] for row in found(profile, part)] for part in parts_of(profile)[0]}
    assert by_gpu == {0: [3], 1: [9]}


def test_real_exports_have_every_wait_of_each_gpu(shared_data: Path):
    profile = read_nsys(shared_data / "nsys" / "mfu_2gpu_before.sqlite")
    kinds = [[row["kind"] for row in found(profile, part)] for part in parts_of(profile)[0]]
    assert [(kind.count("stream_wait"), kind.count("stream_synchronize")) for kind in kinds] == [(98, 16), (102, 17)]
    assert sum(map(len, kinds)) == 200 + 33, "asking whether an event is done (133 times) is no wait"
    synchronised = [row for part in parts_of(profile)[0] for row in found(profile, part) if row["wait_on_stream"]]
    assert all(row["waited_for"] and row["waiting"] for row in synchronised)

"""Primus' dumps: the clocks that messages imply, what of them is refused, and a real job of eight stages."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from traceviz_dag.analyze.causes.records_edits import RecordsWhatIf
from traceviz_dag.analyze.causes.records_waits import with_inferred_waits
from traceviz_dag.analyze.causes.records_work import records_work
from traceviz_dag.analyze.causes.reordered import Change
from traceviz_dag.errors import BadInputError
from traceviz_dag.read.records.pipeline_records import OPERATIONS, Operation
from traceviz_dag.read.records.primus_records import read_primus_records
from traceviz_dag.schedules import Backward, Forward, Order

FORWARD, BACKWARD, MESSAGE = 10.0, 20.0, 0.5


def _job(stages: int, count: int, shifts: tuple[float, ...]) -> list[dict[str, list[float]]]:
    """1F1B whose steps and messages all take as long, on clocks that are shifted, ms."""
    order = Order(stages, 1, count)
    ends: dict[tuple[bool, int, int], float] = {}
    mine = [[a for a in order.actions(s) if isinstance(a, Forward | Backward)] for s in range(stages)]
    now = [0.0] * stages
    dumps = [{name: [0.0] * count for name in ("fwd_start", "fwd_end", "bwd_start", "bwd_end")} for _ in mine]
    while any(mine):
        for stage, actions in enumerate(mine):
            while actions:
                backward, batch = isinstance(actions[0], Backward), actions[0].microbatch
                peer = stage + (1 if backward else -1)
                before = (backward, peer, batch)
                if 0 <= peer < stages and before not in ends:
                    break
                start = max(now[stage], ends[before] + MESSAGE if 0 <= peer < stages else 0.0)
                now[stage] = ends[backward, stage, batch] = start + (BACKWARD if backward else FORWARD)
                name = "bwd" if backward else "fwd"
                dumps[stage][f"{name}_start"][batch] = start + shifts[stage]
                dumps[stage][f"{name}_end"][batch] = now[stage] + shifts[stage]
                actions.pop(0)
    return dumps


def _write(folder, dumps, **config):
    folder.mkdir(exist_ok=True)
    count = len(dumps[0]["fwd_start"])
    (folder / "config.json").write_text(json.dumps({"pp_size": len(dumps), "num_mbs": count, "vp_size": 1, **config}))
    for stage, dump in enumerate(dumps):
        (folder / f"pp_rank_{stage}.json").write_text(json.dumps({"3": dump, "4": dump}))
    return folder


def test_clocks_are_told_by_messages_and_the_replay_is_the_job(tmp_path):
    straight, shifted = (
        read_primus_records(_write(tmp_path / name, _job(4, 8, shifts)))
        for name, shifts in (("straight", (0.0,) * 4), ("shifted", (5.0, 900.0, 0.0, 70.25)))
    )
    assert straight.rows.equals(shifted.rows) and not straight.faults
    rows = straight.rows
    forward = rows.filter(np.asarray(rows["operation"]) == OPERATIONS.index(Operation.FORWARD))
    assert forward.num_rows == 2 * 4 * 8 and set(forward["duration_ns"].to_pylist()) == {10_000_000}
    sends = rows.filter(np.asarray(rows["operation"]) == OPERATIONS.index(Operation.FORWARD_SEND))
    assert min(sends["duration_ns"].to_pylist()) == 500_000
    work = with_inferred_waits(records_work(straight))
    what_if = RecordsWhatIf(work)
    items = what_if.items()
    assert items.now == Order(4, 1, 8)
    assert items.step_ns == 1e6 * max(max(dump["bwd_end"]) for dump in _job(4, 8, (0.0,) * 4))
    # Two chunks halve fill and drain, which is 3 of 11 steps; their further messages take their time.
    step_ns, gain, low, high = what_if.gains(Change(chunks=2))
    assert step_ns == items.step_ns and low <= gain <= high
    assert gain == pytest.approx(1.5 * (FORWARD + BACKWARD) * 1e6, rel=0.25)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"vp_size": 2}, "states vp_size 2"),
        ({"pp_size": 0}, "states pp_size 0"),
        ({"num_mbs": 5}, "has not 5 micro-batches"),
        ({"pp_size": 5}, "cannot be read"),
        ({"pp_size": "four"}, "no dump of Primus"),
    ],
)
def test_what_is_no_dump_is_refused(tmp_path, change, why):
    with pytest.raises(BadInputError, match=why):
        read_primus_records(_write(tmp_path / "job", _job(4, 8, (0.0,) * 4), **change))


@pytest.mark.parametrize("value", [float("1e300"), -1.0])
def test_a_time_that_cannot_be_is_refused(tmp_path, value):
    dumps = _job(2, 4, (0.0, 0.0))
    dumps[1]["fwd_end"][2] = value
    with pytest.raises(BadInputError, match="no number of milliseconds"):
        read_primus_records(_write(tmp_path / "job", dumps))


def test_an_iteration_whose_steps_overlap_what_they_wait_for_is_left_out(tmp_path):
    folder = _write(tmp_path / "job", _job(2, 4, (0.0, 0.0)))
    dumps = json.loads((folder / "pp_rank_1.json").read_text())
    dumps["4"]["fwd_start"][3] -= 9.0
    dumps["4"]["bwd_end"][0] += 9.0
    (folder / "pp_rank_1.json").write_text(json.dumps(dumps))
    found = read_primus_records(folder)
    assert set(found.rows["step"].to_pylist()) == {3}
    assert "iteration 4 was left out" in found.faults[0]


def test_a_real_job_of_eight_stages_would_gain_by_two_chunks(shared_data):
    """docs/causes.md states this prediction."""
    records = read_primus_records(shared_data / "pipeline_records" / "primus_pp8")
    assert not records.faults and records.stages == 8
    steps = np.asarray(records.rows["step"])
    work = records_work(records)
    lengths = [int((work.start_ns + work.own_ns)[work.step == one].max()) for one in range(4, 16)]
    assert np.median(lengths) == pytest.approx(3.243e9, rel=1e-3) and set(steps.tolist()) == set(range(1, 21))
    usual = replace(records, rows=records.rows.filter((steps >= 4) & (steps <= 15)))
    what_if = RecordsWhatIf(with_inferred_waits(records_work(usual)))
    page = " ".join((Path(__file__).parents[3] / "docs" / "causes.md").read_text().split())
    for change, stated in (
        (Change(chunks=2), "the step is predicted to take {} s, {} to {} s by the error bar"),
        (Change(chunks=2, schedule="interleaved-overlapped"), "beside computation it is {} s ({} to {} s)"),
    ):
        step_ns, gain, low, high = what_if.gains(change)
        assert stated.format(*(f"{(step_ns - each) / 1e9:.3f}" for each in (gain, high, low))) in page

"""What ``traceviz perfetto export`` says of a trace, and what the trace says of itself, is what is in it and in SQL."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace
from typer.testing import CliRunner

from tests.commands.jobs import home_of, traces_of
from tests.commands.sentences.printed import Home, Reader, Sentence
from traceviz_dag.commands.main import app
from traceviz_dag.errors import IncompleteError

_RECORDED = "clocks as recorded: shifts between ranks may be clock offsets"
_CLOCKS = """
    SELECT min(residual_p05_ns) AS low, max(residual_p95_ns) AS high, nullif(sum(early_receives), 0) AS early,
        (SELECT string_agg(rank, ', ' ORDER BY rank) FROM topology WHERE rank NOT IN (
            SELECT rank FROM rank_clocks WHERE refusal IS NULL)) AS refused, arg_min(refusal, rank) AS reason,
        if(count(DISTINCT refusal) > 1, min(rank) FILTER (refusal IS NOT NULL), NULL) AS first
    FROM rank_clocks WHERE run = $run AND iteration = $iteration
"""
SENTENCES = (
    Sentence(
        r"clocks solved: ends of communications agree within (?P<v_low>[+−]?[\d.]+ (?:ns|µs|ms)) to "
        r"(?P<v_high>[+−]?[\d.]+ (?:ns|µs|ms)) \(p05 to p95\)(; (?P<v_early>\d+) receives end before their send)?",
        f"SELECT * FROM ({_CLOCKS}) WHERE refused IS NULL AND low IS NOT NULL",
    ),
    Sentence(
        rf"{_RECORDED}; not solved for ranks? (?P<v_refused>[\d, ]+)(:( rank (?P<v_first>\d+),)? (?P<v_reason>.*))?",
        _CLOCKS,
    ),
    Sentence(_RECORDED, "SELECT count(*) AS solved FROM rank_clocks WHERE refusal IS NULL HAVING count(*) < 2"),
    Sentence(
        r"no kernels of ranks? (?P<v_first>\d+)(–(?P<v_last>\d+))?",
        "SELECT min(rank) AS first, nullif(max(rank), first) AS last, count(*) AS count "
        "FROM topology WHERE rank NOT IN (SELECT rank FROM kernels) HAVING count = max(rank) - min(rank) + 1",
    ),
    Sentence("the rank's own clock, as recorded", "SELECT count(*) FROM traces HAVING count(*) = 1"),
)


def exported(job: str, out: Path) -> tuple[str, Trace]:
    result = CliRunner().invoke(app, ["perfetto", "export", "--home", str(home_of(job)), "--out", str(out)])
    assert result.exception is None or isinstance(result.exception, IncompleteError | SystemExit), result.exception
    return re.sub(r"\s+", " ", result.stderr), Trace.FromString(out.read_bytes())


def check(job: str, said: str, trace: Trace) -> None:
    reading = Reader(Home(home_of(job)), SENTENCES, ())
    reading.place = {"run": job, **reading.query("SELECT min(iteration) AS iteration FROM traces")[0]}
    place = f"{job}, iteration {reading.place['iteration']}: "
    first, *rest = (part.strip() for part in said.split(place)[1:])
    ranks, slices, arrows = re.fullmatch(
        r"([\d,]+) ranks, ([\d,]+) slices, ([\d,]+) arrows, [\d.]+ MB.*", first
    ).groups()
    events = [packet.track_event for packet in trace.packet if packet.HasField("track_event")]
    begun = [event for event in events if event.type == 1]
    tracks = {
        packet.track_descriptor.uuid: packet.track_descriptor
        for packet in trace.packet
        if packet.HasField("track_descriptor")
    }
    about = [event for event in begun if tracks[event.track_uuid].name == "about this trace"]
    assert int(slices.replace(",", "")) == len(begun) - len(about)
    reached = [flow for event in events if event.type == 2 for flow in event.flow_ids]
    assert int(arrows.replace(",", "")) == len(reached)
    assert set(reached) == {flow for event in begun for flow in event.flow_ids}
    named = [track for track in tracks.values() if re.fullmatch(r"rank \d+( · stage \d+)?", track.name)]
    assert int(ranks) == len(named)
    # Each kernel is a slice, and so is each call that launched some, each NVTX range, each forward and backward step of
    # a micro-batch, and each gap; each segment of the critical path is one in its lane and one on its rank.
    (wanted,) = reading.query(
        "SELECT (SELECT count(*) FROM kernels) AS kernels, (SELECT count(*) FROM microbatches WHERE dimension = 'all' "
        "AND phase IN ('forward', 'backward')) AS steps, (SELECT count(*) FROM path_segments) AS segments, "
        "(SELECT count(*) FROM (SELECT DISTINCT rank, device, start_ns, duration_ns FROM gpu_gaps)) AS gaps, "
        "(SELECT count(DISTINCT (rank, launch_thread, launch_start_ns)) FROM kernels "
        "WHERE launch_start_ns IS NOT NULL) AS calls, (SELECT count(*) FROM nvtx_ranges) AS ranges"
    )
    assert len(begun) - len(about) == sum(wanted.values()) + wanted["segments"]
    clock, *others = (line.split(" traceviz:")[0].strip() for line in rest)
    for line in (clock, *others):
        reading.sentence(line)
    assert reading.read == [clock, *others], "nobody knows whether this is so"
    assert clock.encode() in trace.SerializeToString(), "the trace says the same of its clocks"


@pytest.mark.parametrize("job", ["healthy", "slow_link", "blind_rank", "scattered", "missing_stage", "one_rank"])
def test_what_an_export_says_is_what_is_in_it(job, tmp_path):
    check(job, *exported(job, tmp_path / "job.pftrace"))


@pytest.mark.parametrize(
    ("true", "false"),
    [(r"(\d) slices", r"9\1 slices"), (r"(\d+) arrows", r"1\1 arrows"), ("4 ranks", "5 ranks"), ("−44 ns", "−96 ns")],
)
def test_a_false_number_does_not_pass(true, false, tmp_path):
    said, trace = exported("healthy", tmp_path / "job.pftrace")
    wrong = re.sub(true, false, said)
    assert wrong != said
    with pytest.raises(AssertionError):
        check("healthy", wrong, trace)


_ASKED = (
    "SELECT k.category, count(*) AS kernels, sum(s.dur) AS ns, min(s.ts) AS first FROM traceviz_kernels k "
    "JOIN slice s ON s.id = k.slice_id GROUP BY 1 ORDER BY 1"
)
_TOLD = """
    SELECT category, count(*) AS kernels, sum(duration_ns)::BIGINT AS ns, min(start_ns) AS first FROM kernels
    WHERE rank = 0 GROUP BY category ORDER BY category
"""


def test_the_rows_that_a_query_prints_are_those_of_the_lake_and_the_time_that_it_subtracts_is_theirs(trace_processor):
    trace = next(traces_of("healthy").rglob("rank_0000*.json*"))
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["perfetto", "query", str(trace), _ASKED])
    assert result.exit_code == 0, result.output
    lines = [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in result.stdout.splitlines()]
    header, *rows = [cells for cells in lines if cells]
    assert header == ["category", "kernels", "ns", "first"]
    expected = Home(home_of("healthy")).query(_TOLD, {}).to_pylist()
    (base,) = re.findall(r"traceviz: (\d+) ns were subtracted from all times", result.stderr)
    # Times in the file are relative to a base in its header, which Perfetto does not know.
    base_of_file = json.loads(trace.read_bytes())["baseTimeNanoseconds"]
    assert [[*cells[:3], int(cells[3]) + int(base) + base_of_file] for cells in rows] == [
        [row["category"], str(row["kernels"]), str(row["ns"]), row["first"]] for row in expected
    ]
    assert f"{len(expected)} rows" in result.stdout.splitlines()

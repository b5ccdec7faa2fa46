"""One lane model: a slice has one name, colour and time on every surface, and no surface has lanes of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.nsys_file import small_export
from tests.show.drawn import collections, texts
from tests.show.home import fill_home
from tests.show.perfetto.test_trace import BEGIN, decoded, replayed
from tests.show.report.test_page_data import in_script
from traceviz_dag.analyze.nsys.activity import activities
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.pipeline.report import StoredReportSource
from traceviz_dag.pipeline.screens import iteration_model, profile_model
from traceviz_dag.read.nsys.cache import open_profile
from traceviz_dag.show.figures.rank_timeline import draw_rank_timeline
from traceviz_dag.show.lanes.lane import LaneKind, Window
from traceviz_dag.show.lanes.words import word_of
from traceviz_dag.show.nsys.perfetto import write_perfetto
from traceviz_dag.show.nsys.timeline import profile_timeline
from traceviz_dag.show.perfetto.colours import colour_text
from traceviz_dag.show.perfetto.iteration import write_iteration_trace
from traceviz_dag.show.report.timeline import Timeline, read_timeline
from traceviz_dag.show.screens.model import ALL, ScreenModel, SliceId, Slices
from traceviz_dag.show.terminal.timeline.picture import Asked, Request
from traceviz_dag.show.web.live.tiles import tiles
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.vocabulary import TimeAlignment

RANK = 1


@dataclass(frozen=True)
class Told:
    """A slice as a surface shows it; times on the rank's or the capture's clock."""

    name: str
    kind: str
    start_ns: int
    end_ns: int


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> StoredReportSource:
    folder = tmp_path_factory.mktemp("lanes")
    job = JobSettings(pp=2, dp=2, vpp=2, microbatches=4, layers=4, hidden=1024, node_size=2, clock_skew_ms=3.0)
    (inputs,) = fill_home(folder / "home", [simulate(job, folder / "job", workers=1)])
    return StoredReportSource(open_lake(folder / "home"), inputs.run, inputs.iteration)


@pytest.fixture(scope="module")
def model(source) -> ScreenModel:
    return iteration_model(source.lake, source.run, source.iteration, TimeAlignment.GLOBAL)


@pytest.fixture(scope="module")
def export(tmp_path_factory) -> Path:
    return small_export().write(tmp_path_factory.mktemp("profile") / "job.sqlite")


def every_lane(model: ScreenModel, parent: str | None = None) -> dict[str, Any]:
    found = {}
    for lane in model.lanes(parent):
        found[lane.key] = lane
        found |= every_lane(model, lane.key) if lane.holds_lanes else {}
    return found


def of_terminal(model: ScreenModel, lane: str, row: int) -> Told:
    """What the terminal asks for and draws of a slice."""
    bounds = model.bounds(SliceId(lane, row))
    asked, request = Asked(model), Request(bounds, 80, (model.lane(lane),), ALL)
    asked.ask(request, model.lane(lane))
    drawn = asked.kept[request.key(model.lane(lane))]
    assert isinstance(drawn, Slices)
    place = int(np.flatnonzero(drawn.row == row)[0])
    start = model.own_time(lane, int(drawn.start_ns[place]))
    length = int(drawn.end_ns[place] - drawn.start_ns[place])
    return Told(drawn.names[int(drawn.name[place])], drawn.kinds[drawn.kind[place]], start, start + length)


def of_live_page(model: ScreenModel, lane: str, row: int) -> Told:
    """What the live page is answered of a slice."""
    bounds = model.bounds(SliceId(lane, row))
    answer = tiles(model, [lane], bounds, 80, ALL, overview=False, digest="")
    length = int.from_bytes(answer[:8], "little")
    (told,) = json.loads(answer[8 : 8 + length])["lanes"]
    count = told["slices"]
    times = np.frombuffer(answer, "<f8", 3 * count, 8 + length).reshape(3, count)
    rows, _, names, kinds = np.frombuffer(answer, "<i4", 4 * count, 8 + length + 24 * count).reshape(4, count)
    place = int(np.flatnonzero(rows == row)[0])
    start, end = (int(times[side, place]) + model.span.start_ns for side in (0, 1))
    own = model.own_time(lane, start)
    return Told(told["names"][names[place]], told["kinds"][kinds[place]], own, own + end - start)


class Report:
    """The data of an offline page, as its script unpacks them."""

    def __init__(self, found: Timeline) -> None:
        self.document = json.loads(json.dumps(in_script(found.columns.packed(found.document))["document"]))
        self.columns = {
            name: np.array(each) for name, each in in_script(found.columns.packed(found.document))["columns"]
        }

    def column(self, name: str, count: str, rank: int) -> np.ndarray:
        """A rank's part of a column."""
        before = 0
        for row in self.document["ranks"]:
            if row["rank"] == rank:
                return self.columns[name][before : before + row[count]].astype(np.int64)
            before += row[count]
        raise AssertionError(rank)

    def zero(self, rank: int) -> int:
        """The rank's first kernel on its clock."""
        return int(next(row["first_ns"] for row in self.document["ranks"] if row["rank"] == rank))

    def step(self, rank: int, place: int) -> Told:
        """A micro-batch."""
        lanes = [lane for row in self.document["ranks"] for lane in row["lanes"] if "count" in lane]
        wanted = next(at for at, lane in enumerate(lanes) if lane["key"] == f"rank:{rank}/microbatches")
        before = sum(lane["count"] for lane in lanes[:wanted])
        kind, name, start, length = (
            int(self.columns[f"lane.{column}"][before + place]) for column in ("kind", "name", "start", "length")
        )
        own = self.zero(rank) + start
        return Told(self.document["names"][name - 1], self.document["kinds"][kind], own, own + length)

    def kernel(self, rank: int, start_ns: int, stream: int) -> Told:
        """The kernel of a stream that starts at a time."""
        fields = self.document["signatures"]["fields"]
        values, rows = self.document["signatures"]["values"], self.document["signatures"]["rows"]
        starts, lengths, signatures = (
            self.column(f"kernel.{column}", "kernels", rank) for column in ("start", "length", "signature")
        )
        at = {name: place for place, name in enumerate(fields)}
        for place in np.flatnonzero(starts + self.zero(rank) == start_ns).tolist():
            signature = rows[signatures[place]]
            if values[at["stream"]][signature[at["stream"]]] != stream:
                continue
            short = self.document["short_names"][signature[at["name"]]]
            category = values[at["category"]][signature[at["category"]]]
            return Told(short, category, start_ns, start_ns + int(lengths[place]))
        raise AssertionError(start_ns)


class Exported:
    """A Perfetto trace, read back."""

    def __init__(self, path: Path) -> None:
        trace = decoded(path)
        self.tracks = {
            packet.track_descriptor.uuid: packet.track_descriptor
            for packet in trace.packet
            if packet.HasField("track_descriptor")
        }
        self.slices = replayed(trace)
        interned = [packet.interned_data for packet in trace.packet]
        self.hues = {one.iid: one.str.decode() for data in interned for one in data.correlation_id_str}
        self.begun = {
            (packet.track_event.track_uuid, packet.timestamp): self.hues[packet.track_event.correlation_id_str_iid]
            for packet in trace.packet
            if packet.track_event.type == BEGIN and packet.track_event.correlation_id_str_iid
        }

    def below(self, label: str) -> set[str]:
        """Names of the tracks right below one, or below those that lie below it."""
        own = {number for number, track in self.tracks.items() if track.name == label}
        found: set[str] = set()
        while own:
            own = {number for number, track in self.tracks.items() if track.parent_uuid in own}
            found |= {self.tracks[number].name for number in own}
        return found

    def slice(self, above: str, track: str, start_ns: int) -> tuple[str, str, int]:
        """Name, text of the colour and end of the slice of a track that starts at a time."""
        for name, slice_name, number, start, end in self.slices:
            descriptor = self.tracks[number]
            parent = self.tracks.get(descriptor.parent_uuid)
            if name == track and start == start_ns and (track == above or (parent and parent.name == above)):
                return slice_name, self.begun[number, start], end
        raise AssertionError((track, start_ns))


def test_a_micro_batch_of_an_iteration_is_the_same_on_all_five_surfaces(source, model, tmp_path) -> None:
    rank = model.lane(f"rank:{RANK}")
    lane = next(lane for lane in model.lanes(rank.key) if lane.kind is LaneKind.MICROBATCHES)
    row = next(row for row in range(lane.rows) if of_terminal(model, lane.key, row).kind == "backward_odd")
    told = of_terminal(model, lane.key, row)
    assert told.name == "backward 0 chunk 1"
    assert of_live_page(model, lane.key, row) == told
    assert Report(read_timeline(source)).step(RANK, row) == told
    write_iteration_trace(source, tmp_path / "out.pftrace")
    name, hue, end = Exported(tmp_path / "out.pftrace").slice(rank.label, rank.label, told.start_ns)
    assert (name, end, hue) == (told.name, told.end_ns, colour_text(told.kind))
    figure = draw_rank_timeline(source, RANK)
    drawn = collections(figure)[f"rank-{RANK}/backward-1"]
    assert drawn.colour == word_of(told.kind).colour
    [table] = (
        source.lake.query(
            f"SELECT min(start_ns) AS first FROM kernels WHERE rank = {RANK} "
            f"UNION ALL SELECT min(window_start_ns) FROM overlap WHERE rank = {RANK} AND window_name = 'step'"
        )
        .to_pydict()
        .values()
    )
    assert min(table) + int(np.round(drawn.starts[0])) == told.start_ns
    assert min(table) + int(np.round(drawn.ends[0])) == told.end_ns


def test_a_kernel_of_an_iteration_has_one_name_colour_and_time(source, model, tmp_path) -> None:
    rank = model.lane(f"rank:{RANK}")
    lane = next(lane for lane in model.lanes(rank.key) if lane.kind is LaneKind.STREAM)
    told = of_terminal(model, lane.key, lane.rows // 2)
    assert of_live_page(model, lane.key, lane.rows // 2) == told
    stream = int(lane.key.rpartition(":")[2])
    assert Report(read_timeline(source)).kernel(RANK, told.start_ns, stream) == told
    write_iteration_trace(source, tmp_path / "out.pftrace")
    name, hue, end = Exported(tmp_path / "out.pftrace").slice(rank.label, lane.label, told.start_ns)
    # Perfetto has the full name, which its users search and join by.
    assert (name, end) == (model.detail(SliceId(lane.key, lane.rows // 2)).full_name, told.end_ns)
    assert hue == colour_text(told.kind)
    boxes = collections(draw_rank_timeline(source, RANK))
    assert boxes[f"rank-{RANK}/computation/{told.kind}"].colour == word_of(told.kind).colour


def test_a_call_of_the_host_has_one_name_colour_and_time(source, model, tmp_path) -> None:
    rank = model.lane(f"rank:{RANK}")
    lane = next(lane for lane in model.lanes(rank.key) if lane.kind is LaneKind.CALLS)
    told = of_terminal(model, lane.key, lane.rows // 2)
    assert of_live_page(model, lane.key, lane.rows // 2) == told
    write_iteration_trace(source, tmp_path / "out.pftrace")
    found = Exported(tmp_path / "out.pftrace").slice(rank.label, lane.label, told.start_ns)
    assert found == (told.name, colour_text(told.kind), told.end_ns)


def test_an_operation_of_a_profile_is_the_same_on_all_its_surfaces(export, tmp_path) -> None:
    model, rules, profile = profile_model(export, None), load_rules(None), open_profile(export, None)
    gpus = activities(profile, rules)
    report = Report(profile_timeline(profile, gpus, rules, "job.sqlite", None, 1000))
    write_perfetto(profile, gpus, tmp_path / "out.pftrace")
    exported = Exported(tmp_path / "out.pftrace")
    for lane, stream in (("gpu:0/stream:7", 7), ("gpu:0/stream:20", 20)):
        told = of_terminal(model, lane, 0)
        assert of_live_page(model, lane, 0) == told
        assert report.kernel(0, told.start_ns, stream) == told
        found = exported.slice("GPU 0", model.lane(lane).label, told.start_ns)
        assert found == (model.detail(SliceId(lane, 0)).full_name, colour_text(told.kind), told.end_ns)


def test_no_surface_has_lanes_of_its_own(source, model, export, tmp_path) -> None:
    lanes = every_lane(model)
    of_rank = {lane.label for key, lane in lanes.items() if key.startswith(f"rank:{RANK}/")}
    report = Report(read_timeline(source))
    for row in report.document["ranks"]:
        assert row["label"] == lanes[f"rank:{row['rank']}"].label
        shown = {lane["key"]: lane["label"] for lane in row["lanes"]}
        assert len(shown) > 5 and shown.items() <= {key: lane.label for key, lane in lanes.items()}.items()
    write_iteration_trace(source, tmp_path / "iteration.pftrace")
    exported = Exported(tmp_path / "iteration.pftrace").below(lanes[f"rank:{RANK}"].label)
    assert len(exported) > 5 and exported <= of_rank
    # The rank's own lane is three rows of a figure, so that what is hidden lies below what hides it.
    words = set(texts(draw_rank_timeline(source, RANK)))
    legend = {"communication", *(word_of(kind).label for kind in ("exposed", "hidden"))}
    assert {label for label in words if label.endswith("communication")} - legend == {
        lane.label for key, lane in lanes.items() if key.startswith(f"rank:{RANK}/dimension:")
    }
    assert {"micro-batches", "computation", "wall clock"} <= words

    profile, rules = open_profile(export, None), load_rules(None)
    gpus, lanes = activities(profile, rules), every_lane(profile_model(export, None))
    report = Report(profile_timeline(profile, gpus, rules, "job.sqlite", None, 1000))
    for row in report.document["ranks"]:
        shown = {lane["key"]: lane["label"] for lane in row["lanes"]}
        assert len(shown) > 3 and shown.items() <= {key: lane.label for key, lane in lanes.items()}.items()
    write_perfetto(profile, gpus, tmp_path / "profile.pftrace")
    labels = {track.name for track in Exported(tmp_path / "profile.pftrace").tracks.values()}
    assert labels - {"about this trace"} <= {lane.label for lane in lanes.values()}


def test_every_kind_that_a_lane_shows_has_words_and_a_colour(model, export) -> None:
    for walked in (model, profile_model(export, None)):
        for lane in every_lane(walked).values():
            if lane.rows and lane.kind is not LaneKind.COUNTER:
                kinds = walked.slices(lane.key, Window(*walked.span), 10).kinds
                assert not [kind for kind in kinds if word_of(kind).colour == word_of("").colour]


def test_ranks_are_grouped_by_pipeline_and_by_node_those_at_fault_first(source, model) -> None:
    found = model.groupings
    assert read_timeline(source).document["groupings"] == found
    by_stage = source.lake.query(
        "SELECT pipeline, list(rank ORDER BY stage) AS ranks FROM topology GROUP BY 1"
    ).to_pylist()
    assert {group.ranks for group in found["pipeline"]} == {tuple(row["ranks"]) for row in by_stage}
    # Nodes of two ranks each, as the job was simulated.
    assert sorted(group.ranks for group in found["node"]) == [(0, 1), (2, 3)]
    for groups in found.values():
        assert [group.first for group in groups] == sorted((group.first for group in groups), reverse=True)

"""The report in Chromium, opened from disk with the network off: numbers, timeline, keys, links, dark, print."""

from __future__ import annotations

import json
import random
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.commands.jobs import analysed_at, home_of, traces_of
from tests.end_to_end.measured import measured, printed
from traceviz_dag.analyze.overlap import window_overlap
from traceviz_dag.commands.main import app
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.pipeline.report import write_report
from traceviz_dag.show.page import palette
from traceviz_dag.vocabulary import Category

AXE = Path(__file__).parents[2] / ".ci/page/node_modules/axe-core/axe.min.js"


@pytest.fixture(scope="module")
def place() -> tuple[Lake, str, int]:
    lake = open_lake(home_of("slow_rank"))
    (part,) = lake.partitions("topology")
    return lake, part.run, part.iteration


@pytest.fixture(scope="module")
def file(place, tmp_path_factory) -> Path:
    return write_report(*place, tmp_path_factory.mktemp("report") / "job.html")


class Shown:
    """A page, and what went wrong on it."""

    def __init__(self, browser: Any, file: Path, fragment: str = "", **context: Any) -> None:
        self.context = browser.new_context(offline=True, viewport={"width": 1280, "height": 800}, **context)
        self.page = self.context.new_page()
        self.faults: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", lambda message: self.faults.append(message.text))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri() + fragment)
        self.page.wait_for_selector("body[data-ready=yes]")

    def look(self) -> tuple[float, float]:
        return tuple(self.page.evaluate("[traceviz.timeline.looking.from, traceviz.timeline.looking.to]"))

    def pixels(self) -> int:
        """How many colours the canvas shows."""
        return self.page.evaluate(
            "(() => { const c = traceviz.timeline.canvas, p = new Uint32Array(c.getContext('2d').getImageData(0, 0, "
            "c.width, c.height).data.buffer); return new Set(p).size; })()"
        )

    def colours(self) -> set[str]:
        """Those of the canvas."""
        text = (
            "(() => { const { canvas } = traceviz.timeline, { width, height } = canvas, found = new Set(), "
            "copy = new OffscreenCanvas(width, height).getContext('2d'); copy.drawImage(canvas, 0, 0); "
            "const p = copy.getImageData(0, 0, width, height).data; "
            "for (let i = 0; i < p.length; i += 4) found.add((p[i] << 16) | (p[i + 1] << 8) | p[i + 2]); "
            "return [...found]; })()"
        )
        return {f"#{colour:06X}" for colour in self.page.evaluate(text)}

    def settle(self) -> None:
        self.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


@pytest.fixture
def shown(browser: Any, file: Path) -> Iterator[Shown]:
    found = Shown(browser, file, "#part=timeline")
    yield found
    assert found.faults == []
    assert [url for url in found.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    found.context.close()


@pytest.mark.long
def test_windows_are_measured_as_the_command_does(shown: Shown, place) -> None:
    lake, run, iteration = place
    draw = random.Random(5)
    shown.settle()
    for rank in shown.page.evaluate("traceviz.model.ranks.map((rank) => rank.rank)"):
        kernels = lake.table("kernels", run, iteration, rank).arrow()
        starts = kernels["start_ns"].to_pylist()
        low, high = min(starts), max(starts)
        for _ in range(6):
            start = draw.randint(low, high)
            end = start + draw.choice([1, 1_000, 77_777, 3_000_000, high - low])
            rows = {row["dimension"]: row for row in window_overlap(kernels, "clip", start, end).to_pylist()}
            got = shown.page.evaluate(
                "([rank, start, end]) => { const r = traceviz.model.byRank.get(rank); const at = (t) => "
                "Number(BigInt(t) - r.firstNs); const { dimensions, ...rest } = "
                "traceviz.measured(traceviz.model, r, at(start), at(end)); return { all: rest, "
                "...Object.fromEntries(dimensions) }; }",
                [rank, str(start), str(end)],
            )
            assert got["all"]["kernels"] == rows["all"]["kernels"]
            names = ("compute", "communication", "hidden", "exposed", "memory", "idle")
            of_dimension = names[1:4]
            assert got.keys() <= rows.keys()
            for dimension, row in rows.items():
                found = got.get(dimension, dict.fromkeys(of_dimension, 0))
                wanted = names if dimension == "all" else of_dimension
                assert {name: found[name] for name in wanted} == {name: row[f"{name}_ns"] for name in wanted}, dimension


@pytest.mark.long
def test_each_gpu_of_a_rank_is_measured_by_itself(browser: Any, tmp_path: Path) -> None:
    folder = tmp_path / "two_gpus"
    shutil.copytree(traces_of("one_rank"), folder)
    (path,) = folder.glob("iteration_*/rank_0000*")
    trace = json.loads(path.read_text())
    on_gpus = [event for event in trace["traceEvents"] if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    for event in on_gpus[::2]:
        event["args"]["device"] = 1
    path.write_text(json.dumps(trace))
    (stored,) = analysed_at(folder)
    shown = Shown(
        browser, write_report(stored.lake, stored.run, stored.iteration, tmp_path / "page.html"), "#part=timeline"
    )
    shown.page.focus("#timeline-canvas")
    shown.page.keyboard.press("w")
    shown.page.keyboard.press("m")
    command = shlex.split(shown.page.inner_text("#details code"))
    result = CliRunner().invoke(app, [*command[1:], "--home", str(stored.lake.home), "--json"])
    rows = [row for row in json.loads(result.stdout) if row["dimension"] == "all"]
    assert len({row["device"] for row in rows}) == 2
    headings = shown.page.locator("#details h4").all_inner_texts()
    found = measured(shown.page, "rank:0")
    assert len(found) == 2
    for row, said in zip(rows, found, strict=True):
        assert any(row["device"] in heading for heading in headings)
        assert printed(row).items() <= said.items()
    shown.context.close()


@pytest.mark.long
def test_the_command_on_the_page_measures_the_same(shown: Shown, place) -> None:
    page = shown.page
    page.focus("#timeline-canvas")
    for key in "wwdm":
        page.keyboard.press(key)
    (said,) = measured(page, "rank:0")
    command = shlex.split(page.inner_text("#details code"))
    assert command[0] == "traceviz"
    result = CliRunner().invoke(app, [*command[1:], "--home", str(place[0].home), "--json"])
    assert result.exit_code == 0, result.output
    (row,) = [row for row in json.loads(result.stdout) if row["dimension"] == "all"]
    assert printed(row).items() <= said.items()


def test_keys_move_zoom_undo_and_reach_everything(shown: Shown) -> None:
    page = shown.page
    page.focus("#timeline-canvas")
    whole = shown.look()
    page.keyboard.press("w")
    zoomed = shown.look()
    assert zoomed[1] - zoomed[0] == pytest.approx((whole[1] - whole[0]) * 0.7, rel=1e-6)
    page.keyboard.press("ArrowRight")
    assert shown.look()[0] > zoomed[0]
    page.keyboard.press("u")
    assert shown.look() == zoomed
    page.keyboard.press("u")
    assert shown.look() == whole
    page.keyboard.press("U")
    assert shown.look() == zoomed
    page.keyboard.press("0")
    assert shown.look() == whole
    page.keyboard.press("Tab")
    first = page.inner_text("#details h3")
    assert first.startswith("forward ") and "micro-batches" in page.inner_text("#details")
    page.keyboard.press("Tab")
    assert page.inner_text("#details h3") != first
    page.keyboard.press("z")
    assert shown.look()[1] - shown.look()[0] < (whole[1] - whole[0]) / 2
    page.keyboard.press("g")
    assert "without computation" in page.inner_text("#details")
    page.keyboard.press("m")
    assert "Window of" in page.inner_text("#details h3")
    page.keyboard.press("c")
    assert page.get_attribute("#path-button", "aria-pressed") == "true"
    page.keyboard.press("?")
    assert page.locator("#help[open] kbd").count() > 20
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0
    page.keyboard.press("f")
    assert page.is_visible("#part-findings")
    assert page.evaluate("document.activeElement.matches('#part-findings .card')")
    page.keyboard.press("t")
    assert page.is_visible("#part-timeline")
    before = shown.look()
    page.keyboard.press("ArrowLeft")
    assert shown.look()[0] < before[0], "the keys after t are the timeline's"
    page.keyboard.press("Shift+W")
    assert shown.look()[1] - shown.look()[0] < before[1] - before[0], "a capital that means nothing is its small letter"


@pytest.mark.long
def test_a_dialog_keeps_its_keys_and_the_last_slice_lets_tab_go_on(browser: Any, file: Path) -> None:
    shown = Shown(browser, file, "#part=findings")
    shown.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = shown.page
    before = shown.look()
    page.click("#part-findings [data-evidence] >> nth=0")
    for key in ("w", "y", "t"):
        page.keyboard.press(key)
    assert shown.look() == before
    assert page.evaluate("navigator.clipboard.readText()") == page.inner_text("dialog[open] code")
    page.keyboard.press("q")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search", "from any part"
    page.keyboard.press("Escape")
    page.keyboard.press("t")
    page.evaluate(
        "(() => { const { model, source, timeline } = traceviz, lane = model.lane('rank:0/microbatches'); "
        "return timeline.goTo(source.place(lane, lane.slices.start.length - 1)); })()"
    )
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") != "timeline-canvas"
    assert shown.faults == []
    shown.context.close()


@pytest.mark.long
def test_search_filter_hover_and_click(shown: Shown, place) -> None:
    lake, run, iteration = place
    (name,) = lake.query(
        "SELECT mode(name) AS name FROM kernels WHERE run = $run AND iteration = $iteration AND kind = 'communication'",
        {"run": run, "iteration": iteration},
    ).to_pylist()
    count = lake.query(
        "SELECT count(*) AS n FROM kernels WHERE run = $run AND iteration = $iteration AND contains(name, $name)",
        {"run": run, "iteration": iteration, **name},
    ).to_pylist()[0]["n"]
    page = shown.page
    page.keyboard.press("/")
    page.keyboard.type(name["name"])
    assert page.inner_text("#matches") == f"{count:,} found"
    page.keyboard.press("Enter")
    assert page.inner_text("#matches") == f"1 of {count:,}"
    shown.settle()
    assert name["name"] in page.inner_text("#details")
    assert "known from" in page.inner_text("#details")
    sql = page.inner_text("#details code")
    (row,) = lake.query(sql).to_pylist()
    assert row["name"] == name["name"]
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    box = page.locator("#timeline-canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 60)
    page.mouse.wheel(0, -2000)
    shown.settle()
    page.uncheck("#filters input[value=fwd_computation]")
    shown.settle()
    kinds = page.evaluate(
        "(() => { const { tiles } = traceviz.timeline; return ['rank:0', 'rank:1'].flatMap((key) => "
        "tiles.known.get(key).bands.flatMap(({ boxes }) => "
        "boxes ? Array.from(boxes.kind, (kind) => boxes.kinds[kind]) : [])); })()"
    )
    assert "fwd_computation" not in kinds
    assert "bwd_computation" in kinds
    page.keyboard.press("0")
    shown.settle()
    optimizer = palette.CATEGORY[Category.OPTIMIZER_COMPUTATION]
    assert optimizer in shown.colours()
    page.uncheck("#filters label:has-text('optimizer') input")
    shown.settle()
    assert optimizer not in shown.colours(), "left out far away, too"


@pytest.mark.long
def test_a_link_shows_the_same(browser: Any, file: Path, shown: Shown) -> None:
    shown.page.focus("#timeline-canvas")
    shown.page.keyboard.press("w")
    shown.page.keyboard.press("w")
    for rank in (2, 5):
        shown.page.evaluate("(rank) => traceviz.timeline.toggle(`rank:${rank}`)", rank)
    shown.page.select_option("#clocks", "individual")
    headings = "traceviz.timeline.lanes.rows.filter((row) => row.lane.kind === 'group').length"
    assert shown.page.evaluate(headings) > 1
    shown.page.select_option("#grouping", "rank")
    shown.settle()
    assert shown.page.evaluate(headings) == 0
    shown.page.fill("#search", "nccl")
    shown.page.press("#search", "Enter")
    shown.page.press("#search", "Escape")
    shown.page.keyboard.press("c")
    shown.settle()
    shown.page.wait_for_timeout(300)
    fragment = shown.page.evaluate("location.hash")
    other = Shown(browser, file, fragment)
    assert other.look() == pytest.approx(shown.look(), abs=1)
    same = (
        "({ open: [...traceviz.timeline.lanes.open].sort(), by: document.getElementById('grouping').value, "
        "clocks: document.getElementById('clocks').value, "
        "sentence: document.getElementById('clocks-sentence').textContent, path: traceviz.timeline.showsPath, "
        "title: document.querySelector('#details h3').textContent, found: traceviz.timeline.hits.page.total })"
    )
    assert other.page.evaluate(same) == shown.page.evaluate(same)
    assert {"rank:2", "rank:5"} <= set(other.page.evaluate(same)["open"])
    assert "first kernel" in other.page.evaluate(same)["sentence"]
    assert other.page.is_visible("#part-timeline")
    assert other.faults == []
    other.context.close()


def test_numbers_lead_to_their_rows_and_query(browser: Any, file: Path, place) -> None:
    shown = Shown(browser, file)
    page = shown.page
    assert page.is_visible("#part-overview")
    page.click("#part-overview .step .fact >> nth=0")
    assert page.locator("dialog[open] table tbody tr").count() == 1
    sql = page.inner_text("dialog[open] code")
    assert place[0].query(sql).num_rows == 1
    page.keyboard.press("Escape")
    page.click("#tab-findings")
    page.click("#part-findings [data-finding] >> nth=0")
    assert page.is_visible("#part-timeline")
    assert page.evaluate("traceviz.timeline.lanes.open.size") == 1
    assert shown.faults == []
    shown.context.close()


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_drawn_and_accessible_light_and_dark(browser: Any, file: Path, scheme: str) -> None:
    shown = Shown(browser, file, "#part=timeline", color_scheme=scheme)
    shown.settle()
    assert shown.pixels() > 20
    if AXE.is_file():
        shown.page.evaluate(AXE.read_text())
        for part in shown.page.evaluate("[...document.querySelectorAll('[role=tab]')].map((tab) => tab.dataset.part)"):
            shown.page.click(f"#tab-{part}")
            found = shown.page.evaluate("axe.run()")
            grave = [each for each in found["violations"] if each["impact"] in ("serious", "critical")]
            told = [(each["id"], [node["html"][:200] for node in each["nodes"]][:3]) for each in grave]
            assert not told, json.dumps(told, indent=1)
    shown.context.close()


@pytest.mark.long
def test_it_prints_every_part(browser: Any, file: Path) -> None:
    shown = Shown(browser, file, color_scheme="dark")
    assert len(shown.colours()) == 1, "nobody has looked at the timeline"
    assert len(shown.page.pdf()) > 20_000
    assert len(shown.colours()) > 20
    assert "#16191D" not in shown.colours(), "dark screens print on white paper"
    shown.page.emulate_media(media="print")
    for part in shown.page.locator("[role=tabpanel]").all():
        assert part.is_visible()
    assert not shown.page.is_visible("[role=tablist]")
    shown.context.close()


@pytest.mark.long
def test_a_cell_of_the_map_shows_its_waits_and_narrow_windows_scroll_by_keys(browser: Any, file: Path, place) -> None:
    lake, run, iteration = place
    found = Shown(browser, file, "#part=waits")
    cells = found.page.locator("a.cell")
    cells.first.focus()
    found.page.keyboard.press("ArrowRight")
    found.page.keyboard.press("Enter")
    panel = found.page.locator("#pair")
    waiting, late = (int(word) for word in re.findall(r"rank (\d+)", panel.locator("h3").inner_text()))
    rows = panel.locator("tbody tr")
    wanted = lake.query_iteration(
        "SELECT dimension, waits FROM blame WHERE run = $run AND iteration = $iteration "
        f"AND rank = {waiting} AND late_rank = {late} ORDER BY wait_ns DESC, dimension",
        run=run,
        iteration=iteration,
    ).to_pylist()
    shown = [[cell.inner_text() for cell in row.locator("td").all()[:2]] for row in rows.all()]
    assert shown == [[row["dimension"], f"{row['waits']:,}"] for row in wanted]
    assert shown
    found.page.set_viewport_size({"width": 400, "height": 800})
    found.settle()
    for tab in found.page.locator("[role=tab]").all():
        tab.click()
        found.settle()
        width = found.page.evaluate("document.documentElement.scrollWidth")
        assert width <= 400, (tab.inner_text(), width)
    found.page.click("#tab-waits")
    assert found.page.evaluate(
        "[...document.querySelectorAll('#part-waits .scroll')].every((each) => each.scrollWidth <= each.clientWidth"
        " || each.tabIndex === 0)"
    )
    assert found.faults == []
    found.context.close()


@pytest.mark.long
def test_lanes_hits_filters_and_bookmarks_are_those_of_the_live_page(browser: Any, file: Path, shown: Shown) -> None:
    page = shown.page
    page.focus("#timeline-canvas")
    # A lane is opened, chosen and pinned by keys; the link keeps it, as it keeps what is left out.
    page.evaluate("traceviz.timeline.reveal('rank:2')")
    for key in (" ", "j", "j", "p"):
        page.keyboard.press(key)
    page.fill("#shortest", "2")
    page.uncheck("#legend input[value=fwd_computation]")
    page.fill("#search", "nccl")
    page.press("#search", "Enter")
    page.press("#search", "Escape")
    page.keyboard.press("h")
    shown.settle()
    assert page.locator("#details .finder").count() == 100
    page.wait_for_timeout(300)
    other = Shown(browser, file, page.evaluate("location.hash"))
    state = (
        "(() => { const { lanes, filters, hits } = traceviz.timeline; "
        "return [lanes.pinned, filters.asked, hits.page.total]; })()"
    )
    assert other.page.evaluate(state) == page.evaluate(state)
    pinned, asked, total = page.evaluate(state)
    assert pinned[0].startswith("rank:2/gpu:") and total > 100
    assert asked == {"without": ["fwd_computation"], "least": 2000}
    other.context.close()
    # A bookmark has a note, shows its window, and can be forgotten.
    page.focus("#timeline-canvas")
    page.keyboard.press("w")
    before = shown.look()
    page.keyboard.press("b")
    page.keyboard.type("<i>here")
    page.keyboard.press("Enter")
    page.keyboard.press("0")
    page.click("#bookmarks button >> nth=0")
    assert shown.look() == pytest.approx(before, abs=1)
    page.click("#bookmarks button >> nth=1")
    assert page.locator("#bookmarks button").count() == 0
    # All ranks are measured, and a name of the table leads to a slice.
    page.focus("#timeline-canvas")
    page.keyboard.press("M")
    ranks = page.evaluate("traceviz.model.ranks.length")
    assert page.locator("#details table td:first-child").count() == ranks
    name = page.locator("#details .finder").first
    wanted = name.inner_text()
    name.click()
    assert page.inner_text("#details h3") == wanted
    # A folded group is the mean of its ranks; whoever rests on a slice is told all that is known of it.
    page.keyboard.press("Escape")
    page.evaluate(
        "(() => { const { timeline } = traceviz; timeline.scrollTo(0); "
        "return timeline.soon(() => timeline.toggle(timeline.grouping.groups[0].key)); })()"
    )
    shown.settle()
    mean = "traceviz.timeline.tiles.known.get(traceviz.timeline.grouping.groups[0].key).bands[0].shares.whole"
    assert max(page.evaluate(f"Array.from({mean})")) > 0
    box = page.locator("#timeline-canvas").bounding_box()
    row = page.evaluate("traceviz.timeline.lanes.rows.find((row) => row.lane.kind === 'microbatches').top") + 60
    for moved in range(100):
        page.mouse.move(box["x"] + 220 + 5 * moved, box["y"] + row)
        if page.is_visible("#tip"):
            break
    page.locator("#tip", has_text="start on its clock").wait_for(timeout=5000)

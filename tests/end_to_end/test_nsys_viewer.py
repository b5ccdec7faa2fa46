"""The HTML viewer of Nsight Systems profiles in Chromium, with the network off: what it shows equals the export."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from tests.analyze.across_ranks import SMALL
from tests.damage import call
from tests.end_to_end.measured import measured, printed
from tests.end_to_end.test_report import Shown
from tests.nsys_file import small_export
from traceviz_dag.analyze.nsys.activity import Clip, activities
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.read.nsys.reader import read_nsys
from traceviz_dag.show.nsys.viewer import viewer_page
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import Format


@pytest.fixture(scope="module")
def export(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    settings = {**SMALL, "layers": 4, "node_size": 4, "format": Format.NSYS}
    simulate(JobSettings(tp=2, pp=2, microbatches=2, **settings), folder, workers=1)
    return folder / "node0.sqlite"


@pytest.fixture(scope="module")
def page(export, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("viewer")
    answer = call("nsys", "viewer", export, "-o", folder / "job.html", "--home", folder / "home")
    assert answer.code == 0, answer.err
    return folder / "job.html"


@pytest.mark.long
def test_the_page_finds_follows_and_measures_what_the_export_holds(browser, export, page, tmp_path):
    shown = Shown(browser, page)
    look = shown.page
    assert [url for url in shown.requests if not url.startswith(("file:", "blob:", "data:"))] == []
    with sqlite3.connect(export) as database:

        def one(sql, *values):
            return database.execute(sql, values).fetchone()[0]

        kernels = one("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE deviceId = 0")
        moved = one(
            "SELECT (SELECT count(*) FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE deviceId = 0)"
            " + (SELECT count(*) FROM CUPTI_ACTIVITY_KIND_MEMSET WHERE deviceId = 0)"
        )
        assert look.evaluate("traceviz.model.byRank.get(0).kernels.start.length") == kernels + moved
        # A search finds kernels, ranges and calls; x leads from a kernel to its call, and back.
        look.fill("#search", "cuLaunchKernel")
        look.press("#search", "Enter")
        said = "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds ON id = nameId WHERE value LIKE ?"
        assert look.inner_text("#matches") == f"1 of {one(said, 'cuLaunchKernel%'):,}"
        call_sql = look.inner_text("#details code")
        correlation = database.execute(call_sql.replace("*", "correlationId")).fetchone()[0]
        look.focus("#timeline-canvas")
        look.keyboard.press("x")
        kernel_sql = look.inner_text("#details code")
        assert database.execute(kernel_sql.replace("*", "correlationId")).fetchone()[0] == correlation
        look.keyboard.press("x")
        assert look.inner_text("#details code") == call_sql
        # An idle time is what the command finds there; a key for what the page lacks does nothing.
        look.keyboard.press("g")
        assert "lane\nidle" in look.inner_text("#details")
        asked = look.inner_text("#details code").split()
        (idle,) = json.loads(call(*asked[1:], "--home", page.parent / "home", "--json").out)
        assert [gap["duration_ns"] for gap in idle["gaps"]] == [idle["idle_ns"]]
        assert f"({idle['idle_ns']:,} ns)" in look.inner_text("#details")
        look.keyboard.press("f")
    # A window that is measured is what the command says.
    look.evaluate("traceviz.timeline.selection = { from: 1234567, to: 9876543 }")
    look.keyboard.press("m")
    command = look.inner_text("#details code").split()
    home = page.parent / "home"
    (told,) = json.loads(call(*command[1:], "--home", home, "--json").out)
    (said,) = measured(look, "gpu:0")
    assert said == printed(told)
    assert told["window_start_ns"] - int(look.evaluate("String(traceviz.model.ranks[0].firstNs)")) == 1234567
    assert shown.faults == []
    shown.context.close()


@pytest.mark.long
def test_a_filter_hides_its_kind_from_afar_too(browser, page):
    shown = Shown(browser, page)
    look = shown.page
    kinds = ("computation", "communication", "memory")
    hidden = {}
    for kind in kinds:
        box = look.locator(f"#filters input[value={kind}]")
        box.uncheck()
        parts = "traceviz.model.document.parts.filter((_) => traceviz.timeline.filters.leavesOut(_))"
        hidden[kind] = look.evaluate(f"{parts}.map((part) => traceviz.model.document.words[part][0])")
        box.check()
    assert hidden == {
        "computation": ["computation"],
        "communication": ["exposed communication", "hidden communication"],
        "memory": ["memory operations alone"],
    }
    shown.context.close()


@pytest.mark.long
def test_tables_lead_to_the_timeline_and_an_address_shows_the_same_again(browser, page):
    shown = Shown(browser, page, color_scheme="dark")
    look = shown.page
    look.click("#tab-kernels")
    assert look.evaluate("traceviz.timeline.lanes.isOpen('gpu:0') && !traceviz.timeline.lanes.isOpen('gpu:1')")
    name = look.locator("#part-kernels .finder").last
    wanted = name.get_attribute("data-find")
    name.click()
    assert look.is_visible("#timeline-canvas")
    assert look.get_attribute("#details h3", "title") == wanted
    assert look.inner_text("#details").split("\n")[1:3] == ["GPU", "3"]
    look.click("#tab-tree")
    range_row = look.locator("#part-tree .finder", has_text="aten::mm").first
    range_row.dispatch_event("click")
    assert look.get_attribute("#details h3", "title") == range_row.get_attribute("data-find")
    told = look.inner_text("#details")
    look.click("#tab-tree")
    folded = look.locator("#part-tree details:not([open]) > summary").first
    before = look.locator("#part-tree .tree-row:visible").count()
    folded.click(position={"x": 4, "y": 8})
    assert look.locator("#part-tree .tree-row:visible").count() > before
    look.click("#tab-timeline")
    look.focus("#timeline-canvas")
    look.keyboard.press("w")
    look.wait_for_timeout(300)
    seen, address = shown.look(), look.evaluate("location.hash")
    again = Shown(browser, page, address)
    assert again.look() == pytest.approx(seen, abs=1)
    assert again.page.inner_text("#details") == told
    assert shown.faults == again.faults == []
    shown.context.close()
    again.context.close()


def _small_page(tmp_path, most=1000, window=None):
    export = small_export()
    export.range(50, 60, "</script><b>not markup</b>")
    profile = read_nsys(export.write(tmp_path / f"small{most}.sqlite"))
    rules = load_rules()
    return viewer_page(profile, activities(profile, rules), rules, window, most)


@pytest.mark.long
def test_names_stay_texts(browser, tmp_path):
    (tmp_path / "page.html").write_text(_small_page(tmp_path))
    shown = Shown(browser, tmp_path / "page.html")
    shown.page.click("#tab-tree")
    assert "<b>not markup</b>" in shown.page.text_content("#part-tree")
    assert shown.faults == []
    shown.context.close()


def test_a_page_that_leaves_slices_out_says_so(tmp_path):
    text = _small_page(tmp_path, most=3)
    assert "are left out of the close view" in text
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text
    assert "are left out of the close view" not in _small_page(tmp_path)


def test_a_window_without_anything_in_it_is_an_empty_page(tmp_path):
    assert "GPU 0" in _small_page(tmp_path, window=Clip(10**6, 10**6 + 5))


@pytest.mark.long
def test_a_range_in_a_window_shows_all_that_it_launched(browser, tmp_path):
    (tmp_path / "page.html").write_text(_small_page(tmp_path, window=Clip(0, 250)))
    shown = Shown(browser, tmp_path / "page.html")
    shown.page.fill("#search", "Iteration 5")
    shown.page.press("#search", "Enter")
    told = shown.page.inner_text("#details")
    assert "3 kernels and memory operations" in told
    assert "first start to last end\n600 ns" in told
    shown.context.close()

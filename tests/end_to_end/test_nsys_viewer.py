"""The HTML viewer of Nsight Systems profiles in Chromium, with the network off."""

from __future__ import annotations

from tests.nsys_file import small_export
from traceviz_dag.analyze.nsys.activity import activities
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.read.nsys.reader import read_nsys
from traceviz_dag.show.nsys.viewer import viewer_page


def _page(tmp_path, most=1000):
    export = small_export()
    export.range(50, 60, "</script><b>not markup</b>")
    profile = read_nsys(export.write(tmp_path / "small.sqlite"))
    page = tmp_path / "report.html"
    page.write_text(viewer_page(profile, activities(profile, load_rules()), most=most))
    return page


def test_the_page_shows_searches_and_zooms_without_a_network(browser, tmp_path):
    context = browser.new_context(offline=True, viewport={"width": 1200, "height": 900})
    shown = context.new_page()
    faults, requests = [], []
    shown.on("pageerror", lambda error: faults.append(str(error)))
    shown.on("request", lambda request: requests.append(request.url))
    shown.goto(_page(tmp_path).as_uri())
    shown.wait_for_selector("body[data-ready=yes]")
    assert [url for url in requests if not url.startswith(("file:", "blob:", "data:"))] == []
    assert shown.locator("#overlap tbody tr").count() == 1
    assert shown.locator("#overlap tbody td").nth(1).inner_text() == "3"
    before = shown.evaluate("[from, to]")
    shown.click("#in")
    after = shown.evaluate("[from, to]")
    assert after[1] - after[0] < before[1] - before[0]
    shown.fill("#search", "GEMM")
    shown.press("#search", "Enter")
    assert shown.inner_text("#matches") == "1 of 2"
    assert "gemm" in shown.inner_text("#chosen")
    shown.click("text=NVTX tree")
    assert shown.locator("#tree tbody tr:visible").count() == 1
    shown.locator("#tree .twist").first.click()
    assert "<b>not markup</b>" in shown.text_content("#tree")
    pixels = shown.evaluate(
        "[...g.getImageData(0, 0, canvas.width, canvas.height).data].some((v, i) => i % 4 < 3 && v < 120)"
    )
    assert pixels
    assert faults == []
    context.close()


def test_a_page_that_leaves_slices_out_says_so(tmp_path):
    text = _page(tmp_path, most=3).read_text()
    assert "slices shorter than" in text
    assert "http://" not in text
    assert "https://" not in text

"""The live timeline in Chromium: keys, measures that equal the command and SQL, hostile names, other origins."""

from __future__ import annotations

import json
import shlex
import sqlite3
import threading
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from tests.end_to_end.measured import measured
from tests.end_to_end.measured import printed as shown_as
from tests.nsys_file import small_export
from tests.show.home import fill_home
from traceviz_dag.commands.main import app
from traceviz_dag.pipeline.live_pages import iteration_source, profile_source
from traceviz_dag.show.web.listen import LoopbackServer, listen
from traceviz_dag.show.web.live.sources import Sources
from traceviz_dag.show.web.site import site
from traceviz_dag.simulate import JobSettings, simulate

pytestmark = pytest.mark.long

TOKEN = "t" * 32
HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[2J\u202e<b>"


@contextmanager
def served(home, profiles):
    """The origin of a server."""
    opened = Sources(
        lambda run, number: iteration_source(home, run, number), [profile_source(each, home) for each in profiles]
    )
    with listen(0) as listening:
        port = listening.getsockname()[1]
        server = LoopbackServer(site(home, TOKEN, port, sources=opened))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join()


class Live:
    """A live page, what it asked for, and what went wrong on it."""

    def __init__(self, browser, origin, path):
        self.context = browser.new_context(viewport={"width": 1280, "height": 800})
        self.page = self.context.new_page()
        self.faults: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", lambda message: self.faults.append(message.text))
        self.page.on("dialog", lambda dialog: self.faults.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(f"{origin}{path}?token={TOKEN}", wait_until="commit")
        self.page.wait_for_selector("body[data-ready=yes]")
        self.settle()

    def settle(self):
        """Until all that was asked is answered and drawn."""
        self.page.evaluate(
            "async () => { const { timeline } = traceviz; do { await timeline.queue; "
            "await new Promise((done) => setTimeout(done, 20)); } "
            "while (timeline.tiles.asking || timeline.waitsForFrame); }"
        )

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)
            self.settle()

    def search(self, pattern):
        self.page.fill("#search", pattern)
        self.page.press("#search", "Enter")
        self.settle()
        self.page.keyboard.press("Escape")

    def window(self):
        return tuple(self.page.evaluate("[traceviz.timeline.looking.from, traceviz.timeline.looking.to]"))

    def measured(self, lane):
        """The numbers that the panel shows of a rank or GPU, by their words."""
        (found,) = measured(self.page, lane)
        return found


def printed(*words, home):
    return json.loads(CliRunner().invoke(app, [*words, "--home", str(home), "--json"]).stdout)


def test_a_profile_is_walked_through_by_keys_and_measured_as_its_command_does(browser, tmp_path):
    export = small_export()
    for place in range(200):
        export.kernel(800 + 20 * place, 810 + 20 * place, HOSTILE if place == 7 else "gemm")
    path, home = export.write(tmp_path / "job.sqlite"), tmp_path / "home"
    with served(home, [path]) as origin:
        live = Live(browser, origin, "/opened/0")
        page = live.page
        lane = "gpu:0/stream:7"
        assert page.evaluate(f"traceviz.timeline.tiles.known.get('{lane}').bands[0].boxes.start.length") > 0
        # A name of others is text wherever it is shown; a search finds it, and n goes there.
        live.search("onerror=ALERT")
        assert page.inner_text("#matches") == "1 found"
        live.press("n")
        assert HOSTILE.partition("\x1b")[0] in page.inner_text("#details")
        assert page.locator("#details img, #details b").count() == 0
        with sqlite3.connect(path) as database:
            sql = "SELECT start FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY start"
            starts = [row[0] for row in database.execute(f"{sql}")]
        chosen = "Number(traceviz.timeline.chosen.from) + Number(traceviz.timeline.about.origin)"
        assert page.evaluate(chosen) == 800 + 20 * 7
        # Tab and its opposite go along the lane; a gap is selected and measured as the command does.
        live.press("Tab")
        assert page.evaluate(chosen) == starts[starts.index(940) + 1]
        live.press("Shift+Tab", "g", "m")
        window = page.evaluate("[traceviz.timeline.measured.from, traceviz.timeline.measured.to]")
        assert (window[1] - window[0], live.measured("gpu:0")["idle"]) == (10, 10)
        live.press("Escape", "0", "w", "w", "d", "m")
        command = shlex.split(page.evaluate("traceviz.timeline.measured.commands[0]"))
        (told,) = printed(*command[1:], home=home)
        found = live.measured("gpu:0")
        assert found == shown_as(told) and 0 < found["busy"] < found["idle"]
        # A name of the table leads to its first slice.
        live.press("Escape", "0", "m")
        page.locator("#details .finder", has_text="AllReduce_Sum").click()
        live.settle()
        assert page.evaluate(chosen) == 200
        page.focus("#timeline-canvas")
        live.press("Escape", "0", "w", "w", "d")
        before = live.window()
        live.press("a", "u")
        assert live.window() == before
        # A bookmark is kept for who comes next; its note is text.
        live.press("b")
        page.keyboard.type("<i>here")
        live.press("Enter", "0")
        live.context.close()
        later = Live(browser, origin, "/opened/0")
        assert later.page.inner_text("#bookmarks button >> nth=0") == "△ <i>here"
        later.page.click("#bookmarks button >> nth=0")
        later.settle()
        assert [round(each) for each in later.window()] == [round(each) for each in before]
        assert {url.partition("/opened")[0].partition("/?")[0] for url in live.requests + later.requests} == {origin}
        # A page of another origin reads nothing and writes nothing, though its browser has the cookie.
        other = later.context.new_page()
        other.route("http://other.test/", lambda route: route.fulfill(content_type="text/html", body="<p>other"))
        other.goto("http://other.test/")
        sent = (
            "(address) => fetch(address, {method: 'POST', mode: 'no-cors', credentials: 'include', "
            'body: \'{"from": 1, "to": 2, "note": "other"}\'}).then((answer) => answer.type, () => "refused")'
        )
        assert other.evaluate(sent, f"{origin}/opened/0/bookmarks") in ("opaque", "refused")
        assert other.evaluate(sent.replace("no-cors", "cors"), f"{origin}/opened/0/bookmarks") == "refused"
        kept = later.page.evaluate("fetch('/opened/0/bookmarks').then((answer) => answer.json())")
        assert [one["note"] for one in kept] == ["<i>here"]
        assert live.faults + later.faults == []


def test_an_iteration_is_opened_from_the_first_page_and_its_window_found_in_perfetto(browser, tmp_path):
    home = tmp_path / "home"
    settings = JobSettings(pp=2, microbatches=2, layers=4, hidden=512, node_size=1, clock_skew_ms=3.0, stacks=True)
    (inputs,) = fill_home(home, [simulate(settings, tmp_path / "job", workers=1)])
    place = f"{inputs.run}/{inputs.iteration}"
    trace = home / "perfetto" / place / "iteration.pftrace.gz"
    exported = CliRunner().invoke(app, ["perfetto", "export", "--home", str(home)])
    assert exported.exit_code == 0 and trace.is_file()
    with served(home, []) as origin:
        live = Live(browser, origin, f"/timeline/{place}")
        page = live.page
        # A communication, the same one on the other rank, and its launch.
        live.search("SendRecv")
        live.press("n")
        first = page.evaluate("traceviz.timeline.chosen.lane").partition("/")[0]
        number = page.evaluate(
            "traceviz.timeline.chosen.facts.find((one) => one.label === 'communication')?.value ?? 0"
        )
        live.press("o")
        second = page.evaluate("traceviz.timeline.chosen.lane").partition("/")[0]
        assert {first, second} == {"rank:0", "rank:1"}, number
        sql = page.locator("#details code").first.inner_text()
        (row,) = printed("sql", sql, home=home)
        assert f"rank:{row['rank']}" == second
        # What is measured is what the command prints, on the rank's own clock.
        live.press("[", "]", "m")
        command = shlex.split(page.evaluate("traceviz.timeline.measured.commands[0]"))
        told = next(one for one in printed(*command[1:], home=home) if one["dimension"] == "all")
        found = live.measured(second)
        assert found == shown_as(told)
        assert told["window_start_ns"] == row["start_ns"] and found["busy"] == row["duration_ns"]
        # Perfetto is opened where the trace has that slice.
        page.evaluate("window.open = (address) => { window.opened = address; }")
        if page.locator("a.perfetto").count():
            page.click("a.perfetto")
            live.settle()
            window = dict(part.split("=") for part in page.evaluate("window.opened").split("&")[-2:])
            query = f"SELECT count(*) AS n FROM slice WHERE ts = {window['visStart']} AND dur = {row['duration_ns']}"
            counted = CliRunner().invoke(app, ["perfetto", "query", str(trace), query, "--json"])
            assert json.loads(counted.stdout)[0]["n"] >= 1
            assert int(window["visEnd"]) - int(window["visStart"]) == row["duration_ns"]
        copied_link_shows_the_same(live, second)
        what_the_report_shows_is_shown_here(live)
        page.goto(f"{origin}/")
        page.get_by_role("link", name="timeline", exact=True).click()
        page.wait_for_url(f"**/timeline/{place}**")
        assert live.faults == []


def copied_link_shows_the_same(live, rank):
    """Pins, filters and the search come back with the address."""
    page = live.page
    page.focus("#timeline-canvas")
    page.evaluate(f"traceviz.timeline.lane = '{rank}/gpu:0/stream:7'")
    page.focus("#timeline-canvas")
    live.press("Escape", "0", "p")
    page.fill("#shortest", "2")
    page.select_option("#dimension", "pp")
    page.locator("#legend input").first.uncheck()
    live.search("SendRecv")
    state = """(() => { const { lanes, hits, tiles, filters } = traceviz.timeline;
        const rows = lanes.rows.map((row) => row.lane.key);
        return [lanes.pinned, lanes.dimension, filters.asked, hits.page.total, rows, tiles.matched.found];
    })()"""
    before = page.evaluate(state)
    assert before[0] == [f"{rank}/gpu:0/stream:7"] and before[2]["least"] == 2000 and len(before[2]["without"]) == 1
    assert before[3] > 0 and any(len(starts) for starts, _ in before[5].values())
    dimensions = {key.partition("dimension:")[2] for key in before[4] if "dimension:" in key}
    assert dimensions <= {"pp"}
    page.wait_for_timeout(200)
    page.reload(wait_until="commit")
    page.wait_for_selector("body[data-ready=yes]")
    live.settle()
    assert page.evaluate(state) == before


def what_the_report_shows_is_shown_here(live):
    """One finding alone, ranks beside each other, and all that is known of a slice where the mouse rests."""
    page = live.page
    page.uncheck("#here")
    page.focus("#timeline-canvas")
    live.press("Escape", "0", "M")
    assert page.locator("#details table td:first-child").count() == 2
    live.press("f")
    number = page.evaluate("traceviz.timeline.about.marks.find((mark) => mark.kind === 'finding')?.number ?? null")
    if number is not None:
        page.locator("#details .chip").first.click()
        live.settle()
        assert page.evaluate("traceviz.timeline.marks.chosen.kind") in ("finding", "note")
        page.wait_for_timeout(200)
        assert "finding=" in page.evaluate("location.hash")
    page.focus("#timeline-canvas")
    live.press("Escape", "0")
    box = page.locator("#timeline-canvas").bounding_box()
    top = page.evaluate("traceviz.timeline.lanes.rows.find((row) => row.lane.kind === 'rank').top") + 60
    for moved in range(60):
        page.mouse.move(box["x"] + 300 + 5 * moved, box["y"] + top)
        if page.is_visible("#tip"):
            break
    page.locator("#tip", has_text="start on the rank").wait_for(timeout=5000)

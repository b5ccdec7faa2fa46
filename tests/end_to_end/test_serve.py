"""``traceviz serve`` as a person has it: the printed address in a real browser, and Ctrl-C."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from tests.end_to_end.conftest import program
from tests.show.web.test_site import HOSTILE, fill, written

pytestmark = pytest.mark.long

REPORT = b"""<!doctype html><title>report</title><p id="told">not run</p><script>
document.title = "run";
fetch("/").then(() => "read", () => "refused").then((told) => { document.getElementById("told").textContent = told; });
</script>"""


@contextmanager
def serving(home, log):
    """The process, and the address that it printed."""
    command = [sys.executable, "-m", "traceviz_dag.commands.main", "serve", "--home", str(home), "--port", "0"]
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        yield process, process.stdout.readline().partition(": ")[2].strip()
    finally:
        process.kill()
        process.wait()


def test_a_browser_sees_figures_and_reports_and_other_pages_see_nothing(tmp_path, home, browser):
    for run in ("job", HOSTILE):
        fill(home, run, 7)
    written(home / "reports" / "job" / "7.html", REPORT)
    with serving(home, tmp_path / "log") as (process, address):
        own = address.partition("/?")[0]
        context = browser.new_context()
        context.set_default_timeout(120_000)
        page = context.new_page()
        told: list[str] = []
        page.on("console", lambda message: told.append(message.text))
        # The first page goes on by itself, and would interrupt a wait for all of it.
        page.goto(address, wait_until="commit")
        page.wait_for_url(f"{own}/")
        page.get_by_role("link", name="7", exact=True).first.click()
        page.wait_for_url("**/runs/**")
        page.wait_for_load_state("networkidle")
        loaded = "[...document.images].filter((image) => image.naturalWidth > 0).length"
        assert page.evaluate(loaded) == 3
        assert told == []
        page.goto(f"{own}/reports/job/7.html")
        page.wait_for_load_state("networkidle")
        assert (page.title(), page.inner_text("#told")) == ("run", "refused")
        # A page of another origin in the same browser, which has the cookie.
        other = context.new_page()
        other.route("http://other.test/", lambda route: route.fulfill(content_type="text/html", body="<p>other"))
        other.goto("http://other.test/")
        load = "(address) => new Promise((done) => { const image = new Image(); image.onload = () => done('seen');"
        load += " image.onerror = () => done('refused'); image.src = address; })"
        assert other.evaluate(load, f"{own}/figures/job/7/wait_map.png") == "refused"
        # Who has no cookie learns what to do.
        without = browser.new_context().new_page()
        assert without.goto(f"{own}/").status == 403 and "printed" in without.inner_text("body")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert (tmp_path / "log").read_text() == "Ended.\n"


def test_ctrl_c_ends_it_and_a_taken_port_is_one_line(tmp_path, home):
    home.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = program("serve", "--home", home, "--port", str(port), code=2)
    assert re.fullmatch(
        rf"traceviz: cannot listen on 127.0.0.1 port {port}: .*; name another with --port, .*\n", refused.stderr
    )
    with serving(home, tmp_path / "log") as (process, _):
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert (tmp_path / "log").read_text() == "Ended.\n"
    assert "no such folder; run traceviz analyze first" in program("serve", "--home", tmp_path / "no", code=2).stderr

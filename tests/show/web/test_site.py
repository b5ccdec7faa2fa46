"""What ``traceviz serve`` shows of a home, to whom, and that names and files of others do nothing there."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from html import unescape as text_of
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.test_docs import test_every_command_of_a_page_exists_with_its_options as commands_exist
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partitions import escape
from traceviz_dag.show.web.listen import LoopbackServer, listen
from traceviz_dag.show.web.site import site
from traceviz_dag.tables import FINDINGS, ITERATIONS, all_tables

TOKEN = "t" * 32
HOSTILE = "</script><script>x\x1b[2J&\u202e' \"run"
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415408d763f8cfc000000301010018dd8db0"
    "0000000049454e44ae426082"
)


def fill(home: Path, run: str, iteration: int) -> None:
    """Figures, a report and a trace of an iteration, as they are written elsewhere."""
    place = Path(escape(run)) / str(iteration)
    for name in ("wait_map", "pipeline_group_0_global", "rank_0003/overlap_bars"):
        for ending in ("png", "svg", "pdf"):
            written(home / "figures" / place / f"{name}.{ending}", PNG)
        folder, _, stem = name.rpartition("/")
        written(home / "figures" / place / folder / "previews" / f"{stem}.png", PNG)
    written(home / "reports" / f"{place}.html", b"<!doctype html><p>the report")
    written(home / "perfetto" / place / "iteration.pftrace.gz", b"trace")


def written(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def row(table, **values):
    return table.from_columns({column.name: [values.get(column.name)] for column in table.columns})


@pytest.fixture
def home(tmp_path):
    home = tmp_path / "home"
    for run, iteration in (("job", 7), (HOSTILE, 8)):
        fill(home, run, iteration)
    measures = {"ranks": 16, "partial": True, "step_ns": 379_416_078, "exposed_ns": 155_312_448}
    lake = Lake(home)
    lake.write("iterations", row(ITERATIONS, **measures), run="job", iteration=7)
    lake.write("iterations", row(ITERATIONS, **measures), run="job", iteration=6)
    found = row(FINDINGS, severity="finding", statement="rank 9 <is> slow")
    lake.write("findings", found, run="job", iteration=7)
    written(home / "secret.png", b"secret")
    written(tmp_path / "outside.png", b"secret")
    (home / "figures" / "job" / "7" / "link.png").symlink_to(tmp_path / "outside.png")
    (home / "figures" / "job" / "7" / "up").symlink_to(tmp_path)
    return home


@dataclass(frozen=True)
class Answer:
    """What came back: header names in lower case."""

    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def text(self) -> str:
        return self.content.decode()


@dataclass
class Client:
    """Sends paths as they are given, which clients that know better would tidy up, and keeps cookies."""

    port: int
    cookie: str = ""

    def ask(self, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Answer:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=20)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, headers={**({"cookie": self.cookie} if self.cookie else {}), **named})
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        answer = Answer(response.status, found, response.read())
        connection.close()
        self.cookie = found.get("set-cookie", self.cookie).partition(";")[0]
        return answer


@pytest.fixture
def stranger(home):
    """Who knows the port alone, of a real server."""
    with listen(0) as listening:
        port = listening.getsockname()[1]
        server = LoopbackServer(site(home, TOKEN, port))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield Client(port)
        server.should_exit = True
        thread.join()


@pytest.fixture
def guest(stranger):
    """Who opened the printed address."""
    assert stranger.ask(f"/?token={TOKEN}").status == 200 and stranger.cookie
    return stranger


def reached(guest) -> dict[str, str]:
    """Every page of ours that the links lead to, and that every link and picture is there."""
    pages, waiting, seen = {}, ["/"], {"/"}
    while waiting:
        path = waiting.pop()
        answer = guest.ask(path)
        assert answer.status == 200, path
        if answer.headers["content-type"].startswith("text/html") and not path.startswith(("/reports/", "/perfetto/")):
            pages[path] = answer.text
            for target in map(text_of, re.findall(r'(?:href|src)="([^"]*)"', answer.text)):
                local = target.partition("#")[0]
                if local.startswith("/") and local not in seen:
                    seen.add(local)
                    waiting.append(local)
    assert {path.partition("?")[0] for path in seen} >= {
        "/figures/job/7/previews/wait_map.png",
        "/figures/job/7/rank_0003/overlap_bars.svg",
        "/reports/job/7.html",
        "/runs/job/6",
        "/style.css",
    }
    return pages


def test_every_link_leads_somewhere_and_the_pages_say_what_the_tables_do(guest, tmp_path):
    pages = reached(guest)
    shown = {path: " ".join(re.sub("<[^>]+>", " ", text_of(text)).split()) for path, text in pages.items()}
    assert "7 379 ms Rank 9 slow 155 ms 16 (partial) 3 report 1" in shown["/"], "with what limits its step"
    assert "6 379 ms 155 ms 16 (partial)" in shown["/runs/job"]
    one = shown["/runs/job/7"]
    assert "Step 379 ms, the longest of 16 ranks; exposed communication 155 ms, mean over the ranks. Partial" in one
    assert "rank 9 &lt;is&gt; slow" in pages["/runs/job/7"]
    assert "How much of a rank's communication computation hides, by dimension (rank 3)" in one
    assert "communication (pipeline 0)" in one
    for command in ("figures", "report", "perfetto export"):
        assert f"None yet: traceviz {command} --run job --iteration 6 --home" in shown["/runs/job/6"]
        assert f"None yet: traceviz {command} " not in one
    shown_commands = re.findall("<code>(.*?)</code>", pages["/runs/job/6"] + pages["/runs/job/7"])
    (tmp_path / "page.md").write_text("\n".join(f"`{text_of(command)}`" for command in shown_commands))
    commands_exist(tmp_path / "page.md")


def test_a_page_names_the_tables_that_somebody_deleted(guest, home):
    lake = Lake(home)
    for rank in (0, 3):
        lake.write("memory_peaks", row(all_tables()["memory_peaks"]), run="job", iteration=7, rank=rank)
    before = guest.ask("/runs/job/7").text
    lake.path("memory_peaks", run="job", iteration=7, rank=3).unlink()
    assert "deleted" not in before and "deleted files of memory_peaks of rank 3: what" in guest.ask("/runs/job/7").text
    lake.path("iterations", run="job", iteration=7).unlink()
    answer = guest.ask("/runs/job/7")
    assert answer.status == 200 and re.search("deleted files of [^:]*\\biterations[,:]", answer.text)
    assert "Step 379 ms" not in answer.text and guest.ask("/").status == 200


def test_a_hostile_name_is_text_and_its_files_are_found(guest):
    pages = reached(guest)
    (path,) = [path for path in pages if path.endswith("/8")]
    assert "/figures/" + escape(HOSTILE) not in pages[path]  # Folder names are encoded once more in addresses.
    for text in pages.values():
        assert "<script" not in text and "\x1b" not in text and "\u202e" not in text
    assert "&lt;script&gt;x\\u001b[2J" in pages["/"]
    (trace,) = re.findall(r'href="(/perfetto/ui/[^"]*)"', pages[path]) or [None]
    if trace is not None:
        address = text_of(trace).partition("url=")[2].partition("&")[0]
        # The UI decodes what follows the hash once.
        assert guest.ask(unquote(address).removeprefix(f"http://127.0.0.1:{guest.port}")).content == b"trace"


NOT_FOR_SHOW = (
    *("/figures/../secret.png", "/figures/..%2fsecret.png", "/figures/%2e%2e/secret.png", "/figures//etc/passwd"),
    *("/figures/job/7/link.png", "/figures/job/7/up/outside.png", "/figures/job/7/up%00.png", "/figures/job/7"),
    *(f"/figures/{'a' * 5000}.png", "/reports/job/7.htm", "/reports/../figures/job/7/wait_map.png"),
    *("/perfetto/traces/../../secret.png", "/perfetto/ui/../../../pyproject.toml", "/runs/other"),
    *(f"/runs/job/{'9' * 5000}", "/runs/job/07", "/runs/job/-1", "/tables", "/lake/iterations"),
    "/figures/../lake/iterations/run=job/iteration=7/part.parquet",
)


def test_what_is_not_for_show_is_not_there(guest):
    for path in NOT_FOR_SHOW:
        answer = guest.ask(path)
        assert answer.status == 404 and b"secret" not in answer.content, path


def test_strangers_learn_what_to_do_and_get_nothing(stranger):
    wrong = f"traceviz_{stranger.port}={TOKEN}"
    for query, cookie in (("", ""), ("?token=", ""), (f"?token={TOKEN}x", ""), ("?token=%ff", ""), ("", wrong)):
        for path in ("/", "/figures/job/7/wait_map.png", "/nowhere", "/style.css"):
            answer = stranger.ask(path + query, cookie=cookie)
            assert answer.status == 403 and "address that traceviz serve printed" in answer.text
            assert "set-cookie" not in answer.headers


def test_a_token_opens_no_other_host_and_nothing_can_be_changed(guest):
    assert guest.ask(f"/?token={TOKEN}", host=f"evil.test:{guest.port}").status == 403
    assert guest.ask("/", origin="http://evil.test").status == 403
    assert guest.ask("/", sec_fetch_site="cross-site", sec_fetch_mode="no-cors").status == 403
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        refused = guest.ask("/", method, content_type="application/json")
        assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD")
    handshake = {"connection": "Upgrade", "upgrade": "websocket", "sec_websocket_version": "13"}
    assert guest.ask("/", **handshake, sec_websocket_key="AAAAAAAAAAAAAAAAAAAAAA==").status == 403
    head = guest.ask("/figures/job/7/wait_map.png", "HEAD")
    assert (head.status, head.content, head.headers["content-length"]) == (200, b"", str(len(PNG)))


def test_a_browser_that_shows_the_token_goes_on_without_it_and_keeps_a_strict_cookie(stranger):
    went = stranger.ask(f"/runs/job?a=%22%3E&token={TOKEN}", sec_fetch_mode="navigate")
    assert 'content="0;url=/runs/job?a=%22%3E"' in went.text and TOKEN not in went.text
    cookie = went.headers["set-cookie"]
    assert (
        re.fullmatch(rf"traceviz_{stranger.port}=[\w-]{{43}}; Path=/; HttpOnly; SameSite=Strict", cookie)
        and TOKEN not in cookie
    )
    assert stranger.ask("/").status == 200
    # Programs on other ports of this host set cookies, too, and some of them odd ones.
    assert stranger.ask("/", cookie=f'other={{"a": [1, "b"]}}; =; {stranger.cookie}; last').status == 200
    away = stranger.ask(f"//evil.test/?token={TOKEN}", sec_fetch_mode="navigate")
    assert 'url=/evil.test/"' in away.text


def test_every_answer_says_what_a_browser_may_do_with_it(guest):
    def policy(path: str) -> str:
        answer = guest.ask(path)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert (answer.headers["cache-control"], answer.headers["referrer-policy"]) == ("no-store", "no-referrer")
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        return answer.headers["content-security-policy"]

    for path in ("/", "/runs/job/7", "/nowhere", "/figures/job/7/wait_map.png"):
        assert policy(path).startswith("default-src 'none';") and "script" not in policy(path)
    assert "sandbox" in policy("/figures/job/7/wait_map.svg")
    assert "'self'" not in policy("/reports/job/7.html") and "http" not in policy("/reports/job/7.html")
    saved = guest.ask("/figures/job/7/wait_map.pdf").headers["content-disposition"]
    assert saved == 'attachment; filename="wait_map.pdf"'


def test_a_damaged_file_of_the_lake_is_named_and_costs_nothing_else(guest, home):
    for table in ("iterations", "findings"):
        Lake(home).path(table, run="job", iteration=7).write_bytes(b"PAR1 no")
    for path, faults in (("/", 1), ("/runs/job/7", 2)):
        text = guest.ask(path).text
        assert text.count("is damaged") == faults and "/figures/job/7/wait_map.png" in text


def test_names_that_nobody_can_have_written_are_left_out(guest, home):
    for name in ("%zz", "%2fjob", "a" * 253, "%FF", "_."):
        (home / "figures" / name / "3").mkdir(parents=True)
    (home / "figures" / "job" / "٣").mkdir()
    (home / "figures" / "job" / "7" / "not\udcff.png").write_bytes(PNG)
    assert guest.ask("/").text.count("<h2>") == 3  # "_." is a name like any other.
    assert guest.ask("/runs/job").text.count("/runs/job/") == 2
    assert guest.ask("/runs/job/7").status == 200

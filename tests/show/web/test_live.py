"""What a live page is answered, held against the model; and that no question costs more than its bounds."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import struct
import threading
import time
from urllib.parse import quote

import pytest
from starlette.exceptions import HTTPException

from tests.nsys_file import small_export
from tests.show.web.test_site import TOKEN, Client
from traceviz_dag.pipeline.live_pages import iteration_source, profile_source
from traceviz_dag.pipeline.screens import profile_model
from traceviz_dag.show.lanes.lane import Window
from traceviz_dag.show.screens.model import SliceId
from traceviz_dag.show.web.listen import LoopbackServer, listen
from traceviz_dag.show.web.live import sources as module
from traceviz_dag.show.web.live.sources import Desk, Source, Sources, Walked
from traceviz_dag.show.web.site import site

SLOW_NAME = "a" * 40 + "!"


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    made = small_export()
    made.kernel(700, 720, SLOW_NAME)
    for start in range(1000, 5000, 4):
        made.kernel(start, start + 3, "<b>many", correlation=None)
    return made.write(tmp_path_factory.mktemp("live") / "job.sqlite")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def model(export):
    return profile_model(export, None)


@pytest.fixture(scope="module")
def guest(home, export):
    """Who opened the printed address."""
    opened = Sources(lambda run, number: iteration_source(home, run, number), [profile_source(export, home)])
    with listen(0) as listening:
        port = listening.getsockname()[1]
        server = LoopbackServer(site(home, TOKEN, port, sources=opened))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        client = Client(port)
        assert client.ask(f"/opened/0?token={TOKEN}").status == 200
        yield client
        server.should_exit = True
        thread.join()


def unpacked(content: bytes) -> tuple[dict, bytes]:
    (length,) = struct.unpack_from("<Q", content)
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def test_tiles_hold_what_the_model_draws(guest, model):
    lane = "gpu:0/stream:7"
    window = Window(model.span.start_ns + 600, model.span.start_ns + 4000)
    expected = model.slices(lane, window, 50)
    address = f"/opened/0/tiles?lane={quote(lane)}&from=600&to=4000&pixels=50&overview=1"
    answer = guest.ask(address)
    head, columns = unpacked(answer.content)
    (told,) = head["lanes"]
    bins, boxes = head["overview"], told["slices"]
    strip = struct.unpack_from(f"<{6 * bins}d", columns)
    overview = model.overview(model.span, 50)
    assert sum(strip[2 * bins : 3 * bins]) == overview.busy_ns.sum() > 0
    origin = model.span.start_ns
    wide = struct.unpack_from(f"<{3 * boxes}d", columns, 48 * bins)
    row, count, name, kind = (
        struct.unpack_from(f"<{boxes}i", columns, 48 * bins + 24 * boxes + 4 * boxes * place) for place in range(4)
    )
    assert list(wide[:boxes]) == (expected.start_ns - origin).tolist()
    assert list(wide[boxes : 2 * boxes]) == (expected.end_ns - origin).tolist()
    assert list(wide[2 * boxes :]) == expected.busy_ns.tolist()
    assert (list(row), list(count)) == (expected.row.tolist(), expected.count.tolist())
    assert max(count) > 1
    assert [told["kinds"][place] for place in kind] == [expected.kinds[place] for place in expected.kind]
    assert [told["names"][place] for place in name] == [expected.names[place] for place in expected.name]
    assert len(columns) == 48 * bins + 40 * boxes
    # The same question again costs no answer.
    again = guest.ask(address, if_none_match=answer.headers["etag"])
    assert (again.status, again.content) == (304, b"")
    assert guest.ask(f"{address}&state=other").status == 409


def test_a_slice_a_measure_and_a_search_are_those_of_the_model(guest, model):
    about = json.loads(guest.ask("/opened/0/about").content)
    assert (int(about["origin"]), about["length"]) == (model.span.start_ns, model.span.length_ns)
    lane = "gpu:0/stream:7"
    detail = json.loads(guest.ask(f"/opened/0/detail?slice={quote(f'{lane}#0')}").content)
    found = model.detail(SliceId(lane, 0))
    assert [fact["value"] for fact in detail["facts"]] == [fact.value for fact in found.facts]
    assert detail["around"] == ["gpu:0"]
    measured = json.loads(guest.ask("/opened/0/measure?from=150&to=651").content)
    start = model.span.start_ns
    (expected,) = model.aggregate(Window(start + 150, start + 651)).measures
    (one,) = measured["measures"]
    assert {name: one[name] for name in expected.__dataclass_fields__} == {
        name: getattr(expected, name) for name in expected.__dataclass_fields__
    }
    # What lies beyond the profile is not measured, and not shown as if it were.
    beyond = json.loads(guest.ask("/opened/0/measure?from=-500&to=99999999").content)
    assert (beyond["from"], beyond["to"]) == (0, model.span.length_ns)
    assert beyond["to"] == beyond["measures"][0]["busy_ns"] + beyond["measures"][0]["idle_ns"]
    last = json.loads(guest.ask("/opened/0/search?pattern=many&page=99").content)
    assert last["before"] + len(last["hits"]) == last["total"] == 1000
    # Nothing runs at 900; what is next does not touch it.
    near = f"/opened/0/neighbour?lane={quote(lane)}&time={900 - start}"
    assert model.at(lane, 900) is None
    assert json.loads(guest.ask(near).content)["from"] == 1000 - start
    assert json.loads(guest.ask(f"{near}&least=4").content) is None
    assert json.loads(guest.ask(f"{near}&way=previous").content)["to"] <= 900 - start
    hits = json.loads(guest.ask("/opened/0/search?pattern=^NCCL.*sum$").content)
    assert [hit["name"] for hit in hits["hits"]] == ["ncclDevKernel_AllReduce_Sum"]


def test_matches_in_sight_are_those_of_the_rows_and_kinds_are_left_out(guest, export, model):
    lane = "gpu:0/stream:7"
    with sqlite3.connect(export) as database:
        names = "JOIN StringIds ON StringIds.id = demangledName"
        sql = f"SELECT start, end FROM CUPTI_ACTIVITY_KIND_KERNEL {names} WHERE value LIKE '%MANY%' ORDER BY start"
        rows = [(start - model.span.start_ns, end - model.span.start_ns) for start, end in database.execute(sql)]
    rows = [row for row in rows if row[0] < 4000]
    question = f"/opened/0/matched?lane={quote(lane)}&pattern=MANY&from=0&to=4000"
    apart = json.loads(guest.ask(f"{question}&pixels=4000").content)[lane]
    assert list(zip(*apart, strict=True)) == rows and len(rows) > 700
    # What lies less than a pixel apart is one stretch; what is too short is none.
    assert json.loads(guest.ask(f"{question}&pixels=80").content)[lane] == [[rows[0][0]], [rows[-1][1]]]
    assert json.loads(guest.ask(f"{question}&pixels=80&least=4").content)[lane] == [[], []]
    tiles = f"/opened/0/tiles?lane={quote(lane)}&from=0&to=9000&pixels=50"
    head, _ = unpacked(guest.ask(tiles).content)
    kinds = "".join(f"&without={kind}" for kind in head["lanes"][0]["kinds"])
    none, _ = unpacked(guest.ask(tiles + kinds).content)
    assert (head["lanes"][0]["slices"] > 0, none["lanes"][0]["slices"]) == (True, 0)


REFUSED = (
    *("matched?lane=gpu:0&pattern=(&from=0&to=9&pixels=9", "matched?lane=no&pattern=a&from=0&to=9&pixels=9"),
    *("tiles?lane=gpu:0&from=0&to=9&pixels=0", "tiles?lane=gpu:0&from=0&to=9&pixels=99999", "tiles?from=0&to=9"),
    *("tiles?lane=gpu:0&from=9&to=9&pixels=9", "tiles?lane=gpu:0&from=x&to=9&pixels=9", "tiles?lane=no&from=0&to=9"),
    f"tiles?from=0&to=9&pixels=9{'&lane=gpu:0' * 65}",
    f"tiles?lane=gpu:0&from=-{10**30}&to=9&pixels=9",
    *("detail?slice=gpu:0", "detail?slice=gpu:0%23999999", "lanes?lane=no", "measure?from=5&to=4", "at?lane=gpu:0"),
    *("search?pattern=(", "search?pattern=(%3F=a)", f"search?pattern={'a' * 501}", "search?pattern=a&page=-1"),
    "search?pattern=((a{100}){100}){100}",
)


def test_questions_beyond_the_bounds_are_refused_in_one_line(guest):
    for question in REFUSED:
        answer = guest.ask(f"/opened/0/{question}")
        assert answer.status == 400 and answer.text.count("\n") == 1, (question, answer.text)
        assert answer.headers["content-type"].startswith("text/plain")
    for path in ("/opened/1", "/opened/1/about", "/opened/0/secrets", "/timeline/no/1", "/timeline/no/1/about"):
        assert guest.ask(path).status == 404, path


def test_an_expression_that_goes_back_without_end_costs_nothing(guest):
    began = time.thread_time(), time.process_time()
    answer = guest.ask(f"/opened/0/search?pattern={quote('^(a|a|aa)+$')}")
    assert json.loads(answer.content)["total"] == 0
    assert time.process_time() - began[1] < 5


def test_bookmarks_are_kept_by_our_own_page_alone(guest, home):
    place, body = "/opened/0/bookmarks", {"from": 5, "to": 9, "lane": "gpu:0", "note": "<b>x</b>\x1b"}
    kind = {"content_type": "application/json"}

    def sent(what, path=place, cookie=guest.cookie, **headers):
        client = Client(guest.port, cookie)
        return client.ask(path, "POST", json.dumps(what).encode(), **headers)

    assert sent(body, cookie="", **kind).status == 403
    assert sent(body, content_type="text/plain").status == 403
    assert sent(body, **kind, origin="http://evil.test").status == 403
    assert sent(body, **kind, sec_fetch_site="cross-site").status == 403
    assert sent(body, "/opened/0/about", **kind).status == 405
    assert sent(body, "/timeline/no/1/bookmarks", **kind).status == 404
    for bad in ({"from": 5}, {**body, "to": 5}, {**body, "note": "x" * 501}, {**body, "lane": "no"}, [], 10**30):
        assert sent(bad, **kind).status == 400, bad
    assert sent({**body, "note": "x" * 20_000}, **kind).status == 413
    assert not list((home / "screens").glob("*.json"))
    kept = json.loads(sent(body, **kind).content)
    assert kept == [{**body, "note": "<b>x</b>\\u001b"}]
    assert json.loads(guest.ask(place).content) == kept
    assert json.loads(sent({**kept[0], "forget": True}, **kind).content) == []
    [file] = (home / "screens").glob("*.json")
    for damage in (lambda: file.write_text("{"), lambda: (file.unlink(), file.mkdir())):
        damage()
        about = json.loads(guest.ask("/opened/0/about").content)
        assert about["lanes"] and about["bookmarks"] == [] and str(file) in about["notes"][-1]
        assert str(file) in guest.ask(place).text
    file.rmdir()


def test_a_slow_source_lets_go_of_who_waits_and_is_ready_for_who_asks_again(monkeypatch):
    may_open, asked = threading.Event(), []

    def opened():
        may_open.wait(20)
        return Walked(None)

    source = Source("slow", lambda: "state", opened)
    desk = Desk(most_seconds=0.1)

    async def stays():
        return False

    async def leaves():
        return True

    async def ask(gone, patient=desk):
        return await patient.ask("slow", source, lambda _, state: asked.append(gone) or state, gone)

    async def all_of_it():
        for gone in (stays, leaves):
            with pytest.raises(HTTPException) as late:
                await ask(gone)
            assert late.value.status_code == 503
        monkeypatch.setattr(module, "MOST_WAITING", 0)
        with pytest.raises(HTTPException, match="503"):
            await ask(stays)
        monkeypatch.undo()
        may_open.set()
        desk._most_seconds = 20
        assert await ask(stays) == "state"

    asyncio.run(all_of_it())
    # The one who left was waiting behind the first, and nothing was done for them.
    assert asked == [stays, stays]


def test_a_source_that_changed_is_read_anew(monkeypatch):
    monkeypatch.setattr(module, "_LOOKED_AGAIN_SECONDS", -1.0)
    states = ["old"]
    source = Source("changing", lambda: states[-1], lambda: Walked(None))
    desk = Desk()

    async def stays():
        return False

    async def asked():
        return await desk.ask("changing", source, lambda walked, state: (walked, state), stays)

    async def all_of_it():
        first, state = await asked()
        assert (await asked())[0] is first and state == "old"
        states.append("new")
        second, state = await asked()
        assert second is not first and state == "new"

    asyncio.run(all_of_it())

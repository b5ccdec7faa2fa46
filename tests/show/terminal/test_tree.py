"""``traceviz nsys tui`` measures what it opens, and shows the numbers of ``nsys tree`` and ``nsys ranges``."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.commands.sentences.test_nsys import export
from tests.nsys_file import Export, small_export
from tests.sets import fast
from tests.show.terminal.driven import drive, held, press, text_of
from traceviz_dag.analyze.nsys.activity import activities
from traceviz_dag.analyze.nsys.outline import Of, Order, Outline
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.commands.main import app
from traceviz_dag.read.nsys.cache import open_profile
from traceviz_dag.show.terminal.look import Look
from traceviz_dag.show.terminal.tree.screen import TreeApp

NAME = "gemm\x1b]0;owned\x07\x1b[2J\u202e[/red]"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("profiles")


def outlines(path, home) -> dict[int, partial[Outline]]:
    profile = open_profile(path, home)
    return {part.device: partial(Outline, profile, part) for part in activities(profile, load_rules())}


def screen(path, home, look: Look = Look()) -> TreeApp:  # noqa: B008
    return TreeApp(path.name, outlines(path, home), lambda gpu, each: f"--gpu {gpu} {each}", look)


@pytest.mark.parametrize(
    ("name", "size", "look"),
    [
        ("tree_80x24", (80, 24), Look()),
        ("tree_140x45", (140, 45), Look()),
        ("tree_ascii", (80, 24), Look(unicode=False, colour=False)),
    ],
)
def test_screen(home, name, size, look):
    async def walk(pilot):
        return await press(pilot, "right", "down", "right", "down")

    held(name, drive(screen(export("b"), home, look), walk, size))


def test_the_head_says_what_the_profile_lacks(home):
    async def walk(pilot):
        return await press(pilot)

    app = screen(export("b"), home)
    app.mark = "PARTIAL: 1 row"
    assert "PARTIAL: 1 row" in str(drive(app, walk, (140, 45)))


def test_paths_have_the_numbers_of_nsys_tree(home):
    path = export("b")
    printed = json.loads(CliRunner().invoke(app, ["nsys", "tree", str(path), "--home", str(home), "--json"]).stdout)
    seen = 0
    for gpu in printed:
        outline = outlines(path, home)[gpu["device"]]()
        pending = [(gpu["ranges"], -1)]
        while pending:
            nodes, around = pending.pop()
            entries = {one.name: one for one in outline.paths_inside(around, Order.TIME) if one.of is Of.PATH}
            assert set(entries) == {node["name"] for node in nodes}
            for node in nodes:
                one = entries[node["name"]]
                assert (one.count, one.span_ns, one.operations, one.busy_ns) == tuple(
                    node[name] for name in ("count", "span_ns", "operations", "busy_ns")
                )
                pending.append((node["children"], one.number))
                seen += 1
    assert seen > 10


def test_ranges_have_the_numbers_of_nsys_ranges_and_of_a_slow_computation(home):
    path = export("b")
    printed = json.loads(
        CliRunner()
        .invoke(app, ["nsys", "ranges", str(path), "--each", "--gpu", "0", "--home", str(home), "--json"])
        .stdout
    )[0]["ranges"]
    outline = outlines(path, home)[0]()
    pending, found = [-1], []
    while pending:
        inside = outline.ranges_inside(pending.pop())
        found += [one for one in inside if one.of is Of.RANGE]
        pending += [one.number for one in inside if one.of is Of.RANGE and one.holds]
    keys = ("name", "start_ns", "operations", "gpu_start_ns", "gpu_end_ns")
    assert sorted(map(str, ([getattr(one, key) for key in keys] for one in found))) == sorted(
        map(str, ([row[key] for key in keys] for row in printed))
    )
    activity = outline.activity
    around = [set(outline.path_to(Of.RANGE, at)) if at >= 0 else set() for at in outline._position.tolist()]
    for one in sorted(found, key=lambda one: -one.operations)[:3]:
        # A mark for every nanosecond of its time on the GPU: 1 where something ran, 2 where something of its own did.
        marks = np.zeros(one.gpu_end_ns - one.gpu_start_ns, dtype=np.int8)
        for row, ranges in enumerate(around):
            start, end = activity.starts[row] - one.gpu_start_ns, activity.ends[row] - one.gpu_start_ns
            marks[max(start, 0) : max(end, 0)] |= 3 if one.number in ranges else 1
        assert sum(one.number in ranges for ranges in around) == one.operations > 0
        assert (int((marks >= 2).sum()), int((marks == 0).sum())) == (one.busy_ns, one.idle_ns)


def test_keys_open_close_order_and_search(home):
    async def walk(pilot):
        tree = pilot.app
        [root, *_] = [line.entry.name for line in tree.shown.lines if line.entry]
        before = tree.shown.count
        await press(pilot, "right")
        opened = tree.shown.count
        await press(pilot, "left")
        assert (before, tree.shown.count) == (before, before) and opened > before
        await press(pilot, "e", "o")
        starts = [line.entry.start_ns for line in tree.shown.lines if line.entry and line.entry.of is Of.RANGE]
        assert starts == sorted(starts)
        measured = tree.shown.measured
        await press(pilot, "down", "down", "up", "pagedown", "home")
        assert tree.shown.measured == measured  # Moving asks for nothing.
        await press(pilot, "slash", *"backward", "enter")
        first = tree.shown.lines[tree.query_one("#tree").cursor].entry
        text = await press(pilot, "n")
        second = tree.shown.lines[tree.query_one("#tree").cursor].entry
        assert "backward" in first.name and "backward" in second.name and first.number != second.number
        assert " match 2 of " in text
        assert "no regular expression" in await press(pilot, "slash", "end", *"(", "enter")
        text = await press(pilot, "question_mark")
        assert "GPU span" in text and "collapse" in text
        return root

    assert drive(screen(export("b"), home), walk)


def hostile(change: str) -> Export:
    built = small_export()
    if change == "escapes":
        built.call(45, 46, correlation=9)
        built.kernel(710, 790, NAME, correlation=9)
        built.range(42, 48, NAME)
    elif change == "no ranges":
        built.tables.pop("NVTX_EVENTS")
    elif change == "open ends":
        for place in range(200):
            built.range(place % 90, None, f"range {place % 5}")
    return built


@pytest.mark.parametrize("change", fast(["escapes", "no ranges", "open ends"], "open ends"))
def test_hostile_profiles_open(tmp_path, change):
    path = hostile(change).write(tmp_path / "export.sqlite")

    async def walk(pilot):
        texts = [text_of(pilot.app)]
        for keys in ("right right right end right end", "e right right end", "o slash full_stop enter"):
            texts += [await press(pilot, *keys.split())]
        return "".join(texts)

    text = drive(screen(path, tmp_path / "home"), walk)
    assert "\x1b" not in text and "\u202e" not in text and "\x07" not in text
    assert ("launched outside all ranges" in text) or change != "no ranges"
    assert ("\\u202e[/red]" in text) or change != "escapes"

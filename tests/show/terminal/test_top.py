"""``traceviz top`` shows what the lake holds, follows it while it grows, and never writes."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.commands.jobs import home_of
from tests.show.terminal.driven import drive, held, press, settled, text_of
from traceviz_dag.commands.main import app
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.under_way import under_way
from traceviz_dag.show.terminal.home.screen import HomeApp
from traceviz_dag.show.terminal.home.watch import HomeWatch
from traceviz_dag.show.terminal.look import Look

NOON_NS = 1_760_000_000_000_000_000


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """Two iterations; shown under a name that does not change."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    shutil.copytree(home_of("two_iterations"), tmp_path / "home", symlinks=True)
    return tmp_path / "home"


def screen(home: Path, look: Look = Look()) -> HomeApp:  # noqa: B008
    return HomeApp(HomeWatch(home), look, lambda: NOON_NS)


@pytest.mark.parametrize(
    ("name", "size", "look"),
    [
        ("top_80x24", (80, 24), Look()),
        ("top_140x45", (140, 45), Look()),
        ("top_ascii", (80, 24), Look(unicode=False, colour=False)),
    ],
)
def test_screen(home, monkeypatch, name, size, look):
    async def shown(pilot):
        return text_of(pilot.app)

    monkeypatch.chdir(home.parent)
    text = drive(screen(Path("home"), look), shown, size)
    held(name, text)
    assert text.isascii() or look.unicode


def test_without_colour_nothing_is_coloured(home):
    async def picture(pilot):
        return pilot.app.export_screenshot()

    def colours(look: Look) -> set[str]:
        return set(re.findall(r"-r\d+ \{ fill: (#\w+)", drive(screen(home, look), picture)))

    assert len(colours(Look())) > 2
    assert len(colours(Look(colour=False))) <= 2


def test_numbers_are_those_of_iterations_and_findings(home):
    async def shown(pilot):
        return pilot.app.facts, await press(pilot, "f", "end")

    facts, _ = drive(screen(home), shown)
    listed = json.loads(CliRunner().invoke(app, ["iterations", "--home", str(home), "--json"]).stdout)
    assert len(listed) == 2
    for one, row in zip(facts.iterations, listed, strict=True):
        assert {name: one.row[name] for name in ("step_ns", "exposed_ns", "idle_ns", "hidden_share", "ranks")} == {
            name: row[name] for name in ("step_ns", "exposed_ns", "idle_ns", "hidden_share", "ranks")
        }
        assert one.change_share == pytest.approx(row["change_share"]) or row["change_share"] is None
    stored = Lake(home).table("findings", facts.iterations[1].run, facts.iterations[1].iteration).arrow().to_pylist()
    told = [row["statement"] for row in stored if row["severity"] != "not_looked_at"]
    assert [row["statement"] for row in HomeWatch(home).findings(*_place(facts.iterations[1]))] == told


def _place(one) -> tuple[str, int]:
    return one.run, one.iteration


def test_a_home_that_grows_is_followed_and_only_what_is_new_is_read(home, monkeypatch):
    lake = Lake(home)
    [first, second] = lake.partitions("iterations")
    folder = lake.path("iterations", run=second.run, iteration=second.iteration)
    kept = folder.read_bytes()
    folder.unlink()

    async def grows(pilot):
        watch, shown = pilot.app.watch_home, [text_of(pilot.app)]
        monkeypatch.setattr("traceviz_dag.show.terminal.home.screen._REST", 0)
        pilot.app._next_ns = 0
        pilot.app.look_again()
        await settled(pilot)
        before = watch.reads
        with under_way(home, f"{second.run}@{second.iteration}"):
            pilot.app.look_again()
            await settled(pilot)
            shown.append(text_of(pilot.app))
            folder.write_bytes(kept[: len(kept) // 2])
            pilot.app.look_again()
            await settled(pilot)
            shown.append(text_of(pilot.app))
            folder.unlink()
            folder.write_bytes(kept)
        pilot.app.look_again()
        await settled(pilot)
        shown.append(text_of(pilot.app))
        pilot.app.look_again()
        await settled(pilot)
        return shown, watch.reads - before

    (lacks, running, damaged, there), reads = drive(screen(home), grows, (140, 45))
    assert "no measures: not analysed to the end" in lacks
    assert "being analysed, 4 of 4 ranks in the lake, " in running
    assert "is damaged" in damaged
    assert "no measures" not in there and "being analysed" not in there
    # The damaged file, the whole one, and the findings, which were not looked at before: nothing twice.
    assert reads <= 3
    assert first.run in there


def test_an_analysis_that_was_cut_off_is_reported(home):
    (home / "inputs").mkdir(exist_ok=True)
    [first, _] = Lake(home).partitions("iterations")
    (home / "inputs" / f"{first.run}@{first.iteration}.12345678.under_way").write_bytes(b"\n")

    async def shown(pilot):
        return text_of(pilot.app)

    assert "its analysis was cut off (4 of 4 ranks in the lake)" in drive(screen(home), shown, (140, 45))


def test_nothing_is_written(home):
    def look() -> dict[str, tuple[int, int]]:
        return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(home.rglob("*"))}

    async def walk(pilot):
        return await press(pilot, "up", "f", "down", "tab", "question_mark", "q", "down")

    before = look()
    drive(screen(home), walk)
    assert look() == before


def test_an_empty_home_and_a_run_with_escapes_in_its_name(tmp_path):
    async def shown(pilot):
        return text_of(pilot.app)

    assert "nothing was analysed into this home yet" in drive(screen(tmp_path), shown)
    run = "job\x1b[2J[red]"
    lake = Lake(tmp_path)
    whole = Lake(home_of("two_iterations"))
    [first, _] = whole.partitions("iterations")
    rows = whole.table("iterations", first.run, first.iteration).arrow().drop_columns(["run", "iteration"])
    lake.write("iterations", rows, run=run, iteration=1)
    text = drive(screen(tmp_path), shown, (140, 45))
    assert "job\\u001b[2J[red]" in text and "\x1b" not in text


@pytest.mark.parametrize("terminal", ["dumb", "xterm"])
def test_without_a_terminal_it_is_one_line(home, monkeypatch, terminal):
    monkeypatch.setenv("TERM", terminal)
    result = CliRunner().invoke(app, ["top", "--home", str(home)])
    assert result.exception is not None and str(result.exception).startswith("traceviz top draws on a terminal")
    assert getattr(result.exception, "exit_code", None) == 2

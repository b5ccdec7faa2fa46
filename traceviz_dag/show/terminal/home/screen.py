"""The screen of ``traceviz top``: trend and iterations, what is being analysed, and the findings of the one chosen."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from traceviz_dag.analyze.nights.verdicts import FORMER_OUTCOMES
from traceviz_dag.analyze.wording import signed_percent
from traceviz_dag.lake.partitions import Partition
from traceviz_dag.show.terminal.app import ATTENTION, QUIET, Keys, TerminalApp
from traceviz_dag.show.terminal.glyphs import bar, curve, cut, flat, padded, wrapped
from traceviz_dag.show.terminal.home.watch import Facts, HomeWatch, Iteration, Row, Running
from traceviz_dag.show.terminal.lines import LinesView
from traceviz_dag.show.terminal.look import Look
from traceviz_dag.vocabulary import Severity

SECONDS_BETWEEN_LOOKS = 1.0
_MOST_RUNNING = 3
_STEP_BAR = 6
_WIDE = 110
_REST = 10
"""So many times as long as a look takes, the next one waits: a large home is not looked at all the time."""


class HomeApp(TerminalApp):
    """A home while runs arrive.

    Args:
        at: the iteration that the cursor begins on; the newest by default.
        said: a message to begin with.

    Attributes:
        wanted: the iteration whose timeline the user asked for when the screen ended; None where for none.
    """

    CSS = (
        TerminalApp.CSS
        + """
    #trend { height: 1; }
    #running { height: auto; max-height: 3; }
    #iterations { height: 1fr; }
    #findings { height: 1fr; }
    """
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f", "findings", "findings", show=False),
        Binding("t", "timeline", "timeline", show=False),
        Binding("i", "iterations", "iterations", show=False),
        Binding("tab", "other", "the other list", show=False, priority=True),
    ]
    KEYS: ClassVar[Keys] = (
        ("↑ ↓ w s", "move in a list; PgUp, PgDn, Home, End"),
        ("Tab", "the other list"),
        ("i", "iterations"),
        ("f", "findings of the iteration"),
        ("t Enter", "timeline of the iteration; q comes back"),
        ("step", "the longest over the ranks; the bar compares the steps of a run"),
        ("change", "against the iteration before it, where both cover the same ranks"),
        ("exposed, idle", "mean over the ranks, of the step"),
        ("hidden", "of the communication"),
    )
    FOOT: ClassVar[str] = " ↑↓ move  Tab other list  i iterations  f findings  t timeline  ? help  q end"

    def __init__(
        self,
        watch: HomeWatch,
        look: Look,
        now_ns: Callable[[], int] = time.time_ns,
        at: Partition | None = None,
        said: str = "",
    ) -> None:
        super().__init__(look)
        self.watch_home = watch
        self.now_ns = now_ns
        self.facts = Facts()
        self.wanted: Partition | None = None
        self._next_ns = 0
        self._at = at
        self._said = said
        self._follows = at is None

    def compose(self) -> ComposeResult:
        """A title and the trend, the iterations, what runs, and the findings."""
        yield Static(id="title", classes="title")
        yield Static(id="trend")
        yield Static(id="running")
        yield Static(id="columns", classes="quiet")
        yield LinesView(id="iterations")
        yield Static(id="of", classes="title")
        yield LinesView(id="findings")
        yield Static(id="foot")

    def on_mount(self) -> None:
        """Look at once, and then again and again."""
        self.say(f" {flat(self._said)}" if self._said else "")
        self.query_one("#iterations", LinesView).focus()
        self.look_again()
        self.set_interval(SECONDS_BETWEEN_LOOKS, self.look_again)

    def look_again(self) -> None:
        """Look at the home beside the screen, unless a look is under way or was a long one a short time ago."""
        looking = any(worker.group == "look" and worker.is_running for worker in self.workers)
        if not looking and time.monotonic_ns() >= self._next_ns:
            self.run_worker(self._look, group="look", thread=True)

    def _look(self) -> None:
        begun_ns = time.monotonic_ns()
        facts = self.watch_home.look()
        ended_ns = time.monotonic_ns()
        self._next_ns = ended_ns + _REST * (ended_ns - begun_ns)
        self.call_from_thread(self.take, facts)

    def take(self, facts: Facts) -> None:
        """Show what was found."""
        changed, self.facts = facts != self.facts, facts
        self._head()
        self.query_one("#running", Static).update(self._analyses())
        if changed:
            iterations = self.query_one("#iterations", LinesView)
            # Who looks at the newest one sees the next one come.
            places = [Partition(one.run, one.iteration) for one in facts.iterations]
            begin = places.index(self._at) if self._at in places else None
            last = len(places) - 1
            iterations.show(_IterationLines(facts.iterations), last if self._follows else begin)
            self._at = None
        self._of_iteration()

    def on_resize(self) -> None:
        """Texts are cut to the width."""
        if self.query("#foot"):
            self._head()
            self.say(f" {flat(self._said)}" if self._said else "")

    def on_lines_view_moved(self, event: LinesView.Moved) -> None:
        """Show the findings of the iteration under the cursor."""
        if event.view.id == "iterations":
            self._follows = event.index == len(self.facts.iterations) - 1
            self._head()
            self._of_iteration(first=True)

    def on_lines_view_chosen(self, event: LinesView.Chosen) -> None:
        """Enter on an iteration, or on one of its findings."""
        self.action_timeline()

    def action_timeline(self) -> None:
        """End with a wish for the timeline of this iteration."""
        one = self._chosen()
        if one is not None:
            self.wanted = Partition(one.run, one.iteration)
            self.exit()

    def action_findings(self) -> None:
        """Go to the findings."""
        self.query_one("#findings", LinesView).focus()

    def action_iterations(self) -> None:
        """Go to the iterations."""
        self.query_one("#iterations", LinesView).focus()

    def action_other(self) -> None:
        """Go to the other list."""
        if self.query_one("#iterations").has_focus:
            self.action_findings()
        else:
            self.action_iterations()

    def _chosen(self) -> Iteration | None:
        place = self.query_one("#iterations", LinesView).cursor
        return self.facts.iterations[place] if place < len(self.facts.iterations) else None

    def _head(self) -> None:
        width, facts = self.size.width, self.facts
        runs = len({one.run for one in facts.iterations})
        clock = time.strftime("%H:%M:%S", time.localtime(self.now_ns() // 1_000_000_000))
        counted = f"{_plural(runs, 'run')}, {_plural(len(facts.iterations), 'iteration')}  {clock} "
        left = padded(f" traceviz top  {flat(str(self.watch_home.home))}", max(width - len(counted) - 1, 1))
        self.query_one("#title", Static).update(Text(f"{left} {counted}", no_wrap=True))
        self.query_one("#columns", Static).update(Text(_heading(width), no_wrap=True))
        self.query_one("#trend", Static).update(self._trend(width))

    def _trend(self, width: int) -> Text:
        """The steps of the chosen iteration's run, as a curve from zero."""
        if self.facts.fault:
            return Text(cut(f" {flat(self.facts.fault)}", width), ATTENTION, no_wrap=True)
        one = self._chosen()
        if one is None:
            return Text(" nothing was analysed into this home yet", QUIET, no_wrap=True)
        steps = [each.row["step_ns"] if each.row else None for each in self.facts.iterations if each.run == one.run]
        known = [step for step in steps if step is not None]
        if not known:
            return Text(cut(f" {flat(one.run)}: no step is known", width), QUIET, no_wrap=True)
        words = f"  last {_ms(known[-1])} ms, {_ms(min(known))} to {_ms(max(known))}"
        label = f" steps of {cut(flat(one.run), max(width // 4, 8))}  "
        return Text.assemble(
            (label, QUIET), curve(steps, max(width - len(label) - len(words) - 1, 1)), words, no_wrap=True
        )

    def _analyses(self) -> Text:
        lines = [_running_line(one, self.now_ns(), self.size.width) for one in self.facts.running[:_MOST_RUNNING]]
        more = len(self.facts.running) - _MOST_RUNNING
        if more > 0:
            lines[-1] = Text(f" and {more + 1} more analyses", ATTENTION)
        return Text("\n").join(lines)

    def _of_iteration(self, *, first: bool = False) -> None:
        """Show the findings of the iteration that is chosen; the file is read only where it changed."""
        one, view = self._chosen(), self.query_one("#findings", LinesView)
        title = self.query_one("#of", Static)
        if one is None:
            title.update(Text(" findings"))
            view.show(_FindingLines([], 80), 0)
            return
        rows = self.watch_home.findings(one.run, one.iteration)
        graves = sum(row["severity"] == Severity.FINDING for row in rows)
        notes = sum(row["severity"] == Severity.NOTE for row in rows)
        words = f"{_plural(graves, 'finding')}, {_plural(notes, 'note')}" if rows else "no findings are stored"
        title.update(Text(cut(f" {flat(one.run)} {one.iteration}: {words}", self.size.width), no_wrap=True))
        source = _FindingLines(rows, self.size.width, _verdict(one))
        if first or not isinstance(view.source, _FindingLines) or view.source.lines != source.lines:
            view.show(source, 0 if first else None)


class _IterationLines:
    def __init__(self, iterations: Sequence[Iteration]) -> None:
        self.iterations = iterations
        self.count = len(iterations)
        self.longest: dict[str, int] = {}
        for one in iterations:
            step = (one.row and one.row["step_ns"]) or 0
            self.longest[one.run] = max(step, self.longest.get(one.run, 0))

    def line(self, index: int, width: int) -> Text:
        one = self.iterations[index]
        name = padded(flat(one.run), _name_width(width))
        head = f" {name} {one.iteration:>9} "
        if one.row is None:
            return Text.assemble(head, (cut(flat(one.fault), width - len(head)), ATTENTION), no_wrap=True)
        row = one.row
        step = row["step_ns"] or 0
        change = "" if one.change_share is None else signed_percent(one.change_share).replace(" ", "")
        ranks = f"{row['ranks']}{' stale' if row['stale'] else ' part' if row['partial'] else ''}"
        cells = [
            f"{ranks:>7}",
            f"{_ms(row['step_ns']):>10}",
            bar(step, self.longest[one.run], _STEP_BAR),
            f"{change:>7}",
            f"{_share(row['exposed_ns'], row['step_ns']):>7}",
        ]
        if width >= _WIDE:
            cells += [f"{_share(row['idle_ns'], row['step_ns']):>6}", f"{_percent(row['hidden_share']):>6}"]
        text = Text(no_wrap=True)
        text.append(head + " ".join(cells))
        text.append(f"  {_night(one, width)}", ATTENTION if one.night and not one.night["accepted"] else "")
        return text


class _FindingLines:
    """Findings, each broken into lines."""

    def __init__(self, rows: Sequence[Row], width: int, verdict: str = "") -> None:
        self.lines: list[tuple[str, str]] = []
        if verdict:
            self._add("night: ", verdict, width, ATTENTION)
        for row in rows:
            grave = row["severity"] == Severity.FINDING
            lead = f"{row['class']} · " if grave else f"{row['severity']} · " if row["severity"] else ""
            self._add(f"{lead}{flat(row['rule'])}: ", flat(row["statement"]), width, "" if grave else QUIET)
        self.count = len(self.lines)

    def _add(self, lead: str, text: str, width: int, style: str) -> None:
        for number, line in enumerate(wrapped(lead + text, max(width - 3, 20))):
            self.lines.append((f" {line}" if number == 0 else f"   {line}", style))

    def line(self, index: int, width: int) -> Text:
        text, style = self.lines[index]
        return Text(cut(text, width), style, no_wrap=True)


def _heading(width: int) -> str:
    columns = f" {'run':<{_name_width(width)}} iteration   ranks    step ms         change exposed"
    return f"{columns}{'   idle hidden' if width >= _WIDE else ''}  night"


def _name_width(width: int) -> int:
    return max(min(width - (66 if width < _WIDE else 92), 40), 8)


def _night(one: Iteration, width: int) -> str:
    if one.night is None:
        return ""
    verdict = one.night["verdict"] or FORMER_OUTCOMES[one.night["accepted"]].value
    moved = f": {flat(one.night['moved'] or 'step')}" if verdict == "worse" and width >= _WIDE else ""
    return f"{flat(verdict)}{moved}"


def _verdict(one: Iteration) -> str:
    return flat(one.night["statement"] or "") if one.night and not one.night["accepted"] else ""


def _running_line(one: Running, now_ns: int, width: int) -> Text:
    place = f" {flat(one.run)} {one.iteration}: "
    ranks = f"{one.ranks} of {one.listed} ranks" if one.listed is not None else _plural(one.ranks, "rank")
    if one.cut_off:
        words = f"{place}its analysis was cut off ({ranks} in the lake); traceviz analyze on its traces goes on"
        return Text(cut(words, width), ATTENTION, no_wrap=True)
    seconds = max(now_ns - one.since_ns, 0) // 1_000_000_000
    words = f"being analysed, {ranks} in the lake, {seconds // 60}:{seconds % 60:02}"
    room = width - len(words) - 2
    done = bar(one.ranks, one.listed or 0, max(min(room - len(place), 20), 0)) if one.listed else ""
    return Text(f"{cut(place, room)}{done} {words}", no_wrap=True)


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _ms(nanoseconds: int | None) -> str:
    return "–" if nanoseconds is None else f"{nanoseconds / 1e6:,.3f}"


def _share(part_ns: int | None, whole_ns: int | None) -> str:
    return "–" if part_ns is None or not whole_ns else f"{part_ns / whole_ns:.1%}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"

"""The screen of ``traceviz nsys tui``: the tree of a GPU, and all that is known of the line under the cursor."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from traceviz_dag.analyze.nsys.outline import Entry, Of, Order, Outline
from traceviz_dag.show.terminal.app import QUIET, Keys, TerminalApp
from traceviz_dag.show.terminal.glyphs import cut, flat
from traceviz_dag.show.terminal.lines import LinesView
from traceviz_dag.show.terminal.look import Look
from traceviz_dag.show.terminal.prompt import Prompt
from traceviz_dag.show.terminal.timeline.words import exact
from traceviz_dag.show.terminal.tree.lines import TreeLines, heading

_DETAIL_LINES = 4


class TreeApp(TerminalApp):
    """The NVTX ranges of a profile, GPU by GPU.

    Args:
        title: name of the profile.
        outlines: number of a GPU → what makes its outline.
        command: what prints the same of a GPU, path by path or each range.
        mark: what of the profile cannot be used, in words; empty where all can.
    """

    CSS = (
        TerminalApp.CSS
        + f"""
    #detail {{ height: {_DETAIL_LINES}; }}
    """
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right,d", "expand", "expand", show=False),
        Binding("left,a", "collapse", "collapse", show=False),
        Binding("e", "each", "each", show=False),
        Binding("o", "order", "order", show=False),
        Binding("right_square_bracket", "gpu(1)", "next GPU", show=False),
        Binding("left_square_bracket", "gpu(-1)", "previous GPU", show=False),
        Binding("slash", "search", "search", show=False),
        Binding("n", "match(1)", "next match", show=False),
        Binding("N", "match(-1)", "previous match", show=False),
        Binding("y", "copy", "copy", show=False),
    ]
    KEYS: ClassVar[Keys] = (
        ("↑ ↓ w s", "move; PgUp, PgDn, Home, End"),
        ("→ d Enter", "expand: what is inside, asked for when it is opened"),
        ("← a", "collapse, or go to what is around"),
        ("e", "each range and operation, or all of one path together"),
        ("o", "order: heaviest on the GPU first, or in order of time"),
        ("[ ]", "previous and next GPU"),
        ("/", "search names by a regular expression"),
        ("n N", "next and previous match"),
        ("y", "copy the command that prints this tree"),
        ("host ms", "time inside the ranges on the host"),
        ("GPU span", "first start to last end of what each range launched, summed, ms"),
        ("busy", "union of what calls inside the ranges launched"),
        ("idle", "time of the GPU spans in which the GPU ran nothing at all"),
    )
    FOOT: ClassVar[str] = " →← open, close  e each  o order  [ ] GPU  / search  y copy  ? help  q end"

    def __init__(
        self,
        title: str,
        outlines: Mapping[int, Callable[[], Outline]],
        command: Callable[[int, bool], str],
        look: Look,
        mark: str = "",
    ) -> None:
        super().__init__(look)
        self.named = title
        self.mark = mark
        self.outlines = outlines
        self.command = command
        self.gpus: Sequence[int] = tuple(outlines)
        self.gpu = self.gpus[0]
        self.shown: TreeLines | None = None
        self.made: dict[int, Outline] = {}
        self.pattern: re.Pattern[str] | None = None
        self.matches: list[int] = []
        self.match = -1

    def compose(self) -> ComposeResult:
        """Title, columns, the tree, the detail of a line, keys."""
        yield Static(id="title", classes="title")
        yield Static(id="columns", classes="quiet")
        yield LinesView(id="tree")
        yield Static(id="of", classes="title")
        yield Static(id="detail")
        yield Static(id="foot")

    def on_mount(self) -> None:
        """Measure the first GPU."""
        self.query_one("#tree", LinesView).focus()
        self.say("")
        self._begin()

    def on_resize(self) -> None:
        """Texts are cut to the width."""
        if self.query("#foot"):
            self._head()
            self._detail()
            self.say("")

    def on_lines_view_moved(self, event: LinesView.Moved) -> None:
        """Describe the line under the cursor."""
        self._detail()

    def on_lines_view_chosen(self, event: LinesView.Chosen) -> None:
        """Enter: expand, or collapse what is expanded."""
        line = self.shown.lines[event.index] if self.shown else None
        if line is not None and line.expanded:
            self.action_collapse()
        else:
            self.action_expand()

    def action_expand(self) -> None:
        """Show what is in the entry under the cursor; where it is shown, go there."""
        view = self._view
        if self.shown is None or not self.shown.count:
            return
        if self.shown.expand(view.cursor):
            view.show(self.shown)
        elif self.shown.lines[view.cursor].expanded:
            view.move_to(view.cursor + 1)

    def action_collapse(self) -> None:
        """Hide what is in the entry under the cursor, or go to what is around it."""
        if self.shown is not None and self.shown.count:
            self._view.show(self.shown, self.shown.collapse(self._view.cursor))

    def action_each(self) -> None:
        """Single ranges, or paths."""
        self._change(each=not self.shown.each if self.shown else False)

    def action_order(self) -> None:
        """In order of time, or the heaviest first."""
        heaviest = self.shown is not None and self.shown.order is Order.HEAVIEST
        self._change(order=Order.TIME if heaviest else Order.HEAVIEST)

    def action_gpu(self, by: int) -> None:
        """Another GPU."""
        place = (self.gpus.index(self.gpu) + by) % len(self.gpus)
        if self.gpus[place] != self.gpu:
            self.gpu = self.gpus[place]
            self._begin()

    def action_search(self) -> None:
        """Ask what to search for."""
        before = self.pattern.pattern if self.pattern else ""
        self.push_screen(Prompt("Search names of ranges; a regular expression, ignoring case:", before), self._search)

    def action_match(self, by: int) -> None:
        """Go to the next match or the one before."""
        if not self.matches or self.shown is None:
            self.say(" nothing was searched for: press /" if self.pattern is None else " no range has such a name")
            return
        self.match = (self.match + by) % len(self.matches)
        place = self.shown.open(self.matches[self.match])
        if place is None:
            self.say(f" match {self.match + 1:,} of {len(self.matches):,} is among what is not listed; try e")
            return
        self._view.show(self.shown, place)
        self.say(
            f" match {self.match + 1:,} of {len(self.matches):,}: {flat(self.pattern.pattern if self.pattern else '')}"
        )

    def action_copy(self) -> None:
        """Copy the command that prints this tree."""
        words = self.command(self.gpu, self.shown is not None and self.shown.each)
        self.copy_to_clipboard(words)
        self.say(f" copied: {flat(words)}")

    @property
    def _view(self) -> LinesView:
        return self.query_one("#tree", LinesView)

    def _begin(self) -> None:
        """Measure the GPU beside the screen, and show it."""
        self.shown = None
        self._head()
        if self.gpu in self.made:
            self.take(self.made[self.gpu])
            return
        self.query_one("#detail", Static).update(Text(" reading …", QUIET))
        self.run_worker(self._measure, group="measure", thread=True, exclusive=True)

    def _measure(self) -> None:
        gpu = self.gpu
        outline = self.outlines[gpu]()
        self.made[gpu] = outline
        if gpu == self.gpu:
            self.call_from_thread(self.take, outline)

    def take(self, outline: Outline) -> None:
        """Show an outline."""
        self.shown = TreeLines(outline)
        self._searched()
        self._view.show(self.shown, 0)
        self._head()
        self._detail()

    def _change(self, *, each: bool | None = None, order: Order | None = None) -> None:
        if self.shown is None:
            return
        self.shown.each = self.shown.each if each is None else each
        self.shown.order = self.shown.order if order is None else order
        self.shown.begin()
        self._searched()
        self._view.show(self.shown, 0)
        self._head()
        self._detail()

    def _search(self, text: str | None) -> None:
        if text is None:
            return
        try:
            self.pattern = re.compile(text, re.IGNORECASE) if text else None
        except re.error as error:
            self.say(f" no regular expression: {error}")
            return
        self._searched()
        self.action_match(1)

    def _searched(self) -> None:
        """Look for the pattern in this outline."""
        self.matches, self.match = [], -1
        if self.pattern is not None and self.shown is not None:
            names = self.shown.outline.nested.names
            wanted = np.array([self.pattern.search(name) is not None for name in names], dtype=bool)
            of = Of.RANGE if self.shown.each else Of.PATH
            self.matches = self.shown.outline.named(of, wanted).tolist() if len(names) else []

    def _head(self) -> None:
        width, tree = self.size.width, self.shown
        what = "" if tree is None else "each range" if tree.each else "by path"
        order = "" if tree is None else "heaviest first" if tree.order is Order.HEAVIEST else "in order of time"
        gpus = f"GPU {self.gpu}" + (f" of {', '.join(map(str, self.gpus))}" if len(self.gpus) > 1 else "")
        words = f" {flat(self.named)}  {gpus}  {what}, {order}" if tree else f" {flat(self.named)}  {gpus}"
        words += f"  {self.mark}" if self.mark else ""
        self.query_one("#title", Static).update(Text(cut(words, width), no_wrap=True))
        self.query_one("#columns", Static).update(Text(heading(width), no_wrap=True))

    def _detail(self) -> None:
        tree, width = self.shown, self.size.width
        if tree is None:
            return
        head, detail = self.query_one("#of", Static), self.query_one("#detail", Static)
        if not tree.count:
            head.update("")
            detail.update(Text(" no NVTX range, and nothing that ran, is in this time", QUIET))
            return
        place = self._view.cursor
        entry = tree.lines[place].entry
        head.update(Text(cut(f" {place + 1:,} of {tree.count:,} lines", width), no_wrap=True))
        lines = [] if entry is None else self._facts(entry)
        detail.update(Text("\n".join(cut(f" {line}", width) for line in lines), no_wrap=True))

    def _facts(self, entry: Entry) -> list[str]:
        """What is known of an entry, a line each."""
        nested = self.shown.outline.nested if self.shown else None
        if entry.of in (Of.PATH, Of.RANGE) and nested is not None and self.shown is not None:
            around = self.shown.outline.path_to(entry.of, entry.number)
            codes = nested.path_name if entry.of is Of.PATH else nested.name
            name = " › ".join(flat(nested.names[codes[one]]) for one in around)
        else:
            name = flat(entry.name)
        lines = [name]
        if entry.of is Of.RANGE:
            lines.append(f"host {_seconds(entry.start_ns)} to {_seconds(entry.start_ns + entry.span_ns)} s")
        elif entry.of is Of.PATH:
            many = "1 range" if entry.count == 1 else f"{entry.count:,} ranges"
            lines.append(f"{many}, the first at {_seconds(entry.start_ns)} s; host {exact(entry.span_ns)}")
        elif entry.of is not Of.OUTSIDE:
            many = f" in {entry.count:,} together" if entry.count > 1 else ""
            lines.append(f"{entry.kind}; {exact(entry.span_ns)}{many}")
        if entry.gpu_start_ns is None or entry.gpu_end_ns is None:
            return [*lines, "launched nothing"]
        times = f"GPU {_seconds(entry.gpu_start_ns)} to {_seconds(entry.gpu_end_ns)} s; busy {exact(entry.busy_ns)}"
        if entry.of in (Of.NAME, Of.OPERATION):
            return [*lines, times]
        lines.append(f"{times}; idle {exact(entry.idle_ns)}")
        lines.append(f"{entry.operations:,} launched: kernels and memory operations")
        return lines


def _seconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e9:,.6f}"

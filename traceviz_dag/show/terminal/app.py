"""What all screens share: the line of keys, help, messages, leaving, and the colours of a dark page."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.filter import LineFilter
from textual.screen import ModalScreen, ScreenResultType
from textual.widgets import Static

from traceviz_dag.show.terminal.glyphs import cut, padded
from traceviz_dag.show.terminal.lines import LinesView
from traceviz_dag.show.terminal.look import Look, filters_of

PAPER, INK, QUIET, RULE, ATTENTION = "#16191d", "#e6e8eb", "#a3abb5", "#3a4048", "#f48fb1"
"""As the report's dark page has them."""

_INPUT = 0
_TERMINAL_SECONDS = 1.0
_HUNG_UP = 128 + signal.SIGHUP

Keys = Sequence[tuple[str, str]]
"""Keys as a keyboard shows them, and what they do."""

COMMON_KEYS: Keys = (("?", "help"), ("q Esc", "back; on the first screen, end"))


class TerminalApp(App[None]):
    """A screen with a title above, and keys and messages below."""

    ENABLE_COMMAND_PALETTE = False
    CSS = f"""
    Screen {{ background: {PAPER}; color: {INK}; }}
    .title {{ height: 1; background: {RULE}; text-style: bold; }}
    .quiet {{ height: 1; color: {QUIET}; }}
    #foot {{ height: 1; dock: bottom; color: {QUIET}; }}
    Help {{ align: center middle; background: {PAPER}; }}
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "help", "help", show=False),
        Binding("q,escape", "back", "back", show=False),
        Binding("ctrl+c", "quit", "end", show=False, priority=True),
    ]
    KEYS: ClassVar[Keys] = ()
    FOOT: ClassVar[str] = ""

    def __init__(self, look: Look) -> None:
        self.look = look
        self.fault: Exception | None = None
        self._look_filters = filters_of(look)
        # Colours of the palette need no conversion; without colours those of the terminal stay as they are.
        super().__init__(ansi_color=not look.colour)
        self.animation_level = "none"

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Textual's filters, and ours."""
        return [*super().get_line_filters(), *self._look_filters]

    def walk(self) -> None:
        """Draw until the user ends it; a process that is asked to stop (SIGTERM) gives the terminal back before.

        Raises:
            Exception: what went wrong, as it was raised.
        """
        with self._terminal_given_back(), _ended_with_terminal():
            self.run()
        if self.fault is not None:
            raise self.fault

    @contextmanager
    def _terminal_given_back(self) -> Iterator[None]:
        """Leave the screen when the process is asked to stop, and let it end then."""
        told = False

        def end(*_: object) -> None:
            nonlocal told
            told = True
            # The loop may sleep: only this wakes it.
            asyncio.get_running_loop().call_soon_threadsafe(self.exit)

        former = signal.signal(signal.SIGTERM, end)
        try:
            yield
        finally:
            # Some who start programs have them ignore it: one that is asked to stop ends nevertheless.
            signal.signal(signal.SIGTERM, signal.SIG_DFL if told else former)
            if told:
                signal.raise_signal(signal.SIGTERM)

    def _handle_exception(self, error: Exception) -> None:
        # Textual would print pages of it; the command line makes it a line.
        self.fault = self.fault or getattr(error, "error", error)
        super()._handle_exception(error)
        self._exit_renderables.clear()

    def say(self, text: str) -> None:
        """Show a message instead of the keys, until the next one."""
        self.query_one("#foot", Static).update(Text(cut(text or self.FOOT, self.size.width), no_wrap=True))

    def action_help(self) -> None:
        """Show what the keys do."""
        self.push_screen(Help((*self.KEYS, *COMMON_KEYS)))

    async def action_back(self) -> None:
        """Close what was opened last, or end."""
        if len(self.screen_stack) > 1:
            self.pop_screen()
        else:
            self.exit()


@contextmanager
def _ended_with_terminal() -> Iterator[None]:
    """End this process when its terminal is gone: one that ignores a hang-up would read the end for ever, and busily.

    A thread looks, since the screen may wait for the terminal to take what it draws.
    """
    over = threading.Event()

    def look() -> None:
        while not over.wait(_TERMINAL_SECONDS):
            try:
                os.get_terminal_size(_INPUT)
            except OSError:
                # Nothing can be given back any more.
                os._exit(_HUNG_UP)

    if os.isatty(_INPUT):
        threading.Thread(target=look, name="ends with its terminal", daemon=True).start()
    try:
        yield
    finally:
        over.set()


class Answering(ModalScreen[ScreenResultType]):
    """A screen above another one that answers once: a key that is pressed twice must not close what lies below, too."""

    def __init__(self) -> None:
        super().__init__()
        self.answered = False

    def dismiss(self, result: ScreenResultType | None = None) -> AwaitComplete:
        """Close it with an answer; nothing where that was done before."""
        if self.answered:
            return AwaitComplete()
        self.answered = True
        return super().dismiss(result)


class Help(Answering[None]):
    """The keys and what they do."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("q,escape,question_mark,enter", "dismiss", "back", show=False)]

    def __init__(self, keys: Keys) -> None:
        super().__init__()
        self.keys = keys

    def compose(self) -> ComposeResult:
        """A heading, and a line for each key."""
        yield Static(Text(" Keys"), classes="title")
        yield LinesView(_KeyLines(self.keys))
        yield Static(Text(" q back"), classes="quiet")


class _KeyLines:
    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self.count = len(keys)

    def line(self, index: int, width: int) -> Text:
        key, words = self.keys[index]
        return Text.assemble((padded(f" {key}", 20), "bold"), cut(words, width - 20), no_wrap=True)

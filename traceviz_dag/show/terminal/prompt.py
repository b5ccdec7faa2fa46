"""A line to type into, at the foot of a screen."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input, Static

from traceviz_dag.show.terminal.app import Answering

LONGEST = 500
"""Letters that are taken, as many as the live page takes: what is pasted by mistake is longer."""


class Prompt(Answering[str | None]):
    """Asks for a text; None where the user went back."""

    DEFAULT_CSS = """
    Prompt { align: left bottom; background: transparent; }
    Prompt Static { height: 1; width: 100%; }
    Prompt Input { border: none; height: 1; padding: 0 1; width: 100%; }
    Prompt Input:focus { border: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "back", show=False)]

    def __init__(self, question: str, text: str = "") -> None:
        super().__init__()
        self.question = question
        self.text = text

    def compose(self) -> ComposeResult:
        """The question, and what is typed below."""
        yield Static(f" {self.question}", markup=False, classes="title")
        yield Input(self.text, select_on_focus=True, max_length=LONGEST)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter: this is the answer."""
        self.dismiss(event.value)

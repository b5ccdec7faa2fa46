"""What part of the time is shown, and the views before it."""

from __future__ import annotations

from dataclasses import dataclass, field

from traceviz_dag.show.lanes.lane import Window

_SHORTEST_NS = 20
_MOST_KEPT = 200


@dataclass(slots=True)
class Looking:
    """A window on the axis of a model, with undo and redo.

    Attributes:
        span: all that there is.
        window: what is shown.
        selection: a part of it that the user chose; None where none.
    """

    span: Window
    window: Window = field(init=False)
    selection: Window | None = None
    _before: list[Window] = field(default_factory=list)
    _after: list[Window] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.window = self.all

    @property
    def all(self) -> Window:
        """Everything, at least as long as the shortest window."""
        return Window(self.span.start_ns, max(self.span.end_ns, self.span.start_ns + _SHORTEST_NS))

    def show(self, start_ns: int, end_ns: int) -> None:
        """Show a window, as far as there is something; it can be undone."""
        whole = self.all
        length = min(max(end_ns - start_ns, _SHORTEST_NS), whole.length_ns)
        start = min(max(start_ns, whole.start_ns), whole.end_ns - length)
        window = Window(start, start + length)
        if window != self.window:
            self._before = [*self._before[-_MOST_KEPT:], self.window]
            self._after = []
            self.window = window

    def move(self, parts: int, of: int) -> None:
        """Move by a part of what is shown, to the right where it is positive."""
        by = self.window.length_ns * parts // of
        self.show(self.window.start_ns + by, self.window.end_ns + by)

    def zoom(self, parts: int, of: int, at_ns: int | None = None) -> None:
        """Show ``parts / of`` times as much time; an instant, the middle by default, stays where it is."""
        start, end = self.window
        at = (start + end) // 2 if at_ns is None else at_ns
        length = max(self.window.length_ns * parts // of, _SHORTEST_NS)
        begin = at - (at - start) * length // self.window.length_ns
        self.show(begin, begin + length)

    def bring(self, slice_window: Window) -> None:
        """Move and zoom only as far as a slice needs to be seen."""
        start, end = self.window
        inside = slice_window.start_ns >= start and slice_window.end_ns <= end
        if inside and slice_window.length_ns * 400 >= self.window.length_ns:
            return
        half = max(slice_window.length_ns * 10, min(self.window.length_ns // 2, self.all.length_ns // 50))
        middle = (slice_window.start_ns + slice_window.end_ns) // 2
        if half * 2 > self.window.length_ns and inside:
            return
        self.show(middle - half, middle + half)

    def undo(self) -> bool:
        """Show what was shown before; whether there was something."""
        if not self._before:
            return False
        self._after.append(self.window)
        self.window = self._before.pop()
        return True

    def redo(self) -> bool:
        """Show what was shown before ``undo``; whether there was something."""
        if not self._after:
            return False
        self._before.append(self.window)
        self.window = self._after.pop()
        return True

    def cell_of(self, time_ns: int, width: int) -> int:
        """The column of an instant; outside of the window it is below 0, or ``width`` and more."""
        return (time_ns - self.window.start_ns) * width // self.window.length_ns

    def time_of(self, cell: int, width: int) -> int:
        """The first instant of a column."""
        return self.window.start_ns + -(-cell * self.window.length_ns // max(width, 1))

"""Bookmarks and notes of people: one small JSON file a source, in the home.

Times are kept on the own clock of the lane's rank, so that they stay where they were when the clocks of ranks are laid
on one another in another way.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa

from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.printable import printable
from traceviz_dag.show.lanes.lane import Window
from traceviz_dag.show.screens.model import ScreenModel
from traceviz_dag.system.json_bytes import decoded
from traceviz_dag.system.whole_files import changing, write_atomically


@dataclass(frozen=True, slots=True)
class Bookmark:
    """A window that somebody wants to find again.

    Attributes:
        window: on the axis of the model.
        lane: key of the lane where it was set; empty for the whole screen, whose times are of the axis.
        note: what they wrote; may be empty.
    """

    window: Window
    lane: str = ""
    note: str = ""


class _Kept(msgspec.Struct, frozen=True):
    """One bookmark in the file, its times on the own clock of its lane."""

    start_ns: int
    end_ns: int
    lane: str = ""
    note: str = ""


class _File(msgspec.Struct, frozen=True):
    source: str
    bookmarks: list[_Kept]


@dataclass(frozen=True, slots=True)
class Bookmarks:
    """The bookmarks of one source.

    Attributes:
        path: their file, which need not exist.
        source: names the source in the file, for people.
    """

    path: Path
    source: str

    def all(self, model: ScreenModel) -> tuple[Bookmark, ...]:
        """The bookmarks, by start; not those of ranks and GPUs that are not there.

        Raises:
            BadInputError: the file is damaged, or may not be read.
        """
        found = (_shown(model, one) for one in self._read())
        return tuple(
            sorted((one for one in found if one is not None), key=lambda one: (one.window, one.lane, one.note))
        )

    def add(self, model: ScreenModel, bookmark: Bookmark) -> None:
        """Keep a bookmark; the same one is kept once.

        Raises:
            BadInputError: the file is damaged.
            OutputError: it cannot be written.
        """
        self._change(_kept(model, bookmark), there=True)

    def remove(self, model: ScreenModel, bookmark: Bookmark) -> None:
        """Forget a bookmark.

        Raises:
            BadInputError, OutputError: as ``add``.
        """
        self._change(_kept(model, bookmark), there=False)

    def _change(self, one: _Kept, *, there: bool) -> None:
        # Two screens may change them at once: what the other one has written meanwhile stays.
        with changing(self.path):
            others = [other for other in self._read() if other != one]
            kept = _File(self.source, [*others, one] if there else others)
            write_atomically(self.path, pa.py_buffer(msgspec.json.format(msgspec.json.encode(kept))))

    def _read(self) -> list[_Kept]:
        try:
            return decoded(self.path.read_bytes(), _File).bookmarks
        except FileNotFoundError:
            return []
        except OSError as error:
            raise BadInputError(self.path, f"cannot be read ({error.strerror})", "fix or remove it") from None
        except msgspec.DecodeError as error:
            raise BadInputError(self.path, f"no bookmarks ({error})", "fix or delete it") from None


def _moved(model: ScreenModel, lane: str) -> int:
    return model.own_time(lane, 0) if lane else 0


def _kept(model: ScreenModel, bookmark: Bookmark) -> _Kept:
    moved = _moved(model, bookmark.lane)
    start, end = bookmark.window
    return _Kept(start + moved, end + moved, bookmark.lane, bookmark.note)


def _shown(model: ScreenModel, kept: _Kept) -> Bookmark | None:
    try:
        moved = _moved(model, kept.lane)
    except UsageError:
        return None
    window = Window(kept.start_ns - moved, kept.end_ns - moved)
    return Bookmark(window, printable(kept.lane), printable(kept.note))

"""What live pages walk through, and the desk at which their questions are answered: one at a time for each source.

A question waits for those before it, for ``MOST_SECONDS`` at the most. One whose asker is gone is not begun. Reading
cannot be stopped half way: what takes longer goes on, and who asks again finds it done.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from threading import Lock
from time import monotonic
from typing import TypeVar

from starlette.exceptions import HTTPException

from traceviz_dag.show.lanes.lane import Window
from traceviz_dag.show.screens.bookmarks import Bookmarks
from traceviz_dag.show.screens.model import ScreenModel

MOST_SECONDS = 30.0
"""How long a question waits for its answer."""

MOST_WAITING = 24
"""Questions to one source that wait at once."""

_MOST_OPEN = 4
"""Sources that are held open; the one that was asked longest ago is closed first."""

_LOOKED_AGAIN_SECONDS = 1.0
_GONE_SECONDS = 0.25

BUSY = "This takes longer than {:g} s. It goes on: ask again."
CROWDED = "Too many questions wait for this source: ask again."

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Walked:
    """An open source.

    Attributes:
        bookmarks: None where none are kept.
        in_perfetto: a window of the model's axis on the clock of the Perfetto traces that are exported of it; None
            where there is no such clock.
    """

    model: ScreenModel
    bookmarks: Bookmarks | None = None
    in_perfetto: Callable[[Window], Window] | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """What one page walks through.

    Attributes:
        title: of its page.
        digest: distinguishes states of the source; quick.
        open: reads it; slow the first time.
    """

    title: str
    digest: Callable[[], str]
    open: Callable[[], Walked]


@dataclass(frozen=True, slots=True)
class Sources:
    """All that live pages can show.

    Attributes:
        of_iteration: the source of an iteration of the home, by run and number.
        opened: what the command was given beside; their pages have numbers.
    """

    of_iteration: Callable[[str, int], Source]
    opened: Sequence[Source] = ()


@dataclass(slots=True)
class _Held:
    """A source with its thread.

    Attributes:
        digest: of the state that is open; empty before. looked: when it was last compared.
    """

    source: Source
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "live"))
    walked: Walked | None = None
    digest: str = ""
    looked: float = 0.0
    waiting: int = 0

    def current(self) -> tuple[Walked, str]:
        """The source as it is now; opened anew where it has changed."""
        if self.walked is None or monotonic() - self.looked > _LOOKED_AGAIN_SECONDS:
            digest = self.source.digest()
            if self.walked is None or digest != self.digest:
                self.walked = None
                self.walked = self.source.open()
                self.digest = digest
            self.looked = monotonic()
        return self.walked, self.digest


class Desk:
    """Answers questions about sources.

    Args:
        most_seconds: how long a question waits.
    """

    def __init__(self, most_seconds: float = MOST_SECONDS) -> None:
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._lock = Lock()
        self._most_seconds = most_seconds

    async def ask(
        self, name: str, source: Source, question: Callable[[Walked, str], T], gone: Callable[[], Awaitable[bool]]
    ) -> T:
        """The answer to a question about an open source and its digest.

        Args:
            name: of the source, its page. gone: whether who asks has left.

        Raises:
            HTTPException: 503 where it takes too long or too many wait; whatever the question raises.
        """
        held = self._of(name, source)
        if held.waiting >= MOST_WAITING:
            raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, CROWDED)
        held.waiting += 1
        future = held.thread.submit(lambda: question(*held.current()))
        try:
            until = monotonic() + self._most_seconds
            waited = asyncio.wrap_future(future)
            while not waited.done():
                await asyncio.wait([waited], timeout=min(_GONE_SECONDS, max(until - monotonic(), 0.0)))
                if not waited.done() and (monotonic() >= until or await gone()):
                    future.cancel()
                    raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, BUSY.format(self._most_seconds))
            return waited.result()
        finally:
            held.waiting -= 1

    def _of(self, name: str, source: Source) -> _Held:
        with self._lock:
            if name not in self._held:
                idle = [each for each, held in self._held.items() if not held.waiting]
                for each in idle[: max(len(self._held) + 1 - _MOST_OPEN, 0)]:
                    self._held.pop(each).thread.shutdown(wait=False)
                self._held[name] = _Held(source)
            self._held.move_to_end(name)
            return self._held[name]

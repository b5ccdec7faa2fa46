"""What other packages bring by entry points: loaded in a fixed order; what is wrong with one takes one line."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Generic, Protocol, TypeVar

from traceviz_dag.errors import UsageError


class Named(Protocol):
    """What other packages bring has a name that nothing else of its group has."""

    @property
    def name(self) -> str:
        """In lower case, as commands and files spell it."""


Thing = TypeVar("Thing", bound=Named)

_NAME = re.compile(r"[a-z][a-z0-9_]*")
"""Names end up in file names, SQL, options and the asset graph: this is a word in all of them."""


@dataclass(frozen=True, slots=True)
class ExtensionPoint(Generic[Thing]):
    """What another package may bring.

    Attributes:
        group: of its entry points.
        noun: what one is called in sentences, with a name: ``figure``, ``table``.
        kind: the class or protocol of which one is.
        wanted: what ``kind`` is called in sentences.
        page: says what one has.
        make: turns what an entry point gives into one.
    """

    group: str
    noun: str
    kind: type[Thing]
    wanted: str
    page: str
    make: Callable[[Any], Any] = lambda found: found


@dataclass(frozen=True, slots=True)
class Brought(Generic[Thing]):
    """One thing of another package.

    Attributes:
        origin: what it is, the entry point's name, and the package.
    """

    thing: Thing
    origin: str

    def refused(self, fault: str, remedy: str) -> UsageError:
        """The error for what only those can check who use it."""
        return _refused(self.origin, fault, remedy)


def plugins(point: ExtensionPoint[Thing], taken: Container[str]) -> Iterator[Brought[Thing]]:
    """Everything that other packages bring to an extension point, by name: of its kind, and with names of their own.

    Args:
        taken: names that are given away.

    Raises:
        UsageError: one cannot be loaded, is of another kind, has no usable name, or bears the name of another.
    """
    seen: set[str] = set()
    for entry in sorted(entry_points(group=point.group), key=lambda each: (each.name, each.value)):
        origin = f"{point.noun} {entry.name} of {entry.dist.name if entry.dist is not None else 'a package'}"
        try:
            thing = point.make(entry.load())
        except (Exception, SystemExit) as error:  # whatever the code of others raises is its fault
            fault = f"cannot be loaded ({type(error).__name__}: {error})"
            raise _refused(origin, fault, "fix or uninstall it") from error
        if not isinstance(thing, point.kind):
            raise _refused(origin, f"{entry.value} is no {point.wanted}", f"{point.page} says what one has")
        if not isinstance(thing.name, str) or not _NAME.fullmatch(thing.name):
            fault = f"{thing.name!r} is no name"
            raise _refused(origin, fault, "take lower-case letters, digits and underscores, a letter first")
        if thing.name in taken or thing.name in seen:
            raise _refused(origin, f"a {point.noun} is named {thing.name!r} already", "uninstall one of them")
        seen.add(thing.name)
        yield Brought(thing, origin)


def _refused(origin: str, fault: str, remedy: str) -> UsageError:
    return UsageError(f"{origin}: {fault}; {remedy}")

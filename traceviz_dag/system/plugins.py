"""What other packages bring by entry points: loaded in a fixed order; what is wrong with one is told in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from traceviz_dag.errors import UsageError


@dataclass(frozen=True, slots=True)
class Brought:
    """One thing of another package.

    Attributes:
        thing: what the entry point gave.
        place: ``module:name`` where it was found.
        origin: what it is and whose, for sentences.
    """

    thing: Any
    place: str
    origin: str


def brought_by_others(group: str, noun: str, make: Callable[[Any], Any] = lambda found: found) -> Iterator[Brought]:
    """Everything of a group of entry points, by name.

    Args:
        noun: what one is called in sentences.
        make: turns what was loaded into the thing.

    Raises:
        UsageError: one cannot be loaded.
    """
    for point in sorted(entry_points(group=group), key=lambda each: (each.name, each.value)):
        package = point.dist.name if point.dist is not None else "a package"
        origin = f"{noun} {point.name} of {package}"
        try:
            thing = make(point.load())
        except Exception as error:  # whatever the code of others raises is its fault
            told = f"{type(error).__name__}: {error}"
            raise UsageError(f"{origin}: cannot be loaded ({told}); mend or uninstall it") from error
        yield Brought(thing, point.value, origin)

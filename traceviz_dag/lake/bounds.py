"""What a query of somebody else may take, and what it may name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from traceviz_dag.errors import UsageError

Parameters = Mapping[str, object] | Sequence[object] | None


class FilesGoneError(UsageError):
    """Files that were listed were deleted before they were opened; asked again, the query finds what is left."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a query of somebody else may take.

    Attributes:
        seconds: how long it may run. rows: how many it gives at most, from ``offset`` on.
        in_home: put what memory does not hold beside the lake, and not where the system has such files: nothing is
            written into the home.

    Raises:
        UsageError: there are no such numbers of rows, or no such time.
    """

    seconds: float | None = None
    rows: int | None = None
    offset: int = 0
    in_home: bool = True

    def __post_init__(self) -> None:
        if min(self.rows or 0, self.offset) < 0 or (self.seconds is not None and not self.seconds > 0):
            raise UsageError("rows and offset of a query are 0 or more, its seconds more than 0")


UNBOUND = Bounds()

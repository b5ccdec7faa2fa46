"""Named baselines of a home: HOME/baselines.json, from a name to runs or iterations that somebody chose, the last last.

Under the name of a series they are what somebody decided for the nightly gate. What the gate decides itself stands in
its tables alone.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec

from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.partition_keys import iteration_key
from traceviz_dag.system.json_bytes import decoded
from traceviz_dag.system.whole_files import changing, write_atomically

FILE_NAME = "baselines.json"


class SetBy(StrEnum):
    """How a baseline came to be."""

    NAMED = "set"
    """Somebody set it by name."""
    ACCEPTED = "accepted"
    """Somebody accepted this night, whatever it is."""
    GATE = "gate"
    """The gate moved it: the step is shorter since this night, and that is confirmed; or it is the first night of more
    ranks."""


class Baseline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a name means.

    Attributes:
        iteration: None for the whole run.
        until_ns: of a series, when the oldest trace of its last night at that time was written: up to that the gate
            moves the baseline no further.
    """

    run: str
    iteration: Annotated[int, msgspec.Meta(ge=0)] | None
    by: SetBy
    until_ns: int = 0

    @property
    def key(self) -> str:
        """The run, or run and iteration, as commands take it."""
        return self.run if self.iteration is None else iteration_key(self.run, self.iteration)

    def holds(self, run: str, iteration: int) -> bool:
        """Whether an iteration is of it."""
        return run == self.run and self.iteration in (None, iteration)


def all_baselines(home: Path) -> dict[str, list[Baseline]]:
    """Name → its baselines, in the order in which they were set, at least one; by name.

    Raises:
        BadInputError: the file is damaged.
    """
    path = home / FILE_NAME
    try:
        found = decoded(path.read_bytes(), dict[str, Annotated[list[Baseline], msgspec.Meta(min_length=1)]])
    except FileNotFoundError:
        return {}
    except msgspec.DecodeError as error:
        raise BadInputError(path, f"is damaged ({error})", "remove it, and set the baselines again") from None
    return dict(sorted(found.items()))


def baselines(home: Path) -> dict[str, Baseline]:
    """Name → the last baseline of it, by name; errors as :func:`all_baselines`."""
    return {name: every[-1] for name, every in all_baselines(home).items()}


def keep_baseline(
    home: Path, name: str, one: Baseline | None, stays: Callable[[Baseline], bool] = lambda former: False
) -> None:
    """Set a baseline; None forgets all of this name. Those of other names stay.

    Args:
        stays: which former ones of the name stay before it.

    Raises:
        BadInputError: the file is damaged.
    """
    # Several may set baselines at once.
    with changing(home / FILE_NAME):
        kept = all_baselines(home)
        former = kept.pop(name, [])
        if one is not None:
            kept[name] = [*filter(stays, former), one]
        write_atomically(
            home / FILE_NAME, msgspec.json.format(msgspec.json.encode(dict(sorted(kept.items()))), indent=2) + b"\n"
        )

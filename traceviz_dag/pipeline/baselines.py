"""Named baselines of a home: HOME/baselines.json, from a name to a run or an iteration.

The gate keeps one for each series under the series' own name. Others are whoever's set them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.partition_keys import iteration_key
from traceviz_dag.system.json_bytes import decoded
from traceviz_dag.system.whole_files import changing, write_atomically

FILE_NAME = "baselines.json"


class SetBy(StrEnum):
    """Who set a baseline."""

    NAMED = "set"
    """Somebody, by name."""
    ACCEPTED = "accepted"
    """Somebody accepted this night, whatever it is."""
    GATE = "gate"
    """The gate: the step is shorter since this night, and that is confirmed; or the first night of more ranks."""


class Baseline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a name means.

    Attributes:
        iteration: None for the whole run.
    """

    run: str
    iteration: int | None
    by: SetBy

    @property
    def key(self) -> str:
        """The run, or run and iteration, as commands take it."""
        return self.run if self.iteration is None else iteration_key(self.run, self.iteration)

    def holds(self, run: str, iteration: int) -> bool:
        """Whether an iteration is of it."""
        return run == self.run and self.iteration in (None, iteration)


def baselines(home: Path) -> dict[str, Baseline]:
    """Name → baseline, by name; none where nobody set one.

    Raises:
        BadInputError: the file is damaged.
    """
    path = home / FILE_NAME
    try:
        found = decoded(path.read_bytes(), dict[str, Baseline])
    except FileNotFoundError:
        return {}
    except msgspec.DecodeError as error:
        raise BadInputError(path, f"is damaged ({error})", "remove it, and set the baselines again") from None
    return dict(sorted(found.items()))


def keep_baselines(home: Path, changed: Mapping[str, Baseline | None]) -> None:
    """Set some baselines, and forget those that are None; the others stay.

    Raises:
        BadInputError: the file is damaged.
    """
    # Somebody and the gate may set baselines at once.
    with changing(home / FILE_NAME):
        kept = {**baselines(home), **changed}
        data = msgspec.json.encode({name: one for name, one in sorted(kept.items()) if one is not None})
        write_atomically(home / FILE_NAME, msgspec.json.format(data, indent=2) + b"\n")

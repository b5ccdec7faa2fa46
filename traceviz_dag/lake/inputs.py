"""Which files make up each registered iteration: the list that discovery writes and the assets read.

One small JSON file an iteration, under HOME/inputs/. It names the files and how they looked (size, time of change), so
that a change is seen without opening them; it stays in the home and is no table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.partition_keys import iteration_key
from traceviz_dag.lake.write import write_atomically

FOLDER = "inputs"


@dataclass(frozen=True, slots=True)
class RankInput:
    """One rank's trace file.

    Attributes:
        name: path relative to the run's folder, the name that tables and messages use.
        step: the ProfilerStep that is the iteration, where the file holds several; None takes the whole file.
        size_bytes, changed_ns: as the file system gave them when the file was registered.
    """

    rank: int
    path: str
    name: str
    step: int | None
    size_bytes: int
    changed_ns: int

    @property
    def version(self) -> str:
        """Changes whenever the file looks different; the data version of the raw trace."""
        return f"{self.size_bytes}-{self.changed_ns}"


@dataclass(frozen=True, slots=True)
class IterationInputs:
    """The files of one iteration.

    Attributes:
        problems: one line per file that discovery found and could not place.
        warnings: one line per file that contradicts its own path.
    """

    run: str
    iteration: int
    folder: str
    ranks: tuple[RankInput, ...]
    topology_file: str | None = None
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The partition key of the iteration."""
        return iteration_key(self.run, self.iteration)

    def rank(self, rank: int) -> RankInput | None:
        """The input of a rank; None for a rank that this iteration does not have."""
        return next((entry for entry in self.ranks if entry.rank == rank), None)


def register(home: Path, inputs: IterationInputs) -> bool:
    """Write the list of one iteration; returns whether it differs from what stood there."""
    path = _path(home, inputs.key)
    encoded = msgspec.json.format(msgspec.json.encode(inputs))
    if path.is_file() and path.read_bytes() == encoded:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, encoded)
    return True


def registered(home: Path, key: str) -> IterationInputs:
    """The list of one iteration.

    Raises:
        BadInputError: the iteration was never registered in this home, or its list is damaged.
    """
    path = _path(home, key)
    try:
        return msgspec.json.decode(path.read_bytes(), type=IterationInputs)
    except FileNotFoundError:
        raise BadInputError(path, f"iteration {key} is not registered", "run traceviz analyze on its folder") from None
    except msgspec.DecodeError as error:
        raise BadInputError(path, f"is damaged ({error})", "delete it and run traceviz analyze again") from None


def all_registered(home: Path) -> Iterator[IterationInputs]:
    """The lists of all iterations, by key."""
    for path in sorted((home / FOLDER).glob("*.json")):
        yield registered(home, path.stem)


def _path(home: Path, key: str) -> Path:
    return home / FOLDER / f"{key}.json"

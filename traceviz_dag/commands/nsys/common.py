"""What the nsys commands share: their options, and opening a profile with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from traceviz_dag.analyze.nsys.activity import Activity, Clip, activities
from traceviz_dag.analyze.nsys.lost import KERNEL_TABLES, lost_rows
from traceviz_dag.analyze.wording import seconds
from traceviz_dag.classify.rules import Rules, load_rules
from traceviz_dag.commands.common.output import print_json
from traceviz_dag.errors import IncompleteError, TracevizError, UsageError
from traceviz_dag.read.nsys.cache import open_profile
from traceviz_dag.read.nsys.profile import NsysProfile, RowFault

ProfileArgument = Annotated[
    Path,
    typer.Argument(help="Profile: a .sqlite export, a folder of Parquet exports, or a .nsys-rep.", show_default=False),
]
GpuOption = Annotated[
    list[str], typer.Option("--gpu", help="Take only these GPUs, for example 0,1; may be repeated.", show_default=False)
]
TrimOption = Annotated[
    tuple[float, float] | None,
    typer.Option(
        "--trim",
        help="Take only the time from A to B, in seconds of the capture's clock, as far as the profile covers it; "
        "kernels are cut at the edges.",
    ),
]
RulesOption = Annotated[
    Path | None, typer.Option(help="TOML file of rules that are tried before the built-in ones.", show_default=False)
]
AgainstOption = Annotated[
    Path | None, typer.Option(help="Another profile to lie beside it, aligned by iteration.", show_default=False)
]
IterationOption = Annotated[
    int | None, typer.Option(help="With --against: the iteration of both that starts at the same instant.")
]

Concerns = Callable[[RowFault], bool]
_NUMBERS = re.compile(r"[\s,]+")


@dataclass(frozen=True, slots=True)
class Opened:
    """A profile with the rules and the window that a command was given."""

    profile: NsysProfile
    rules: Rules
    window: Clip | None
    concerns: Concerns

    def gpus(self, wanted: Sequence[str]) -> list[Activity]:
        """What the GPUs did."""
        return activities(self.profile, self.rules, gpu_numbers(wanted))

    def rows(
        self, wanted: Sequence[str], measured: Callable[[NsysProfile, Activity, Clip | None], Iterable[Any]]
    ) -> list[dict[str, Any]]:
        """What is measured of each GPU in the window, as rows that begin with its number."""
        return [
            {"device": part.device, **asdict(one)}
            for part in self.gpus(wanted)
            for one in measured(self.profile, part, self.window)
        ]

    @property
    def faults(self) -> str:
        """What the answer lacks by now, rows of the export that cannot be used; empty where it lacks nothing."""
        return lost_rows(self._faults())

    def _faults(self) -> list[RowFault]:
        return [fault for fault in self.profile.faults() if self.concerns(fault)]

    def print_json(self, answer: Any) -> None:
        """Print an answer as JSON: the object, or each object of the list, shows whether it is partial.

        A row of one GPU lacks what is left out of this GPU alone.
        """
        faults = self._faults()

        def marked(row: dict[str, Any]) -> dict[str, Any]:
            device = row.get("device")
            partial = [one for one in faults if None in (device, one.device) or one.device == device]
            return {**row, "partial": bool(partial)}

        print_json([marked(row) for row in answer] if isinstance(answer, list) else marked(answer))


def names_of_kernels(fault: RowFault) -> bool:
    """What concerns an answer that names kernels, and no calls."""
    return not fault.nameless or fault.source.startswith(KERNEL_TABLES)


def no_names(fault: RowFault) -> bool:
    """What concerns an answer that depends on no name."""
    return not fault.nameless


def no_kernels(fault: RowFault) -> bool:
    """What concerns an answer that depends on no kernel."""
    return not fault.source.startswith(KERNEL_TABLES)


@contextmanager
def opened(
    path: Path,
    home: Path,
    trim: tuple[float, float] | None = None,
    rules: Path | None = None,
    concerns: Concerns = names_of_kernels,
) -> Iterator[Opened]:
    """Open a profile for a block that prints an answer, from the home where it was read before.

    Args:
        concerns: which unusable rows, among those that the block asks for, the answer depends on.

    Raises:
        UsageError: the window is none, or the profile covers nothing of it.
        IncompleteError: the block has ended, and rows that it asked for cannot be used.
    """
    asked = Clip.of_seconds(*trim) if trim is not None else None
    profile = open_profile(path, home)
    if not any(rows for table, rows in profile.store.facts_so_far.tables.items() if table.startswith(KERNEL_TABLES)):
        fault = "no kernels were recorded, so GPUs seem idle; capture with --trace=cuda,nvtx"
        typer.echo(f"traceviz: {path.name}: {fault}", err=True)
    window = asked.within(profile) if asked is not None else None
    if window != asked and window is not None:
        covered = f"{seconds(window.start_ns)} to {seconds(window.end_ns)} s"
        typer.echo(f"traceviz: {path.name} covers only a part of the window: the answer is about {covered}", err=True)
    given = Opened(profile, load_rules(rules), window, concerns)
    try:
        yield given
    except TracevizError:
        if given.faults:
            typer.echo(f"traceviz: {path.name}: {given.faults}; export it again", err=True)
        raise
    if given.faults:
        raise IncompleteError(f"partial result: {path.name}: {given.faults}; export it again")


def check_alignment(against: Path | None, iteration: int | None) -> None:
    """Refuse an iteration to align by where nothing lies beside the profile.

    Raises:
        UsageError: an iteration is named, and no other profile.
    """
    if against is None and iteration is not None:
        raise UsageError("--iteration says how two profiles are aligned: also give --against")


def gpu_numbers(wanted: Sequence[str]) -> list[int]:
    """The numbers that ``--gpu`` names; none where it is not given.

    Raises:
        UsageError: one of them is no number, or there is none in it.
    """
    parts = [part for text in wanted for part in _NUMBERS.split(text) if part]
    if wanted and not parts:
        raise UsageError("--gpu names no GPU: give numbers, for example 0,1")
    for part in parts:
        if not (part.isascii() and part.isdigit()):
            raise UsageError(f"--gpu {part}: not the number of a GPU")
    return list(dict.fromkeys(map(int, parts)))

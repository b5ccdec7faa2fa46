"""What the nsys commands share: their options, and opening a profile with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from traceviz_dag.analyze.nsys.activity import Activity, Clip, activities
from traceviz_dag.analyze.wording import counted, seconds
from traceviz_dag.classify.rules import Rules, load_rules
from traceviz_dag.errors import UsageError
from traceviz_dag.read.nsys.cache import open_profile
from traceviz_dag.read.nsys.profile import NsysFacts, NsysProfile

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

_OF_KERNELS = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE")
_NUMBERS = re.compile(r"[\s,]+")


@dataclass(frozen=True, slots=True)
class Opened:
    """A profile with the rules and the window that a command was given."""

    profile: NsysProfile
    rules: Rules
    window: Clip | None

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


def opened(path: Path, home: Path, trim: tuple[float, float] | None = None, rules: Path | None = None) -> Opened:
    """Open a profile, from the home where it was read before.

    Raises:
        UsageError: the window is none, or the profile covers nothing of it.
    """
    asked = Clip.of_seconds(*trim) if trim is not None else None
    profile = open_profile(path, home)
    for fault in _faults(profile.store.facts_so_far):
        typer.echo(f"traceviz: {path.name}: {fault}", err=True)
    window = asked.within(profile) if asked is not None else None
    if window != asked and window is not None:
        covered = f"{seconds(window.start_ns)} to {seconds(window.end_ns)} s"
        typer.echo(f"traceviz: {path.name} covers only a part of the window: the answer is about {covered}", err=True)
    return Opened(profile, load_rules(rules), window)


def _faults(facts: NsysFacts) -> Iterator[str]:
    """What makes each number about the GPUs another than that of the program."""
    for table, count in facts.dropped.items():
        yield f"{counted(count, 'row', 'rows')} of table {table} without usable times or GPU, left out; export it again"
    if not any(rows for table, rows in facts.tables.items() if table.startswith(_OF_KERNELS)):
        yield "no kernels were recorded, so GPUs seem idle; capture with --trace=cuda,nvtx"


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

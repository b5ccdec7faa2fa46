"""Groups of subcommands whose modules are imported when they are called; help imports none of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from copy import copy
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from inspect import Parameter, cleandoc, signature
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.main import get_command, get_group

from traceviz_dag.commands.common.addresses import at_hand
from traceviz_dag.commands.common.output import MOST_ROWS, at_most, plain_streams


class _Commands(MutableMapping[str, Any]):
    """Name of a subcommand → the subcommand, made when it is first looked up."""

    def __init__(self, places: Mapping[str, str], panels: Mapping[str, str]) -> None:
        self._places = places
        self._panels = panels
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _made(name, self._places[name])
            if name in self._panels:
                self._made[name].rich_help_panel = self._panels[name]
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"subcommand {name}: the subcommands of a group stay as they are")

    def __iter__(self) -> Iterator[str]:
        return iter((*self._places, *(name for name in self._made if name not in self._places)))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class LazyGroup(TyperGroup):
    """A group whose subclass says where its subcommands are.

    Attributes:
        places: name of a subcommand → ``module:function``, or ``module:group`` for a group of its own; help lists them
            in this order.
        panels: name of a subcommand → the heading under which help lists it; without one under Commands.
    """

    places: ClassVar[Mapping[str, str]] = {}
    panels: ClassVar[Mapping[str, str]] = {}

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands(self.places, self.panels)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """List the subcommands with the summaries that their modules state, without importing these."""
        listed = copy(self)
        listed.commands = {
            name: TyperCommand(name, help=_summary(place), rich_help_panel=self.panels.get(name))
            for name, place in self.places.items()
        }
        TyperGroup.format_help(listed, ctx, formatter)


class _Command(TyperCommand):
    """A command whose help names a switch only by what changes its default.

    On 80 columns both names leave too little room, and would be cut; the other name works all the same.
    """

    def format_help(self, ctx: Any, formatter: Any) -> None:
        listed = copy(self)
        listed.params = [copy(each) for each in self.params]
        for each in listed.params:
            if isinstance(each, TyperOption) and isinstance(each.default, bool) and each.secondary_opts:
                if each.default:
                    each.opts, each.show_default = each.secondary_opts, False
                    each.help = f"{each.help} On by default; this turns it off."
                each.secondary_opts = []
            each.opts = [_broken(name) for name in each.opts]
        TyperCommand.format_help(listed, ctx, formatter)


_LONGEST_NAME = 22
"""Letters of an option that 80 columns have room for."""


def _broken(name: str) -> str:
    """The name of an option; a long one, which would be cut off, continues in the next line behind a hyphen."""
    if len(name) <= _LONGEST_NAME:
        return name
    end = name.rindex("-", 0, _LONGEST_NAME) + 1
    return f"{name[:end]}\n  {name[end:]}"


def _summary(place: str) -> str:
    """The first paragraph of a command's docstring, or the help of a group, read from the source.

    Importing all modules for it takes twice as long as everything else that help does.
    """
    module, attribute = place.split(":")
    spec = find_spec(module)
    source = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    function = rf'^def {attribute}\(.*?^    """(.*?)(?:\n\n|""")'
    group = rf'^{attribute} = typer\.Typer\(.*?\bhelp="(.*?)"[,)]'
    found = re.search(f"{function}|{group}", source, re.DOTALL | re.MULTILINE)
    return " ".join((found[1] or found[2]).split()) if found else ""


def _made(name: str, place: str) -> Any:
    module, attribute = place.split(":")
    found = getattr(import_module(module), attribute)
    if "pyarrow" in sys.modules:
        import_module("traceviz_dag.system.without_pandas")
    if isinstance(found, typer.Typer):
        for command in found.registered_commands:
            command.cls = _Command
            command.callback = _plain(command.callback) if command.callback is not None else None
        group = get_group(found)
        group.name = name
        return group
    alone = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
    alone.command(name, cls=_Command)(_plain(found))
    return get_command(alone)


def _plain(callback: Callable[..., Any]) -> Callable[..., Any]:
    """A command that prints plain text only, whatever names it comes across, and of its tables the rows asked for."""

    if hasattr(callback, _WRAPPED):
        return callback  # The commands of a group stay wrapped when the group is made anew.
    known = signature(callback, eval_str=True)
    added = {"json": _of_tables, "home": _of_homes}

    @wraps(callback)
    def call(
        *given: Any, most_rows: int = MOST_ROWS, all_rows: bool = False, state: Path | None = None, **named: Any
    ) -> Any:
        with plain_streams(), at_most(0 if all_rows else most_rows), at_hand(callback.__name__, named, state) as ready:
            return callback(*given, **ready)

    call.__doc__ = _flowing(callback.__doc__ or "")
    further = [each for name, one in added.items() if name in known.parameters for each in _parameters(one)]
    call.__signature__ = known.replace(  # type: ignore[attr-defined] # what Typer makes options of
        parameters=[*known.parameters.values(), *further]
    )
    setattr(call, _WRAPPED, True)
    return call


_WRAPPED = "is_of_traceviz"


def _parameters(function: Any) -> Iterable[Parameter]:
    return signature(function, eval_str=True).parameters.values()


def _of_homes(
    *,
    state: Annotated[
        Path | None,
        typer.Option(
            "--state",
            envvar="TRACEVIZ_STATE",
            file_okay=False,
            help="Folder of this machine for a --home at s3://: what is read or computed of it, and locks.",
        ),
    ] = None,
) -> None:
    """Options of every command that has a home."""


def _of_tables(
    *,
    most_rows: Annotated[
        int, typer.Option("--limit", min=0, help="Print at most this many rows of each table, 0 for all; JSON has all.")
    ] = MOST_ROWS,
    all_rows: Annotated[bool, typer.Option("--all", help="Print every row of each table.")] = False,
) -> None:
    """Options of every command that prints tables."""


def _flowing(text: str) -> str:
    """A docstring as help: a line per paragraph, broken by the terminal at its own width; nothing after a form feed."""
    paragraphs = cleandoc(text.partition("\f")[0]).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)

"""The ``traceviz`` program: its subcommands, and the one place that turns errors into lines."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from pkgutil import iter_modules
from tempfile import NamedTemporaryFile
from types import FrameType
from typing import Annotated, Any, ClassVar

import typer

from traceviz_dag.commands.common.lazy import LazyGroup
from traceviz_dag.commands.common.output import MARKDOWN
from traceviz_dag.commands.common.pipes import nothing_printed, outlive_readers
from traceviz_dag.errors import BadInputError, StoppedError, TracevizError, file_system_line
from traceviz_dag.printable import printable
from traceviz_dag.read.stated_bounds import ROWS, TEXT_MIB
from traceviz_dag.system.memory_limit import adapt
from traceviz_dag.system.semaphores import remove_orphans

BAD_INPUT = 2

_PANELS = {
    "Start here": ("demo", "analyze", "findings", "report", "doctor", "capture"),
    "Why a step is slow": (
        *("critical-path", "what-if", "advise", "efficiencies", "waits", "pipelines", "overlap", "kernels"),
        *("utilization", "periods", "statement", "clocks", "topology"),
    ),
    "Compare runs and nights": ("diff", "iterations", "baseline", "gate"),
    "Look at it": ("timeline", "top", "figures", "serve", "dev", "perfetto"),
    "Single profiles": ("nsys", "memory", "classify"),
    "Tables, and files for other tools": ("sql", "lake", "batch", "aggregate", "scrub"),
    "For agents and programs": ("mcp", "skill"),
    "Simulated jobs, and services": ("simulate", "accuracy", "webserver"),
}
"""Heading in the help → its commands, in order."""

_ELSEWHERE = {"webserver": "dev:webserver", "batch": "analyze:batch", "baseline": "baseline:baseline_app"}
"""Commands that are in no module or function of their name."""


def _places() -> dict[str, str]:
    """Command → where it is: one for each module and room beside this module; those without a heading come last."""
    here = Path(__file__).parent
    found = dict(_ELSEWHERE)
    for _, name, is_room in iter_modules([str(here)]):
        place = f"{name}:{name}"
        if is_room:
            place = f"{name}.app:{name}_app" if (here / name / "app.py").is_file() else f"{name}.{place}"
        if name not in ("main", "common"):
            found.setdefault(name.replace("_", "-"), place)
    names = dict.fromkeys((*chain.from_iterable(_PANELS.values()), *found))
    return {name: f"traceviz_dag.commands.{found[name]}" for name in names}


class _Group(LazyGroup):
    places: ClassVar = _places()
    panels: ClassVar = {name: heading for heading, names in _PANELS.items() for name in names}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Take what is a path, and no command, for one to analyse."""
        if args[0] in self.commands or args[0].startswith("-"):
            return super().resolve_command(ctx, args)
        if os.sep in args[0] or os.path.exists(args[0]):  # noqa: PTH110 links
            return super().resolve_command(ctx, ["analyze", *args])
        # Imported here because no other call needs it.
        from difflib import get_close_matches

        close = get_close_matches(args[0], self.commands, 1)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        return ctx.fail(f"{args[0]!r} is no command, and no file or folder here has that name{meant}")

    def invoke(self, ctx: Any) -> Any:
        """Run a subcommand; who interrupts one that does not say itself how far it came is shown what is left."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise StoppedError("stopped; every file that was written is whole, and the same command goes on") from None


app = typer.Typer(
    name="traceviz",
    cls=_Group,
    help="Find out why a Megatron-LM training step is slow: which rank, pipeline stage or communication holds it up.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        # Imported here because no other command needs it.
        from traceviz_dag.system.own_version import own_version

        number = own_version()
        typer.echo("traceviz-dag" + (f" {number}" if number else ", run from its sources without being installed"))
        raise typer.Exit


def _handed_to(variable: str) -> Callable[[int | None], None]:
    """Hand a bound to the readers of this process, its workers and Dagster: they read it when they start."""

    def hand_on(given: int | None) -> None:
        if given is not None:
            os.environ[variable] = str(given)

    return hand_on


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
    longest_text_mib: Annotated[
        int | None,
        typer.Option(
            "--longest-text-mib",
            envvar=TEXT_MIB.variable,
            show_envvar=False,
            min=1,
            max=TEXT_MIB.most,
            show_default=f"{TEXT_MIB.default:,}",
            callback=_handed_to(TEXT_MIB.variable),
            # The name of the variable alone fits its column on 80 columns.
            help=f"Refuse a trace with a longer header or event. Also by {TEXT_MIB.variable}",
        ),
    ] = None,
    most_rows: Annotated[
        int | None,
        typer.Option(
            "--most-rows",
            envvar=ROWS.variable,
            min=1,
            max=ROWS.most,
            show_default=f"{ROWS.default:,}",
            callback=_handed_to(ROWS.variable),
            help="Read at most this many events of a trace, or rows of an export's table.",
        ),
    ] = None,
    markdown: Annotated[
        bool | None,
        typer.Option(
            "--markdown",
            envvar=MARKDOWN,
            show_default=False,
            callback=_handed_to(MARKDOWN),
            help="Print tables as Markdown, for a page or a ticket.",
        ),
    ] = None,
) -> None:
    """Options that come before the subcommand."""
    remove_orphans()


def main() -> None:
    """Run the program; an error that a user can fix is one line on stderr and its exit code, 2 but for an interrupt.

    With ``--json`` the same error is an object on stdout, too, unless the command printed its answer already. Who is
    asked to end (SIGTERM) does so as by Ctrl-C, so that it tidies up, with the exit code that a shell gives for it.
    """
    outlive_readers()
    # OpenBLAS starts a thread for each core when numpy is imported, and they wait busily: a third of the processor time
    # of a small command. The few small systems that are solved here need one. Workers and Dagster inherit it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    code = BAD_INPUT

    def leave() -> None:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    # Threads have ended then, and what registers later has run. Python would free object by object what the system
    # takes back at once: a sixth of the time of a small command.
    atexit.register(leave)
    asked: list[int] = []

    def end(number: int, _frame: FrameType | None) -> None:
        asked.append(number)
        signal.signal(number, signal.SIG_DFL)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end)
    code = _run(sys.argv[1:], asked)
    if signal.getsignal(signal.SIGTERM) is end:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # What is left would show where it was interrupted.
    sys.exit(code)


_NO_MEMORY = "out of memory: free some, raise its limit, or analyze fewer files at once"
_REFUSED_THREAD = "can't start new thread"
"""What Python says of it, as a RuntimeError."""

_NO_THREAD = "the system gives no further thread; free memory, or raise the limit of processes (ulimit -u)"


def _run(words: Sequence[str], asked: Sequence[int] = ()) -> int:
    """Run a command; its exit code.

    Args:
        asked: the signal that asked the program to end, once one did.
    """
    try:
        adapt()
        code = int(app(list(words), prog_name="traceviz", standalone_mode=False) or 0)
        sys.stdout.flush()  # Where it cannot be written is reported here, and not by Python at its end.
        return code
    except TracevizError as error:
        code = _stopped(asked) if isinstance(error, StoppedError) else error.exit_code
        _answer(words, error, code)
        typer.echo(f"traceviz: {printable(str(error))}", err=True)
        return code
    except (KeyboardInterrupt, typer.Abort):
        return _stopped(asked)
    except (OSError, MemoryError) as error:
        line = file_system_line(error) if isinstance(error, OSError) else _NO_MEMORY
    except Exception as error:  # noqa: BLE001 - the last place that can turn a fault into a line
        if hasattr(error, "format_message"):
            return _usage(words, error)
        line = _NO_THREAD if str(error) == _REFUSED_THREAD else _fault_of_ours(error)
    _answer(words, line, BAD_INPUT)
    typer.echo(f"traceviz: {printable(' '.join(line.split()))}", err=True)
    return BAD_INPUT


def _stopped(asked: Sequence[int]) -> int:
    return 128 + asked[0] if asked else StoppedError.exit_code


def _fault_of_ours(error: Exception) -> str:
    where = "".join(f" {note}" for note in getattr(error, "__notes__", ()))
    line = f"{type(error).__name__}{where}: {error}; this is a fault of traceviz: report it with "
    return line + _traceback_of(error)


def _usage(words: Sequence[str], error: Any) -> int:
    """The words of the call are off, as Typer finds; it has no public class for all that it raises then."""
    line = " ".join(error.format_message().split()).removesuffix(".")
    if line:  # There is none where the help was printed instead.
        context = getattr(error, "ctx", None)
        if context is not None and context.parent is None and line.startswith("No such option"):
            line += "; options of a command come after it"
        line += f" (see {context.command_path} --help)" if context is not None else ""
        _answer(words, line, error.exit_code)
        typer.echo(f"traceviz: {printable(line)}", err=True)
    return int(error.exit_code)


def _answer(words: Sequence[str], error: object, exit_code: int) -> None:
    """What a program that asked for JSON reads instead of the answer."""
    if "--json" in words and nothing_printed():
        from traceviz_dag.commands.common.output import print_json

        fields = (
            {"fault": error.fault, "path": str(error.path), "remedy": error.remedy}
            if isinstance(error, BadInputError)
            else {}
        )
        print_json({"error": str(error), "exit_code": exit_code, **fields})


def _traceback_of(error: Exception) -> str:
    """The file that holds the traceback."""
    with NamedTemporaryFile("w", prefix="traceviz_", suffix=".log", delete=False, encoding="utf-8") as file:
        traceback.print_exception(error, file=file)
    return file.name


if __name__ == "__main__":
    main()

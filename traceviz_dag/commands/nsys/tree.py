"""``traceviz nsys tree``: the NVTX hierarchy with span and busy time."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from traceviz_dag.analyze.nsys.in_order import in_order
from traceviz_dag.analyze.nsys.iterations import iteration_window
from traceviz_dag.analyze.nsys.tree import MEASURES, RangeNode, range_tree
from traceviz_dag.analyze.wording import seconds, shortened
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import most_printed, print_columns
from traceviz_dag.commands.nsys.common import GpuOption, Opened, ProfileArgument, RulesOption, TrimOption, opened
from traceviz_dag.errors import UsageError

_INDENT = "  "


def tree(
    path: ProfileArgument,
    gpu: GpuOption = [],  # noqa: B006
    trim: TrimOption = None,
    depth: Annotated[int, typer.Option(min=1, help="Levels to show; JSON has all of them.")] = 4,
    least_ms: Annotated[
        float, typer.Option(min=0, help="Leave out paths whose span and busy time are both shorter, milliseconds.")
    ] = 0,
    by_busy: Annotated[
        bool,
        typer.Option("--by-busy", help="Put the ranges first whose operations kept the GPU busy longest."),
    ] = False,
    order: Annotated[
        bool, typer.Option("--in-order", help="Show one iteration in the order of the host, kernels where launched.")
    ] = False,
    iteration: Annotated[
        int | None,
        typer.Option(
            help="Take only this iteration; with --in-order and no --trim, the default is the first.",
            show_default=False,
        ),
    ] = None,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show nested NVTX ranges: their span on the host, and how long the GPU was busy with what they launched.

    Span and busy time differ: a range may end long before its kernels run, and its kernels may run side by side. Busy
    time is the union of the kernels and memory operations that calls inside the range launched.
    """
    with opened(path, home, trim, rules) as given:
        if trim is not None and iteration is not None:
            raise UsageError("--trim and --iteration both choose a window: give one of them")
        if order and by_busy:
            raise UsageError("--in-order and --by-busy both choose an order: give one of them")
        if order:
            # JSON has all levels.
            _in_order(given, gpu, iteration, None if json else depth, json)
            return
        found = []
        for part in given.gpus(gpu):
            window = (
                given.window if iteration is None else iteration_window(given.profile, part, given.rules, iteration)
            )
            found.append((part.device, range_tree(given.profile, part, window, by_busy=by_busy)))
        if json:
            given.print_json(
                [{"device": device, "ranges": [_plain(root) for root in roots]} for device, roots in found]
            )
            return
        for device, roots in found:
            rows = [
                {**_values(node), "tree": _INDENT * level + shortened(node.name, 80)}
                for root in roots
                for level, node in root.walk()
                if level < depth and max(node.span_ns, node.busy_ns) >= least_ms * 1e6
            ]
            print_columns(f"NVTX ranges of GPU {device}", rows, [("tree", "range"), *MEASURES])


def _in_order(given: Opened, gpu: list[str], iteration: int | None, depth: int | None, json: bool) -> None:
    """Show the ranges and operations of one iteration, or of the window, one by one."""
    found = []
    for part in given.gpus(gpu):
        window = given.window
        if window is None:
            window = iteration_window(given.profile, part, given.rules, iteration)
        found.append(
            (part.device, window, *in_order(given.profile, part, window, depth, None if json else most_printed()))
        )
    if json:
        rows = [{"device": device, "steps": [asdict(step) for step in steps]} for device, _, steps, _ in found]
        given.print_json(rows)
        return
    for device, window, steps, count in found:
        print_columns(
            f"GPU {device} from {seconds(window.start_ns)} to {seconds(window.end_ns)} s, in the order of the host",
            [
                {
                    **asdict(step),
                    "tree": _INDENT * step.depth + shortened(step.name, 80),
                    "start_ns": None if step.kind == "range" else step.start_ns,
                }
                for step in steps
            ],
            [
                *("thread", ("tree", "range, or operation"), "kind", ("launched_ns", "host at")),
                *("duration_ns", ("start_ns", "starts on GPU"), "operations"),
            ],
            count,
        )


def _plain(node: RangeNode) -> dict[str, Any]:
    return {**_values(node), "children": [_plain(child) for child in node.children]}


def _values(node: RangeNode) -> dict[str, Any]:
    return {name: getattr(node, name) for name in RangeNode.__slots__ if name != "children"}

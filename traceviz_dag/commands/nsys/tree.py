"""``traceviz nsys tree``: the NVTX hierarchy with span and busy time."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from traceviz_dag.analyze.nsys.tree import RangeNode, range_tree
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import milliseconds, print_json, print_table
from traceviz_dag.commands.nsys.common import GpuOption, ProfileArgument, RulesOption, TrimOption, opened, shortened

_INDENT = "  "


def tree(
    path: ProfileArgument,
    gpu: GpuOption = [],  # noqa: B006
    trim: TrimOption = None,
    depth: Annotated[int, typer.Option(min=1, help="Levels to show; JSON has all of them.")] = 4,
    least_ms: Annotated[
        float, typer.Option(min=0, help="Leave out paths whose span and busy time are both shorter, milliseconds.")
    ] = 0,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show nested NVTX ranges: their span on the host, and how long the GPU was busy with what they launched.

    Span and busy time differ: a range may end long before its kernels run, and its kernels may run side by side. Busy
    time is the union of the kernels and memory operations that calls inside the range launched.
    """
    given = opened(path, home, trim, rules)
    found = [(part.device, range_tree(given.profile, part, given.window)) for part in given.gpus(gpu)]
    if json:
        print_json([{"device": device, "ranges": [_plain(root) for root in roots]} for device, roots in found])
        return
    for device, roots in found:
        rows = [
            [_INDENT * level + shortened(node.name, 80), node.count, milliseconds(node.span_ns), node.operations]
            + [milliseconds(value) for value in (node.busy_ns, node.compute_ns, node.communication_ns)]
            for root in roots
            for level, node in root.walk()
            if level < depth and max(node.span_ns, node.busy_ns) >= least_ms * 1e6
        ]
        columns = ["range", "count", "span ms", "operations", "busy ms", "compute ms", "communication ms"]
        print_table(f"NVTX ranges of GPU {device}", columns, rows)


def _plain(node: RangeNode) -> dict[str, Any]:
    values = {name: getattr(node, name) for name in RangeNode.__slots__ if name != "children"}
    return {**values, "children": [_plain(child) for child in node.children]}

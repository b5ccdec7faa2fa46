"""``traceviz nsys map``: how busy each GPU is over time."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import numpy as np
import typer

from traceviz_dag.analyze.nsys.activity import Clip
from traceviz_dag.analyze.nsys.utilization_map import edges_of, gpu_parts, metric_parts
from traceviz_dag.analyze.wording import milliseconds, seconds
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_columns
from traceviz_dag.commands.nsys.common import GpuOption, Opened, ProfileArgument, RulesOption, TrimOption, opened

_SHADES = " ▁▂▃▄▅▆▇█"


class Measure(StrEnum):
    """What the map can show of each part."""

    BUSY = "busy"
    COMPUTE = "compute"
    COMMUNICATION = "communication"
    MEMORY = "memory"


def utilization_map(
    path: ProfileArgument,
    gpu: GpuOption = [],  # noqa: B006
    trim: TrimOption = None,
    parts: Annotated[int, typer.Option(min=1, max=100_000, help="Parts to cut the window into.")] = 60,
    measure: Annotated[Measure, typer.Option(help="What to show; JSON has all.")] = Measure.BUSY,
    metric: Annotated[str | None, typer.Option(help="Show the means of this GPU metric.", show_default=False)] = None,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show how busy each GPU is over time, as a map: a line per GPU, a sign per part of the window.

    An empty sign means never, a full block all of the time; of a metric, no more than 0 and the largest mean. All GPUs
    share the window: without --trim, from the first to the last thing that one of them did.
    """
    with opened(path, home, trim, rules) as given:
        gpus = given.gpus(gpu)
        window = given.window or Clip(
            min(int(one.starts.min()) for one in gpus), max(int(one.ends.max()) for one in gpus)
        )
        edges = edges_of(window, parts)
        if metric is not None:
            means = {one.device: metric_parts(given.profile, one.device, metric, edges) for one in gpus}
            _print_metric(given, metric, means, window, parts, None if not json else edges.tolist())
            return
        found = [gpu_parts(one, edges) for one in gpus]
        if json:
            rows = [
                {
                    name: value.tolist() if isinstance(value, np.ndarray) else value
                    for name, value in asdict(one).items()
                }
                for one in found
            ]
            given.print_json({"edges_ns": edges.tolist(), "gpus": rows})
            return
        lengths = np.diff(edges)
        shares = {one.device: (getattr(one, f"{measure}_ns") / lengths).tolist() for one in found}
        words = {"busy": "any operation", "compute": "computation", "memory": "memory operations"}
        _print(f"Share of the time with {words.get(measure, measure)}", window, parts, shares)


def _print_metric(
    given: Opened,
    metric: str,
    means: dict[int, list[float | None]],
    window: Clip,
    parts: int,
    edges_ns: list[int] | None,
) -> None:
    if edges_ns is not None:
        rows = [{"device": device, "metric": metric, "means": values} for device, values in means.items()]
        given.print_json({"edges_ns": edges_ns, "gpus": rows})
        return
    most = max((value for values in means.values() for value in values if value is not None), default=0)
    shares = {
        device: [(value or 0) / most if most > 0 else 0.0 for value in values] for device, values in means.items()
    }
    _print(f"{metric}; a full block is {most:g}", window, parts, shares)


def _print(title: str, window: Clip, parts: int, shares: dict[int, list[float]]) -> None:
    length = milliseconds((window.end_ns - window.start_ns) // parts)
    covered = f"{seconds(window.start_ns)} to {seconds(window.end_ns)} s"
    lines = [{"device": device, "parts": "".join(map(_shade, values))} for device, values in shares.items()]
    print_columns(f"{title}; {covered}, {parts} parts of {length} ms", lines, ["device", ("parts", "over time")])


def _shade(share: float) -> str:
    """The sign of a share; only nothing at all is empty, only everything is full."""
    if share <= 0:
        return _SHADES[0]
    return _SHADES[-1] if share >= 1 else _SHADES[1 + int(share * (len(_SHADES) - 2))]

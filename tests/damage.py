"""Ways in which one rank of a run is not what the others are, and the program called in this process."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from traceviz_dag.commands.main import _run


class Answer(NamedTuple):
    """What one call of the program gave."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def call(*arguments: str | Path) -> Answer:
    """Run the program in this process, which saves its imports."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = _run([*map(str, arguments)])
    return Answer(code, out.getvalue(), err.getvalue())


def events_of(path: Path) -> dict[str, Any]:
    """A trace as JSON, plain or gzip."""
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def write_events(path: Path, trace: dict[str, Any]) -> None:
    """Write a trace back, as it was."""
    data = json.dumps(trace).encode()
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)


def truncate(path: Path) -> None:
    """The second half of the file is lost."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def remove(path: Path) -> None:
    """The file is lost."""
    path.unlink()


def of_events(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Path], None]:
    """Change every second event that has a duration."""

    def damage(path: Path) -> None:
        trace = events_of(path)
        timed = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
        for event in timed[1::2]:
            event.update(change(event))
        write_events(path, trace)

    return damage


times_as_text = of_events(lambda event: {"ts": str(event["ts"])})
huge_times = of_events(lambda event: {"ts": 9.3e18})
negative_durations = of_events(lambda event: {"dur": -1.0})
begins_alone = of_events(lambda event: {"ph": "B", "dur": None})


def gpu_before_host(path: Path) -> None:
    """What ran on the GPU has another clock than the host, which launched it half a second later."""
    trace = events_of(path)
    for event in trace["traceEvents"]:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            event["ts"] -= 500_000
    write_events(path, trace)


def marks_without_length(path: Path) -> None:
    """The profiler's marks of steps end where they start."""
    trace = events_of(path)
    for event in trace["traceEvents"]:
        if event["name"].startswith("ProfilerStep"):
            event["dur"] = 0
    write_events(path, trace)


def kernels_without_length(path: Path) -> None:
    """Each kernel takes no time."""
    trace = events_of(path)
    for event in trace["traceEvents"]:
        if event.get("cat") == "kernel":
            event["dur"] = 0
    write_events(path, trace)


def of_a_larger_world(path: Path) -> None:
    """The file of another job: its header states another world size."""
    trace = events_of(path)
    trace["distributedInfo"]["world_size"] = 2 * trace["distributedInfo"]["world_size"]
    write_events(path, trace)

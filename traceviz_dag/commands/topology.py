"""``traceviz topology``: pipelines, replicas and process groups, from a job's traces or from its parallel sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from traceviz_dag.classify.topology.parallel_sizes import DEFAULT_ORDER, ParallelSizes
from traceviz_dag.commands.common.across import IterationOption, RunOption, each_printed, refuse_run
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_json, print_table, print_wrapped
from traceviz_dag.commands.common.partial import end_partial
from traceviz_dag.system.paths import real_path

if TYPE_CHECKING:
    from traceviz_dag.classify.topology.rank_grids import RankGrids, Ranks
    from traceviz_dag.classify.topology.types import Replicas, Topology
    from traceviz_dag.pipeline.completeness import Completeness
    from traceviz_dag.read.events import TraceHeader

_Found: TypeAlias = "tuple[dict[str, Any], Topology, Completeness]"

_SHOWN_RANKS = 24
_SHOWN_DISAGREEMENTS = 20
_REPLICAS = {
    "dense_by_dp": "dense replica (one dp index)",
    "expert_by_edp": "expert replica (one edp index)",
    "closure": "complete model",
}


def topology(
    path: Annotated[
        Path | None, typer.Argument(help="Run, iteration or trace; default: the sizes given, else what the home holds.")
    ] = None,
    world: Annotated[int | None, typer.Option(help="World size; default: tp x cp x pp x dp.")] = None,
    tp: Annotated[int | None, typer.Option(help="Tensor parallel size.")] = None,
    cp: Annotated[int | None, typer.Option(help="Context parallel size.")] = None,
    pp: Annotated[int | None, typer.Option(help="Pipeline parallel size.")] = None,
    dp: Annotated[int | None, typer.Option(help="Data parallel size, without context parallelism.")] = None,
    ep: Annotated[int | None, typer.Option(help="Expert parallel size.")] = None,
    etp: Annotated[
        int | None, typer.Option(help="Expert tensor parallel size; default: that of --tp, as in Megatron.")
    ] = None,
    vpp: Annotated[int | None, typer.Option(help="Virtual pipeline stages per rank; changes no group.")] = None,
    order: Annotated[
        str | None, typer.Option(help=f"Rank order, the fastest dimension first; default: {DEFAULT_ORDER}.")
    ] = None,
    distributed_optimizer_instances: Annotated[
        int | None, typer.Option(help="Number of instances of the distributed optimizer.")
    ] = None,
    run: RunOption = None,
    iteration: IterationOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show process groups, the stages of each pipeline, and which ranks hold one copy of the model.

    With a path, the layout comes from the trace headers and the topology text file; sizes given as well are compared
    with it. Without a path, it is computed from the sizes; without either, it is that of the analysed iterations.
    """
    given = {
        "world": world,
        "tp": tp,
        "cp": cp,
        "pp": pp,
        "dp": dp,
        "ep": ep,
        "etp": etp,
        "vpp": vpp,
        "order": order,
        "distributed_optimizer_instances": distributed_optimizer_instances,
    }
    stated: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if path is None and stated:
        _show_grids(_grids(stated), json)
        return
    refuse_run(path, home)
    with _stored(home, run, iteration) if path is None else nullcontext(_below(path, stated)) as found:
        _show(list(found), json)


def _show(found: Sequence[_Found], json: bool) -> None:
    if json:
        print_json([{**place, "partial": read.is_lossy, "topology": _as_json(united)} for place, united, read in found])
    else:
        for read, united in each_printed([read for _, _, read in found], [united for _, united, _ in found]):
            _show_topology(f"{read.run}, iteration {read.iteration}", united)
    end_partial([read for _, _, read in found])


@contextmanager
def _stored(home: Path, run: str | None, iteration: int | None) -> Iterator[Iterable[_Found]]:
    """The same of each analysed iteration of a home."""
    from traceviz_dag.commands.common.shown import completeness_of, iterations_of
    from traceviz_dag.pipeline.stored_topology import stored_topology

    with iterations_of(real_path(home), (), run, iteration) as sources:
        read = completeness_of(sources, [])
        yield (
            ({"run": one.run, "iteration": one.iteration}, stored_topology(one.lake, one.run, one.iteration)[0], part)
            for one, part in zip(sources, read, strict=True)
        )


def _below(path: Path, stated: dict[str, Any]) -> Iterable[_Found]:
    """(run and iteration, topology, what of its headers was not read) of each iteration below a path."""
    from traceviz_dag.pipeline.completeness import RankFault, read_completeness
    from traceviz_dag.pipeline.discovery import inputs_below
    from traceviz_dag.pipeline.iteration import read_topology, unread_headers

    grids = partial(_stated_grids, stated) if stated else None
    for inputs in inputs_below([path]):
        faults = [RankFault(rank, name, fault, failed=True) for rank, name, fault in unread_headers(inputs)]
        # A rank without a trace is in the groups that the others name.
        found = read_completeness(inputs, None, faults)
        yield {"run": inputs.run, "iteration": inputs.iteration}, read_topology(inputs, grids), found


def _stated_grids(stated: dict[str, Any], headers: Iterable[TraceHeader]) -> RankGrids:
    """The grids of stated sizes; where these leave the world size open, the traces' own."""
    worlds = [header.world_size for header in headers if header.world_size is not None]
    if worlds and not {"world", "dp"} & set(stated):
        stated = {**stated, "world": max(worlds)}
    return _grids(stated)


def _grids(stated: dict[str, Any]) -> RankGrids:
    from traceviz_dag.classify.topology.rank_grids import compute_grids

    return compute_grids(ParallelSizes.of(**stated))


def _show_grids(grids: RankGrids, json: bool) -> None:
    if json:
        print_json(
            {
                "sizes": {**asdict(grids.sizes), "etp": grids.sizes.expert_tensor, "dp": grids.sizes.dp},
                "groups": grids.groups,
                "replicas": asdict(grids.replicas),
                "coordinates": {rank: asdict(at) for rank, at in grids.coordinates.items()},
            }
        )
        return
    _print_pipelines(grids.groups["pp"])
    _print_replicas(grids.replicas)
    _print_groups(
        [name, len(groups), " ".join(sorted({str(len(group)) for group in groups})), _members(*groups)]
        for name, groups in grids.groups.items()
    )


def _show_topology(title: str, united: Topology) -> None:
    known = ", ".join(united.sources) or "nothing"
    print_wrapped(f"{title}: world size {united.world_size or 'unknown'}, from {known}", 2)
    _print_pipelines(united.pipelines, f"{title}: pipelines")
    _print_replicas(united.replicas, f"{title}: replicas")
    kinds: dict[tuple[str, str, str], list[Ranks]] = {}
    for group in united.groups:
        label = group.description or group.name or "no description"
        kinds.setdefault((label, group.dimension.value, group.source.value), []).append(group.ranks)
    print_table(
        f"{title}: process groups",
        ["description", "dimension", "source", "groups", "ranks"],
        [[*kind, len(groups), _members(*groups)] for kind, groups in kinds.items()],
    )
    for sentence in united.disagreements[:_SHOWN_DISAGREEMENTS]:
        print_wrapped(f"disagreement: {sentence}", 2)
    hidden = len(united.disagreements) - _SHOWN_DISAGREEMENTS
    if hidden > 0:
        typer.echo(f"{hidden} more disagreements; --json prints all")


def _print_pipelines(pipelines: tuple[Ranks, ...], title: str = "Pipelines") -> None:
    rows = [[number, len(pipeline), _members(pipeline)] for number, pipeline in enumerate(pipelines)]
    print_table(f"{title}, ranks in stage order", ["pipeline", "stages", "ranks"], rows)


def _print_replicas(replicas: Replicas, title: str = "Replicas") -> None:
    rows = [
        [label, number, len(ranks), _members(ranks)]
        for name, label in _REPLICAS.items()
        for number, ranks in enumerate(getattr(replicas, name))
    ]
    print_table(title, ["kind", "number", "size", "ranks"], rows)


def _print_groups(rows: Iterable[list[object]]) -> None:
    print_table("Process groups", ["kind", "groups", "size", "ranks"], list(rows))


def _members(*groups: Ranks) -> str:
    """Rank lists on one line, cut after some two dozen ranks."""
    shown: list[str] = []
    left = _SHOWN_RANKS
    for group in groups:
        if left <= 0:
            return " ".join([*shown, "…"])
        cut = ", …" if len(group) > left else ""
        shown.append(f"[{', '.join(map(str, group[:left]))}{cut}]")
        left -= max(len(group), 1)
    return " ".join(shown)


def _as_json(united: Topology) -> Mapping[str, Any]:
    return {
        "world_size": united.world_size,
        "sources": list(united.sources),
        "coordinates": {rank: asdict(at) for rank, at in united.coordinates.items()},
        "pipelines": united.pipelines,
        "replicas": asdict(united.replicas),
        "groups": [asdict(group) for group in united.groups],
        "disagreements": united.disagreements,
    }

"""``traceviz capture``: plan a capture, judge the arguments of a job, and the plugin that records inside it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceviz_dag.analyze import wording
from traceviz_dag.analyze.wording import milliseconds
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_json, print_table, print_wrapped
from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.vocabulary import CaptureQuestion

if TYPE_CHECKING:
    from traceviz_dag.capture.configuration import ProfilingConfig
    from traceviz_dag.capture.ncu import HotKernel

capture = typer.Typer(no_args_is_help=True, help="Plan a capture, explain one, and record inside a training job.")


@capture.command()
def plan(
    config: Annotated[
        Path | None,
        typer.Argument(
            help="Profiling configuration, TOML or JSON; default: capture.toml here, written to begin with where there "
            "is none."
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(help="Print only this text, ready to paste: plugin, megatron, nsys-slurm …; repeat it for more."),
    ] = None,
    question: Annotated[
        CaptureQuestion | None, typer.Option(help="Propose ranks to record for this question instead of the plan.")
    ] = None,
    most_ranks: Annotated[
        int | None, typer.Option(min=1, help="With --question: record so many ranks at most.")
    ] = None,
    most_gb: Annotated[float | None, typer.Option(min=0, help="With --question: write so many GB at most.")] = None,
    json: JsonOption = False,
) -> None:
    """Check a profiling configuration and print it for every launcher: arguments, snippets, variables, scripts.

    By default the ranks of one complete model are recorded (profile_ranks = "replica"). Megatron Bridge's own default
    is rank 0; that of today's Megatron-LM is all ranks. What the chosen ranks will answer is listed; --question lists
    which ranks answer one question, the fewest that do so first.
    """
    from traceviz_dag.capture.configuration import STARTER, read_configuration
    from traceviz_dag.capture.plan import consequences, plan
    from traceviz_dag.capture.samples import prospects
    from traceviz_dag.system.whole_files import write_atomically

    file = config or Path("capture.toml")
    if config is None and not file.exists():
        write_atomically(file, STARTER.encode())
        typer.echo(f"traceviz: wrote {file}: set iterations and [job] to yours, and run this again", err=True)
    settings = read_configuration(file)
    if question is not None:
        _propose(settings, question, most_ranks, most_gb, json=json)
        return
    if most_ranks is not None or most_gb is not None:
        raise UsageError("--most-ranks and --most-gb bound what --question proposes; name a question")
    renderings = plan(settings)
    unknown = set(target or ()) - {rendering.target for rendering in renderings}
    if unknown:
        known = ", ".join(rendering.target for rendering in renderings)
        raise UsageError(f"no target {', '.join(sorted(unknown))} in this configuration; there are {known}")
    chosen = [rendering for rendering in renderings if not target or rendering.target in target]
    if json:
        print_json(
            {
                "ranks": settings.ranks(),
                "iterations": list(settings.iterations),
                "estimate": asdict(settings.estimate()) if settings.use_pytorch_profiler else None,
                "consequences": consequences(settings),
                "answers": [asdict(one) for one in prospects(settings.job, settings.ranks()).values()],
                "targets": [asdict(rendering) for rendering in chosen],
            }
        )
        return
    if target:
        for rendering in chosen:
            typer.echo(rendering.text)
        return
    for sentence in consequences(settings):
        print_wrapped(sentence, 2, "- ")
    rows = [[one.question, one.answer, one.why] for one in prospects(settings.job, settings.ranks()).values()]
    print_table("What these ranks will answer", ["question", "answer", "because"], rows)
    for rendering in chosen:
        typer.echo(f"\n# {rendering.title}  (--target {rendering.target})\n{rendering.text}")
        for note in rendering.notes:
            print_wrapped(note, 4, "  # ")


def _propose(
    settings: ProfilingConfig, question: CaptureQuestion, most_ranks: int | None, most_gb: float | None, *, json: bool
) -> None:
    """Print which ranks answer a question, those first that the budget allows and that answer it best."""
    from traceviz_dag.capture.samples import proposals
    from traceviz_dag.capture.sizes import readable_bytes

    every = proposals(settings, question)
    found = [
        one
        for one in every
        if (most_ranks is None or len(one.ranks) <= most_ranks)
        and (most_gb is None or one.bytes_raw <= most_gb * 10**9)
        and one.prospect.answer != "no"
    ]
    if not found:
        least = min(every, key=lambda one: (one.prospect.answer == "no", len(one.ranks)))
        size = f", {readable_bytes(least.bytes_raw)}" if least.bytes_raw else ""
        raise UsageError(
            f"no choice of ranks answers {question.value!r} within this budget; the smallest that does, {least.name}, "
            f"takes {len(least.ranks)} ranks{size}"
        )
    if json:
        print_json([asdict(one) for one in found])
        return
    rows = [
        [
            one.name,
            len(one.ranks),
            readable_bytes(one.bytes_raw) if one.bytes_raw else None,
            one.prospect.answer,
            one.prospect.why,
        ]
        for one in found
    ]
    print_table(found[0].prospect.question, ["record", "ranks", "JSON", "answer", "because"], rows)
    choice = found[0].choice
    words = f'"{choice}"' if isinstance(choice, str) else f"[{', '.join(map(str, choice))}]"
    typer.echo(f"The first of them: profile_ranks = {words}")


@capture.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def explain(
    context: typer.Context,
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the training script, after --.")] = None,
    release: Annotated[
        str,
        typer.Option(help="Read the arguments as this release of Megatron-core does: main, 0.19, 0.18, 0.17, older."),
    ] = "main",
    older: Annotated[bool, typer.Option("--older", help="The same as --release older: cores 0.10 to 0.16.")] = False,
    json: JsonOption = False,
) -> None:
    """Explain what the traces of a job with these Megatron arguments will and will not show."""
    from traceviz_dag.capture.explain import explain
    from traceviz_dag.capture.releases import release_of

    prospects = explain([*(arguments or ()), *context.args], release_of("older" if older else release))
    if json:
        print_json([asdict(prospect) for prospect in prospects])
        return
    rows = [[prospect.question, prospect.answer, prospect.why] for prospect in prospects]
    print_table("What such traces will allow", ["question", "answer", "because"], rows)


@capture.command()
def ncu(
    command: Annotated[str, typer.Argument(help="Command that starts the training script, in quotes, with --profile.")],
    run: Annotated[str | None, typer.Option(help="The analysed run; needed only if there are several.")] = None,
    iteration: Annotated[int | None, typer.Option(help="Its iteration; default: the last one analysed.")] = None,
    top: Annotated[int, typer.Option(min=1, max=3, help="Number of kernels, by their time over all ranks.")] = 1,
    out: Annotated[str, typer.Option(help="Name of the reports that ncu writes.")] = "kernel",
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Print a script that runs Nsight Compute on the computation kernels that take most time in an analysed run."""
    from traceviz_dag.capture.ncu import ncu_line, wrapper_script

    kernels = _hot_kernels(home, run, iteration, top)
    if json:
        print_json([{**asdict(kernel), "line": ncu_line(kernel, command, out)} for kernel in kernels])
        return
    typer.echo(wrapper_script(kernels, command, out))
    for number, kernel in enumerate(kernels, start=1):
        words = f"{kernel.launches} launches, {milliseconds(kernel.duration_ns)} ms, {wording.percent(kernel.share)}"
        typer.echo(f"# {number}: {kernel.name}: {words} of computation; longest on rank {kernel.rank}")


@capture.command()
def plugin() -> None:
    """Print the capture plugin: one file that a training job imports, with no change to Megatron."""
    from traceviz_dag.capture.patch import plugin_text

    typer.echo(plugin_text(), nl=False)


@capture.command()
def patch(
    megatron: Annotated[Path, typer.Option(help="Checkout of Megatron-LM; it is only read.", file_okay=False)],
) -> None:
    """Print a patch, for git apply, that adds the plugin to a Megatron-LM checkout and switches it on."""
    from traceviz_dag.capture.patch import megatron_patch

    typer.echo(megatron_patch(megatron), nl=False)


def _hot_kernels(home: Path, run: str | None, iteration: int | None, top: int) -> list[HotKernel]:
    from traceviz_dag.capture.ncu import HOT_KERNELS, HotKernel
    from traceviz_dag.lake.lake import open_lake

    lake = open_lake(home)
    stored = sorted({(found.run, found.iteration) for found in lake.partitions("kernels")})
    wanted = [place for place in stored if run in (None, place[0]) and iteration in (None, place[1])]
    if not wanted:
        there = ", ".join(f"{name} {number}" for name, number in stored[:5]) or "none"
        raise BadInputError(home, f"no such analysed iteration; there are {there}", "run traceviz analyze first")
    runs = sorted({name for name, _ in wanted})
    if len(runs) > 1:
        raise UsageError(f"several runs were analysed ({', '.join(runs[:5])}); name one with --run")
    rows = lake.query(HOT_KERNELS, [*wanted[-1], top])
    kernels = [HotKernel(*values) for values in zip(*rows.to_pydict().values(), strict=True)]
    if not kernels:
        raise BadInputError(home, "no GPU kernels in these traces", "capture on a GPU: ncu measures GPU kernels alone")
    return kernels

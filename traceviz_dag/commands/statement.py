"""``traceviz statement``: the paragraph that every claim of overlap needs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from traceviz_dag.commands.common.across import (
    IterationOption,
    PathArgument,
    RulesOption,
    RunOption,
    chosen_iterations,
    end_untold,
)
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_json, print_wrapped

if TYPE_CHECKING:
    from traceviz_dag.pipeline.stored_iteration import StoredIteration


def statement(
    path: PathArgument = None,
    run: RunOption = None,
    iteration: IterationOption = None,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Print what every claim of overlap must state: period, both stages, OverlapScore, N, window, mode and clocks.

    Each pair of a run is judged over all its iterations together; of four or more, the first and the last are left out,
    since the profiler starts and stops there. The exit code is 2 if no pair can be measured.
    """
    with chosen_iterations(path, home, run, iteration, rules) as iterations:
        runs: dict[str, list[StoredIteration]] = {}
        for each in iterations:
            runs.setdefault(each.run, []).append(each)
        answers = [_answer(name, found) for name, found in runs.items()]
        if json:
            print_json(answers)
        else:
            for answer in answers:
                _print(answer)
    end_untold(answers)


def _answer(run: str, iterations: list[StoredIteration]) -> dict[str, Any]:
    from traceviz_dag.analyze.clocks.clock_summary import clock_facts
    from traceviz_dag.analyze.pipelines.pair_verdicts import in_words, pair_verdicts, steady_window
    from traceviz_dag.pipeline.certainty import capture_mode

    verdicts = pair_verdicts({each.iteration: each.table("periods") for each in iterations})
    steady = steady_window([each.iteration for each in iterations])
    counted = {each.iteration: each for each in iterations if each.iteration in steady}
    clocks = [clock_facts(each.table("rank_clocks")) for each in counted.values()]
    return {
        "run": run,
        "iteration": steady[0],
        "iterations": list(steady),
        "left_out": sorted({each.iteration for each in iterations} - set(steady)),
        "ranks": sorted({rank for each in iterations for rank in each.ranks}),
        "chosen": next((each.completeness.chosen for each in iterations if each.completeness.chosen), None),
        "partial": [each.iteration for each in iterations if each.completeness.partial],
        "capture_mode": " / ".join(sorted({capture_mode(each.files) for each in counted.values()})),
        "clocks": clocks,
        "pairs": [{**asdict(one), "statement": in_words(one)} for one in verdicts],
        "certain": bool(verdicts),
        "reason": None if verdicts else "no pair of stages has measures (traceviz periods says why of each)",
    }


def _print(answer: dict[str, Any]) -> None:
    from traceviz_dag.pipeline.completeness import ranks_in_words

    window = answer["iterations"]
    which = f"iteration {window[0]}" if len(window) == 1 else f"iterations {window[0]} to {window[-1]} ({len(window)})"
    left = f", without {', '.join(map(str, answer['left_out']))}" if answer["left_out"] else ""
    partial = (
        f"; PARTIAL: {', '.join(map(str, answer['partial']))} not read whole, or stale" if answer["partial"] else ""
    )
    print_wrapped(
        f"{answer['run']} · {which}{left} · {answer['chosen'] or ranks_in_words(answer['ranks'])} · "
        f"{answer['capture_mode']}{partial}",
        2,
        "\n",
    )
    for pair in answer["pairs"]:
        print_wrapped(pair["statement"], 4, "  ")
    if answer["pairs"]:
        solved = sum(each["solved"] for each in answer["clocks"])
        ranks = sum(each["ranks"] for each in answer["clocks"])
        print_wrapped(
            "Times in ms, each on its own rank's clock: these measures need no common clock. Clocks are solved for "
            f"{solved} of {ranks} ranks and iterations. The profiler slows a step: this is no throughput.",
            4,
            "  ",
        )

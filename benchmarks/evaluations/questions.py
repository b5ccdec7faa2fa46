"""Thirty questions; what is true follows from the simulator's own record, or from files, never from our analysis."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.evaluations.jobs import Drawn

UNKNOWN = "unknown"

FORM = (
    "The traces are analysed in the home {home}. Answer from them alone. If they do not show the answer, it is "
    "unknown; if nobody is concerned, none. End with one line: ANSWER: and then only the number, name or unknown. "
    "Give several names in the order of the alphabet, with commas."
)


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and what is true.

    Attributes:
        home: where its run is analysed. within: how far off a number may be; None: a word, or a whole number.
    """

    text: str
    home: Path
    true: tuple[str, ...]
    within: float | None = None

    @property
    def asked(self) -> str:
        """What a command reads."""
        return f"{self.text}\n{FORM.format(home=self.home)}\n"

    def is_right(self, said: str) -> bool:
        """Whether what a command printed ends with the answer."""
        every = (line.replace("*", "").strip() for line in said.splitlines())
        lines = [line for line in every if line.upper().startswith("ANSWER:")]
        if not lines:
            return False
        answer = lines[-1][len("ANSWER:") :].strip().rstrip(".").lower()
        if self.within is None:
            plain = (part.strip() for part in answer.split(","))
            return ", ".join(re.sub(r"^(rank|stage|run)s? ", "", part) for part in plain) in self.true
        try:
            return (
                abs(float(answer.removesuffix("ms").removesuffix("%").replace(",", "")) - float(self.true[0]))
                <= self.within
            )
        except ValueError:
            return False


def questions(drawn: Drawn, shared: Path | None = None) -> list[Question]:
    """The questions about the jobs of a seed; those about recorded traces where these are."""
    found = [Question(text, drawn.home, true, within) for text, true, within in _simulated(drawn)]
    return [*found, *(_recorded(shared, drawn) if shared is not None else [])]


_Asked = tuple[str, tuple[str, ...], float | None]


def _is(text: str, *true: object) -> _Asked:
    return text, tuple(str(one).lower() for one in true), None


def _ms(text: str, nanoseconds: float, within: float) -> _Asked:
    return text, (f"{nanoseconds / 1e6}",), within / 1e6


def _simulated(drawn: Drawn) -> Iterator[_Asked]:
    name, settings, watched = drawn.name, drawn.settings, drawn.watched
    slow, fixed, links, split, pauses = (name[role] for role in ("slow", "fixed", "links", "split", "pauses"))
    gain = drawn.step_ns("slow") - drawn.step_ns("fixed")
    link_gain = drawn.step_ns("links") - drawn.step_ns("links_fixed")
    judged = ("slow", "fixed", "links", "links_fixed", "pauses", "cut")
    yield _is(f"In run {slow}, which rank computes slowly?", drawn.slow)
    yield _named(drawn, "which has a rank that computes slowly?", judged, "slow")
    yield _is(f"In run {links}, which rank has slow links?", drawn.linked)
    yield _named(drawn, "which has a rank with slow links?", judged, "links")
    yield _is(f"In run {pauses}, the host of which rank pauses?", drawn.pausing)
    yield _named(drawn, "which has a rank whose host pauses?", judged, "pauses")
    within = max(0.1 * gain, drawn.step_ns("slow") / 100)
    yield _ms(f"In run {slow}, how many ms of the step would fixing rank {drawn.slow} save?", gain, within)
    within = max(0.15 * link_gain, drawn.step_ns("links") / 100)
    fixing = f"fixing the links of rank {drawn.linked}"
    yield _ms(f"In run {links}, how many ms of the step would {fixing} save?", link_gain, within)
    a, b, change = drawn.chosen.choice(((slow, fixed, -gain), (fixed, slow, gain)))
    text = f"From run {a} to run {b}, by how many ms did the step change? Longer is positive."
    yield _ms(text, change, drawn.step_ns("slow") / 100)
    others = ("slow", "split", "missing", "pauses", "cut")
    yield _named(drawn, f"which can be compared with run {fixed}?", others, "slow")
    yield _is(f"In run {name['missing']}, how many ranks were read?", 2 * settings["missing"].dp - 1)
    yield _is(f"In run {name['missing']}, which rank has no trace?", drawn.missing)
    yield _is(f"In run {name['cut']}, which rank was read in part?", drawn.cut)
    whole = ("slow", "links", "pauses", "missing", "cut")
    yield _named(drawn, "which are not whole?", whole, "missing", "cut")
    yield _is(f"In run {split}, how many pipeline stages are there?", settings["split"].pp)
    yield _is(f"In run {split}, which pipeline stage computes longest?", _longest(drawn, "split"))
    yield _is(f"In run {pauses}, which rank computes longest?", _longest(drawn, "pauses"))
    for role in ("slow", "split"):
        text = f"In run {name[role]}, how many micro-batches does a step run?"
        yield _is(text, settings[role].microbatches)
    role = drawn.chosen.choice(("slow", "slow", "slow", "slow", "clocks", "alone"))
    true = drawn.slow if role == "slow" else UNKNOWN
    yield _is(f"In run {name[role]}, which rank delayed its peers most?", true)
    known = ("slow", "fixed", "links", "pauses", "clocks", "alone")
    yield _named(drawn, "in which can nobody know who delayed whom?", known, "clocks", "alone")
    yield _named(drawn, "of which is the hardware FLOP utilisation known?", (*judged[:-1], "split"), "pauses")
    tp = _of(drawn, "slow", watched, "tp")
    total, exposed = (pc.sum(tp[one]).as_py() for one in ("dur_ns", "exposed_ns"))
    share = 100 * (1 - exposed / total)
    yield f"In run {slow}, what percentage of the TP communication of rank {watched} is hidden?", (f"{share}",), 0.5
    of_split = drawn.chosen.randrange(settings["split"].pp)
    for role, rank, dimension in (("slow", watched, "tp"), ("split", of_split, "pp")):
        count = _of(drawn, role, rank, dimension).num_rows
        text = f"In run {name[role]}, how many kernels of {dimension.upper()} communication ran on rank {rank}?"
        yield _is(text, count)
    text = f"In run {links}, for how many ms did rank {watched} compute, all its computation kernels added up?"
    yield _ms(text, _computation(drawn, "links", watched), 1e4)
    of_pauses = drawn.chosen.randrange(2 * settings["pauses"].dp)
    for role, rank in (("links", watched), ("pauses", of_pauses)):
        count = drawn.truth(role, rank).num_rows
        yield _is(f"In run {name[role]}, how many kernels ran on rank {rank}?", count)


def _named(drawn: Drawn, question: str, roles: Sequence[str], *true: str) -> _Asked:
    """Which of some runs, named in an order that is drawn."""
    names = [drawn.name[role] for role in roles]
    drawn.chosen.shuffle(names)
    found = ", ".join(sorted(drawn.name[role] for role in true))
    return f"Of the runs {', '.join(names[:-1])} and {names[-1]}, {question}", (found,), None


def _computation(drawn: Drawn, role: str, rank: int) -> int:
    kernels = drawn.truth(role, rank)
    return int(pc.sum(kernels.filter(pc.equal(kernels["kind"].cast("string"), "computation"))["dur_ns"]).as_py())


def _longest(drawn: Drawn, role: str) -> int:
    """The rank whose computation takes longest; in run split, ranks are stages."""
    ranks = range(drawn.settings[role].pp * drawn.settings[role].dp)
    return max(ranks, key=lambda rank: _computation(drawn, role, rank))


def _of(drawn: Drawn, run: str, rank: int, dimension: str):
    kernels = drawn.truth(run, rank)
    return kernels.filter(pc.equal(kernels["dimension"].cast("string"), dimension))


_RECORDED = ("pp2_dp2_distopt_overlap", "pp2_ep2_moe", "pp4_1f1b", "tp2_pp2_vpp2_full")


def _recorded(shared: Path, drawn: Drawn) -> Iterator[Question]:
    """About traces of Megatron-core's schedules, where they are; copied without what is true of them."""
    from traceviz_dag.pipeline.analysis import AnalysisSettings, analyse
    from traceviz_dag.pipeline.discovery import inputs_below

    name, rank = drawn.chosen.choice(_RECORDED), drawn.chosen.randrange(4)
    run, home = shared / "megatron_gpu" / name, drawn.home.with_name("home_of_recorded")
    if not run.is_dir():
        return
    if not home.exists():
        copy = drawn.traces.with_name("recorded") / name
        shutil.copytree(run, copy, ignore=shutil.ignore_patterns("truth"))
        analyse(AnalysisSettings(home), inputs_below([copy], home=home))
    truth = pq.read_table(run / "truth" / f"rank_{rank:04d}.parquet", columns=["dimension"])
    count = pc.sum(pc.equal(truth["dimension"].cast("string"), "pp")).as_py()
    for text, true in (
        (f"In run {name}, how many kernels ran on rank {rank}?", truth.num_rows),
        (f"In run {name}, how many kernels of PP communication ran on rank {rank}?", count),
    ):
        yield Question(text, home, (str(true),))

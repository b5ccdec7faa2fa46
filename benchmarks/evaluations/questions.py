"""Thirty questions; what is true follows from the simulator's own record, or from files, never from our analysis."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.evaluations.jobs import Drawn

UNKNOWN, NONE = "unknown", "none"

FORM = (
    "The traces are analysed in the home {home}. Answer from them alone. If they do not show the answer, the answer is "
    "unknown; if nobody is concerned, it is none. End with one line: ANSWER: and then only the number, word or unknown."
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
        plain = (line.replace("*", "").strip() for line in said.splitlines())
        lines = [line for line in plain if line.upper().startswith("ANSWER:")]
        if not lines:
            return False
        answer = lines[-1][len("ANSWER:") :].strip().rstrip(".").lower()
        if self.within is None:
            return answer.removeprefix("rank ").removeprefix("stage ") in self.true
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
    return [*found, *(_recorded(shared, drawn.folder) if shared is not None else [])]


_Asked = tuple[str, tuple[str, ...], float | None]


def _is(text: str, *true: object) -> _Asked:
    return text, tuple(str(one).lower() for one in true), None


def _ms(text: str, nanoseconds: float, within: float) -> _Asked:
    return text, (f"{nanoseconds / 1e6}",), within / 1e6


def _simulated(drawn: Drawn) -> Iterator[_Asked]:
    slow, linked, watched = drawn.slow, drawn.linked, drawn.watched
    step, gain = drawn.step_ns("slow"), drawn.step_ns("slow") - drawn.step_ns("fixed")
    yield _is("In run slow, which rank computes slowly?", slow)
    yield _is("In run fixed, which rank computes slowly?", NONE)
    yield _is("In run links, which rank computes slowly?", NONE)
    yield _is("In run links, which rank has slow links?", linked)
    yield _is("In run slow, which rank has slow links?", NONE)
    yield _ms(f"In run slow, how many ms of the step would fixing rank {slow} save?", gain, max(0.1 * gain, step / 100))
    linked_gain = drawn.step_ns("links") - drawn.step_ns("links_fixed")
    near = max(0.15 * linked_gain, drawn.step_ns("links") / 100)
    yield _ms(f"In run links, how many ms of the step would fixing the links of rank {linked} save?", linked_gain, near)
    yield _is("From run fixed to run slow, did the step become longer, shorter, or is there no change?", "longer")
    yield _is("From run slow to run fixed, did the step become longer, shorter, or is there no change?", "shorter")
    yield _ms("From run fixed to run slow, by how many ms did the step change?", gain, step / 100)
    yield _is("From run slow to run split, did the step become longer, shorter, or is there no change?", UNKNOWN)
    yield _is("In run slow, how many ranks were read?", 8)
    yield _is("In run missing, how many ranks were read?", 3)
    yield _is("In run slow, how many pipeline stages are there?", 2)
    yield _is("In run split, how many pipeline stages are there?", 4)
    yield _is("In run slow, how many micro-batches does a step run?", 4)
    yield _is("In run split, which pipeline stage computes longest?", _longest_stage(drawn))
    yield _is("In run missing, which rank has no trace?", drawn.missing)
    yield _is("In run slow, which rank has no trace?", NONE)
    yield _is("In run missing, is the answer about the whole job, yes or no?", "no")
    yield _is("In run slow, is the answer about the whole job, yes or no?", "yes")
    yield _is("In run cut, which rank was read in part?", drawn.cut)
    yield _is("In run clocks, which rank delayed its peers most?", UNKNOWN)
    yield _is("In run alone, which rank delayed its peers most?", UNKNOWN)
    yield _is("In run pauses, the host of which rank pauses?", drawn.pausing)
    yield _is("In run slow, what is the hardware FLOP utilisation in percent?", UNKNOWN)
    tp = _of(drawn, "slow", watched, "tp")
    total, exposed = (pc.sum(tp[name]).as_py() for name in ("dur_ns", "exposed_ns"))
    share = 100 * (1 - exposed / total)
    yield f"In run slow, what percentage of the TP communication of rank {watched} is hidden?", (f"{share}",), 0.5
    yield _is(f"In run slow, how many kernels of TP communication ran on rank {watched}?", tp.num_rows)


def _longest_stage(drawn: Drawn) -> int:
    """Of run split, whose ranks are its stages."""
    kernels = drawn.truth("split")
    work = kernels.filter(pc.equal(kernels["kind"].cast("string"), "computation"))
    sums = work.group_by("rank").aggregate([("dur_ns", "sum")]).sort_by([("dur_ns_sum", "descending")])
    return int(sums["rank"][0].as_py())


def _of(drawn: Drawn, run: str, rank: int, dimension: str):
    kernels = drawn.truth(run, rank)
    return kernels.filter(pc.equal(kernels["dimension"].cast("string"), dimension))


def _recorded(shared: Path, folder: Path) -> Iterator[Question]:
    """About traces of Megatron-core's schedules, where they are."""
    from traceviz_dag.pipeline.analysis import AnalysisSettings, analyse
    from traceviz_dag.pipeline.discovery import inputs_below

    run, home = shared / "megatron_gpu" / "pp4_1f1b", folder / "home_of_recorded"
    if not run.is_dir():
        return
    if not home.exists():
        analyse(AnalysisSettings(home), inputs_below([run], home=home))
    truth = pq.read_table(run / "truth" / "rank_0002.parquet", columns=["dimension"])
    count = pc.sum(pc.equal(truth["dimension"].cast("string"), "pp")).as_py()
    for text, true in (
        ("In run pp4_1f1b, how many pipeline stages are there?", 4),
        ("In run pp4_1f1b, how many kernels of PP communication ran on rank 2?", count),
    ):
        yield Question(text, home, (str(true),))

"""Which questions one-rank-per-file traces can answer, from what every rank holds and what one rank comes to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceviz_dag.analyze import wording
from traceviz_dag.pipeline.captures.answers import (
    BANDWIDTH,
    BUBBLE,
    DIMENSION,
    HIDDEN,
    MICROBATCH,
    MODULE,
    NEARLY_ALL,
    PHASE,
    PLACE,
    SIZES,
    WAITS,
    Answer,
    degree,
)

if TYPE_CHECKING:
    from traceviz_dag.pipeline.captures.capture import Capture, Sample

FEWEST_MATCHES = 3
"""Communications of two ranks from which their clocks can be solved."""

_LEAST = 0.005
_STACKS = "capture call stacks: with_stack (--pytorch-profiler-collect-callstack)"
_NOTHING = "no rank can be read"
_FOR_WAITS = "all ranks are there, in named groups; traceviz clocks shows whether their clocks can be solved"
_NOT_COMPARED = "all ranks are there, in named groups; traceviz waits shows whether their communications are as many"

_BY_ORDER = (
    "communications name no group: matched by order if all ranks have as many, of the same operations and sizes, and "
    "believed where their ends agree"
)


def judge_traces(capture: Capture) -> list[Answer]:
    """Which questions the traces of an iteration can answer."""
    one = capture.sample
    if one is None or not one.kernels:
        reason = _NOTHING if one is None else f"rank {one.rank} holds no kernels"
        questions = (PHASE, MICROBATCH, MODULE, DIMENSION, HIDDEN, PLACE, BUBBLE, WAITS, BANDWIDTH, SIZES)
        return [Answer(question, "no", reason) for question in questions]
    waits = _waits(capture, one)
    return [_of_all_ranks(capture, answer) for answer in _of_sample(capture, one, waits)]


def _of_sample(capture: Capture, one: Sample, waits: Answer) -> list[Answer]:
    """The answers by what one rank comes to."""
    return [
        _of_share(PHASE, one.phase_known, f"of the kernel time of rank {one.rank} has a phase", _more_stacks(capture)),
        _microbatch(capture, one),
        _of_share(
            MODULE, one.module_known, f"of the kernel time of rank {one.rank} has a module", _more_stacks(capture)
        ),
        _dimension(capture, one),
        hidden_communication(one, on_gpus=capture.gpu == capture.ranks),
        _place(capture),
        _bubble(capture, one),
        waits,
        _bandwidth(one, waits),
        Answer(
            SIZES,
            degree(capture.shapes == capture.ranks, capture.shapes > 0),
            f"operators state their input sizes on {capture.shapes} of {capture.ranks} ranks"
            + ("" if capture.shapes == capture.ranks else "; capture record_shapes"),
        ),
    ]


_NEEDS = {
    PHASE: ("operators", "stacks"),
    MICROBATCH: ("operators", "stacks"),
    MODULE: ("operators", "stacks"),
    DIMENSION: ("operators", "stacks", "groups"),
    BUBBLE: ("operators", "stacks"),
    WAITS: ("operators", "groups"),
    BANDWIDTH: ("operators", "groups"),
}
"""Question → what of a capture its answer rests on, where one rank is classified for all."""

_MODES = {"operators": "operators", "stacks": "call stacks", "groups": "described process groups"}


def _of_all_ranks(capture: Capture, answer: Answer) -> Answer:
    """An answer that one rank gave, for a job of which some ranks were captured otherwise: no more than in part."""
    mixed = [
        f"{getattr(capture, mode)} of {capture.ranks} ranks hold {_MODES[mode]}"
        for mode in _NEEDS.get(answer.question, ())
        if 0 < getattr(capture, mode) < capture.ranks
    ]
    if not mixed or answer.answer != "yes":
        return answer
    return Answer(answer.question, "in part", "; ".join([answer.why, *mixed]))


def hidden_communication(sample: Sample | None, *, on_gpus: bool) -> Answer:
    """Whether hidden and exposed communication can be told: there must be some."""
    if sample is None or not sample.communications:
        return Answer(HIDDEN, "no", no_communication(sample))
    return Answer(
        HIDDEN, degree(on_gpus, True), "all ranks have GPU rows" if on_gpus else "no GPU rows: measured on CPU work"
    )


def no_communication(sample: Sample | None) -> str:
    """Why nothing can be said of communication."""
    return _NOTHING if sample is None else f"no communication kernels on rank {sample.rank}"


def _of_share(question: str, share: float | None, what: str, remedy: str) -> Answer:
    known = share or 0.0
    answer = degree(known >= NEARLY_ALL, known >= _LEAST)
    return Answer(
        question, answer, f"{wording.percent(known)} {what}" + ("" if answer == "yes" or not remedy else f"; {remedy}")
    )


def _microbatch(capture: Capture, one: Sample) -> Answer:
    """Which part of the work is in a micro-batch; in part at the most where a training step is not recorded whole."""
    what = f"of the forward and backward computation of rank {one.rank} is in a micro-batch"
    answer = _of_share(MICROBATCH, one.microbatch_known, what, "" if one.fault else _more_stacks(capture))
    fault = one.fault or next((f"rank {rank}: {why}" for rank, why in one.others), None)
    if fault is None:
        return answer
    return Answer(MICROBATCH, "in part" if answer.answer == "yes" else answer.answer, f"{answer.why}; {fault}")


def _more_stacks(capture: Capture) -> str:
    return "" if capture.stacks == capture.ranks else _STACKS


def _dimension(capture: Capture, one: Sample) -> Answer:
    if one.dimension_known is None:
        return Answer(DIMENSION, "no", no_communication(one))
    remedy = "" if capture.groups == capture.ranks else "describe the process groups: use torch 2.4 or newer"
    return _of_share(DIMENSION, one.dimension_known, f"of the communication time of rank {one.rank} has one", remedy)


def _place(capture: Capture) -> Answer:
    if not capture.pipelines:
        why = "no pipeline group in the headers' process groups, and no topology text file names one"
        return Answer(PLACE, "no", why)
    why = f"{capture.pipelines} pipelines known, with {capture.staged} of the {capture.ranks} ranks read"
    return Answer(PLACE, degree(capture.staged == capture.ranks, capture.staged > 0), why)


def _bubble(capture: Capture, one: Sample) -> Answer:
    if capture.stages < 2:
        known = "the job has no pipeline of two or more stages" if capture.pipelines else "no pipeline is known"
        return Answer(BUBBLE, "no", known)
    if one.microbatch_known < _LEAST:
        return Answer(BUBBLE, "no", f"no micro-batch is known on rank {one.rank}; {one.fault or _STACKS}")
    if one.microbatch_known < NEARLY_ALL or one.fault:
        why = f"the micro-batches of rank {one.rank} are known in part; {one.fault or _STACKS}"
        return Answer(BUBBLE, "in part", why)
    missing = _missing(capture)
    return Answer(BUBBLE, degree(not missing, capture.ranks > 1), missing or "pipelines and micro-batches are known")


def _waits(capture: Capture, one: Sample) -> Answer:
    if not one.communications:
        return Answer(WAITS, "no", no_communication(one))
    if capture.ranks < 2:
        return Answer(WAITS, "no", f"one rank, {_missing(capture) or 'the only one'}: nobody to wait for is read")
    unknown = one.communications - one.grouped - one.ordered
    if unknown == one.communications:
        return Answer(WAITS, "no", "nothing shows which ranks communicate together: use torch 2.4 or newer")
    if one.unmet >= one.communications - unknown:
        why = f"{_missing(capture)}: of no group that rank {one.rank} communicates in are all members there"
        return Answer(WAITS, "no", why)
    contradiction = one.compared and one.compared.contradiction
    if contradiction and not (one.compared and one.compared.partly):
        return Answer(WAITS, "no", contradiction)
    untold = (
        f"{unknown} of {one.communications} communications of rank {one.rank} are on groups that nothing identifies"
    )
    lacking = [
        *filter(None, [_missing(capture)]),
        *([contradiction] if contradiction else []),
        *([_BY_ORDER] if one.ordered else []),
        *([untold] if unknown else []),
        *(["too few communications to solve the clocks"] if one.communications < FEWEST_MATCHES else []),
        *(["no GPU rows: the ends of communication on a CPU show no clock"] if capture.gpu < capture.ranks else []),
    ]
    return Answer(
        WAITS, degree(not lacking, True), "; ".join(lacking) or (_FOR_WAITS if one.compared else _NOT_COMPARED)
    )


def _bandwidth(one: Sample, waits: Answer) -> Answer:
    # Members that are there may still have transfers, where not all are or one contradicts the others.
    if waits.answer == "no" and not (one.unmet or (one.compared and one.compared.contradiction)):
        return Answer(BANDWIDTH, "no", waits.why)
    why = f"{one.sized} of {one.communications} communications of rank {one.rank} state their size"
    whole = one.sized >= NEARLY_ALL * one.communications
    return Answer(BANDWIDTH, degree(whole and waits.answer == "yes", one.sized > 0), why)


def _missing(capture: Capture) -> str:
    """What is said where ranks are missing, or may be, or were not read wholly."""
    if capture.whole:
        return ""
    unread = len(set(capture.unread_ranks))
    count = f"{capture.ranks} of {capture.world_size or 'an unknown number of'} ranks"
    return f"{count}, {unread} not or not wholly readable" if unread else count

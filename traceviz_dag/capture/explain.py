"""What the traces of a job with given Megatron arguments will allow, and what they will not."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NoReturn

from traceviz_dag.capture.releases import MAIN, RELEASES, Release
from traceviz_dag.capture.rendering import iteration_words, rank_words
from traceviz_dag.errors import UsageError

NO_AUTOGRAD = "Without --record-shapes nsys gets none of autograd's NVTX ranges."
EARLY_ITERATIONS = 5
EARLY = "the first iterations allocate, compile and tune"
"""Why iterations before that number are not typical."""

_WRITES, _MEMORY, _CHAKRA = (
    "Who writes the traces, and where?",
    "Where does memory go?",
    "Can the step be replayed elsewhere (Chakra)?",
)


@dataclass(frozen=True, slots=True)
class Prospect:
    """Whether a question will find its answer.

    Attributes:
        question: what a user asks.
        answer: yes, in part or no.
        why: what in the arguments decides it, and what would change it.
    """

    question: str
    answer: str
    why: str


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"these are no arguments of Megatron-LM's profiler: {message}")


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """The arguments that bear on profiling, with Megatron-LM's defaults; all others are left aside.

    Raises:
        UsageError: one of them has a value that Megatron would refuse.
    """
    parser = _Parser(prog="megatron", add_help=False, allow_abbrev=False)
    for name in (
        *("profile", "use-pytorch-profiler", "nvtx-ranges", "record-shapes", "record-memory-history"),
        *("pytorch-profiler-collect-shapes", "pytorch-profiler-collect-callstack", "pytorch-profiler-collect-chakra"),
        *("enable-cuda-graph", "external-cuda-graph"),
    ):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--profile-step-start", type=int, default=10)
    parser.add_argument("--profile-step-end", type=int, default=12)
    parser.add_argument("--profile-ranks", type=int, nargs="+", default=None)
    for name in ("tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size"):
        parser.add_argument(f"--{name}", type=int, default=1)
    parser.add_argument("--save-interval", type=int, default=None)
    parser.add_argument("--cuda-graph-impl", default="none")
    parser.add_argument("--memory-snapshot-path", default="snapshot.pickle")
    parser.add_argument("--tensorboard-dir", default=None)
    return parser.parse_known_args(list(arguments))[0]


def explain(arguments: Sequence[str], release: Release = MAIN) -> list[Prospect]:
    """What the traces of such a job will show.

    Args:
        arguments: of the training script.
        release: read as this one does.

    Raises:
        UsageError: an argument has a value that Megatron would refuse.
    """
    given = parse_arguments(arguments)
    known = {argument for one in RELEASES for argument in one.arguments}
    unknown = [word for word in arguments if word.partition("=")[0] in known - release.arguments]
    if unknown:
        return [Prospect("Is anything recorded?", "no", f"{release.title}: no argument {unknown[0]}, so the job stops")]
    if not given.profile:
        return [
            Prospect("Is anything recorded?", "no", "--profile is not given; nothing else has an effect without it")
        ]
    if given.profile_step_end <= given.profile_step_start:
        steps = f"--profile-step-start {given.profile_step_start} and --profile-step-end {given.profile_step_end}"
        return [Prospect("Is anything recorded?", "no", f"{steps} leave no step; torch.profiler crashes on it")]
    nsys = not given.use_pytorch_profiler
    first, last = given.profile_step_start + nsys, given.profile_step_end - 1 + nsys
    kind = "nsys" if nsys else "the PyTorch profiler"
    recorded = f"{kind} records what the log calls {iteration_words(range(first, last + 1))}"
    if nsys:
        recorded += "; the job must be started under nsys with --capture-range=cudaProfilerApi"
    prospects = [Prospect("Is anything recorded?", "yes", recorded), _ranks(given, release)]
    prospects += _nsys_content(given, release) if nsys else _torch_content(given, release)
    return [*prospects, *_files(given, release, nsys), *_caveats(given, first, last)]


def warnings(arguments: Sequence[str], release: Release = MAIN) -> tuple[str, ...]:
    """What the traces of such a job will not show, or not wholly, a line each; ``capture plan`` prints them as notes.

    Memory history and execution traces are left out: whoever does not ask for them needs no warning.
    """
    return tuple(
        f"{one.question} {one.answer.capitalize()}: {one.why.removesuffix('.')}."
        for one in explain(arguments, release)
        if one.answer != "yes" and one.question not in (_WRITES, _MEMORY, _CHAKRA)
    )


def _files(given: argparse.Namespace, release: Release, nsys: bool) -> list[Prospect]:
    """Who dumps what, and where."""
    board = given.tensorboard_dir or "TENSORBOARD_DIR"
    chakra = given.pytorch_profiler_collect_chakra and release.collects and not nsys
    if nsys:
        traces = "nsys writes one report for each process that it started and that opened its range"
    elif release.collects:
        traces = f"each rank that records writes {board}/../torch_profile/rank-N.json.gz; a rerun overwrites it"
    else:
        traces = f"each rank that records writes {board}/HOST_PID.TIME.pt.trace.json"
    if given.record_memory_history:
        path = PurePosixPath(given.memory_snapshot_path)
        dumped = (
            f"each rank that records dumps {path.with_name(f'{path.stem}_RANK{path.suffix}')}"
            if release.rank_snapshots
            else f"the last rank alone dumps {path}"
        )
        memory = f"{dumped}, at every log interval; nobody makes its folder"
    else:
        heeded = "each rank that records" if release.rank_snapshots else "the last rank alone"
        memory = f"nobody dumps memory history; add --record-memory-history, which {heeded} heeds"
    return [
        Prospect(_WRITES, "yes" if nsys or given.tensorboard_dir else "in part", traces),
        Prospect(_MEMORY, "in part" if given.record_memory_history else "no", memory),
        Prospect(
            _CHAKRA,
            "yes" if chakra else "no",
            f"each rank that records writes {board}/../chakra/rank-N.json.gz"
            if chakra
            else "no execution traces; main, cores from 0.17 on and the PyTorch profiler write them with "
            "--pytorch-profiler-collect-chakra",
        ),
    ]


def _ranks(given: argparse.Namespace, release: Release) -> Prospect:
    question = "Who waits for whom across ranks?"
    model = given.tensor_model_parallel_size * given.pipeline_model_parallel_size * given.context_parallel_size
    if given.profile_ranks is None and release.collects:
        return Prospect(question, "yes", "all ranks record (the default of main and of cores from 0.17 on)")
    ranks = given.profile_ranks or [0]
    words = f"ranks {rank_words(ranks)} record" + ("" if given.profile_ranks else " (the default of releases)")
    if len(ranks) == 1:
        return Prospect(question, "no", f"{words}; name at least one model's {model} ranks with --profile-ranks")
    if len(ranks) < model:
        return Prospect(question, "in part", f"{words}, fewer than one model's {model}")
    return Prospect(question, "yes", f"{words}; among these alone")


def _torch_content(given: argparse.Namespace, release: Release) -> list[Prospect]:
    stacks = given.pytorch_profiler_collect_callstack or not release.collects
    shapes = given.pytorch_profiler_collect_shapes or not release.collects
    fix = "add --pytorch-profiler-collect-callstack"
    phases = (
        "call stacks are recorded"
        if stacks
        else f"without call stacks operators distinguish backward from the rest; {fix}"
    )
    return [
        Prospect("Which phase is a kernel in?", "yes" if stacks else "in part", phases),
        Prospect(
            "Which micro-batch and model chunk?",
            "yes" if stacks else "no",
            "call stacks are recorded" if stacks else f"no call stacks; {fix}",
        ),
        Prospect(
            "Which parallel dimension does a communication serve?", "yes", "trace headers name the process groups"
        ),
        Prospect(
            "How large are the tensors?",
            "yes" if shapes else "no",
            "shapes are recorded" if shapes else "no shapes; add --pytorch-profiler-collect-shapes",
        ),
        Prospect(
            "Which iteration is a file of?",
            "in part",
            "the path names none, and a file holds all recorded steps; after a resume the profiler counts from the "
            "process's start but stops at the logged iteration, so it records nothing or too little; the plugin "
            "(traceviz capture plugin) counts as the log does, and writes one file an iteration",
        ),
    ]


def _nsys_content(given: argparse.Namespace, release: Release) -> list[Prospect]:
    """What NVTX ranges show."""
    autograd = release.autograd or given.record_shapes
    shapes = release.shapes or given.record_shapes
    if given.nvtx_ranges:
        ranges = "NVTX ranges name modules" + ("" if autograd else f". {NO_AUTOGRAD}")
    elif not release.names_ranges:
        ranges = "only autograd's NVTX ranges"
    elif autograd:
        ranges = "only autograd's NVTX ranges; add --nvtx-ranges"
    else:
        ranges = "no NVTX ranges: a kernel's name is all there is; add --nvtx-ranges and --record-shapes"
    return [
        Prospect("Which phase is a kernel in?", "in part", ranges),
        Prospect("Which parallel dimension does a communication serve?", "in part", "nsys knows no process groups"),
        Prospect(
            "How large are the tensors?",
            "in part" if shapes else "no",
            "shapes are in autograd's ranges" if shapes else "add --record-shapes",
        ),
    ]


def _caveats(given: argparse.Namespace, first: int, last: int) -> list[Prospect]:
    found = []
    if given.enable_cuda_graph or given.external_cuda_graph or given.cuda_graph_impl != "none":
        why = "CUDA graphs: a replayed kernel has no call stack and no process group; compare with a run without graphs"
        found.append(Prospect("Who owns a kernel of a CUDA graph?", "in part", why))
    if given.save_interval and any(number % given.save_interval == 0 for number in range(first, last + 1)):
        why = f"a checkpoint (--save-interval {given.save_interval}) falls into the range and counts as idle time"
        found.append(Prospect("Is the step a typical one?", "no", why))
    elif first < EARLY_ITERATIONS:
        found.append(Prospect("Is the step a typical one?", "in part", EARLY))
    return found

"""Injected faults: where they act, and the culprits that the truth names.

To add a fault: give ``settings.Faults`` a field that is None or 0 without it, and let it act in one place. A rank that
runs something else gets a row here, which ``StepSegments.project_code`` puts into its program; other or longer kernels
are ``work.disturbed``'s; what depends on the time of day ``timing.clock_faults``'; links ``durations.Link``'s. The
event model then shifts everything that depends on it. Name its culprit in ``culprits``, refuse in
``refuse_idle_faults`` what changes nothing, and add it to ``tests/simulate/test_faults.py`` and
``benchmarks/findings.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from traceviz_dag.errors import UsageError
from traceviz_dag.simulate.rank_grids import dense_grid
from traceviz_dag.simulate.settings import Graphs, JobSettings
from traceviz_dag.simulate.tree import Row, builtin, op, pause, py, synchronise
from traceviz_dag.simulate.work import kernels

_OWN_PROGRAM = ("garbage_collection", "hidden_synchronisation", "pageable_copy", "graph_break", "tiny_kernels")
"""Faults whose rank runs something that it does not run without them."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """One injected fault: what it is, who has it, and by how much.

    Attributes:
        ranks: all that have it, where it is a group's, a node's or a stage's; empty where it is no rank's.
    """

    fault: str
    rank: int
    stage: int
    magnitude: float
    unit: str
    ranks: tuple[int, ...] = ()


def speed_factor(settings: JobSettings, rank: int) -> float:
    """By how much a rank's kernels take longer than a healthy GPU's."""
    f = settings.faults
    factor = f.slow_gpu_factor if f.slow_gpu == rank else 1.0
    for name in ("slow_group", "slow_node", "slow_stage"):
        if rank in slow_together(settings, name):
            factor *= getattr(f, f"{name}_factor")
    return factor


def slow_together(settings: JobSettings, fault: str) -> tuple[int, ...]:
    """The ranks that a fault of a group, a node or a stage makes slow."""
    who, grid = getattr(settings.faults, fault), dense_grid(settings)
    if who is None:
        return ()
    if fault == "slow_group":
        return next(group for group in grid.groups("tp") if who in group)
    if fault == "slow_stage":
        return tuple(rank for rank in range(settings.world) if grid.place(rank)["pp"] == who)
    return tuple(rank for rank in range(settings.world) if rank // settings.node_size == who)


def loader_stall_ns(settings: JobSettings, rank: int, microbatch: int) -> int:
    """How long a rank's data loader keeps it waiting for a micro-batch beyond what loading takes."""
    f = settings.faults
    stall = f.data_stall_ms if f.data_stall == rank and microbatch == 0 else 0.0
    return int((stall + (f.loader_late_ms if f.loader_late == rank else 0.0)) * 1e6)


def collection_pause(settings: JobSettings, rank: int) -> Row | None:
    """A garbage collection in the middle of a rank's step."""
    if settings.faults.garbage_collection != rank:
        return None
    return pause("<built-in function collect>", int(settings.faults.garbage_collection_ms * 1e6))


def hidden_wait(settings: JobSettings, rank: int) -> Row | None:
    """A line of code that reads a value from the GPU in each forward step."""
    if settings.faults.hidden_synchronisation != rank:
        return None
    copied = op("aten::_local_scalar_dense", kernels.copy("DtoH", 4), synchronise("compute"))
    return py(
        "my_project/hooks.py", "log_activation", builtin("method item of Tensor object at 0x", op("aten::item", copied))
    )


def pageable_copy(settings: JobSettings, rank: int) -> Row | None:
    """A line of code that copies a tensor from memory that is not pinned in each forward step, and waits for it."""
    if settings.faults.pageable_copy != rank:
        return None
    copied = op("aten::copy_", kernels.pageable_copy(1 << 14), synchronise("compute"))
    moved = op("aten::to", op("aten::_to_copy", copied))
    return py("my_project/hooks.py", "load_mask", builtin("method to of Tensor object at 0x", moved))


def graph_break(settings: JobSettings, rank: int) -> Row | None:
    """The rest of a compiled function behind what the compiler could not follow, in each forward step."""
    if settings.faults.graph_break != rank:
        return None
    region = op("Torch-Compiled Region: 1/0", op("CompiledFunction", kernels.fused("swiglu", 4096)))
    lost = pause("my_project/hooks.py(@): choose_scale", int(settings.faults.graph_break_ms * 1e6))
    return py("my_project/hooks.py", "torch_dynamo_resume_in_scaled_at_41", lost, region)


def tiny_kernels(settings: JobSettings, rank: int) -> Row | None:
    """A loop over parameters that launches one tiny kernel for each, in each forward step."""
    if settings.faults.tiny_kernels != rank:
        return None
    launches = (op("aten::add_", kernels.elementwise("add", 4096)) for _ in range(settings.faults.tiny_kernels_count))
    return py("my_project/hooks.py", "decay_each", *launches)


def undisturbed(settings: JobSettings) -> JobSettings:
    """The same job without the faults that change what a rank runs, and not only how long it takes."""
    return settings.with_faults(**dict.fromkeys(_OWN_PROGRAM), bad_stage_split=0)


def runs_other_work(settings: JobSettings, rank: int) -> bool:
    """Whether a fault changes what a rank runs."""
    f = settings.faults
    return bool(f.bad_stage_split) or rank in (getattr(f, name) for name in _OWN_PROGRAM)


def refuse_idle_faults(settings: JobSettings) -> None:
    """Refuse faults that change nothing: they would be culprits that nobody can find.

    Raises:
        UsageError: which fault it is, and where it could act.
    """
    for idle in _idle_faults(settings):
        raise UsageError(idle)


def _idle_faults(s: JobSettings) -> Iterator[str]:
    f, grid = s.faults, dense_grid(s)
    hosts = {
        "data-stall": (f.data_stall, "the data loader"),
        "loader-late": (f.loader_late, "the data loader"),
        "gc-pause": (f.garbage_collection, "a pause of the host"),
        "hidden-sync": (f.hidden_synchronisation, "a wait of the host"),
        "pageable-copy": (f.pageable_copy, "a wait of the host"),
        "graph-break": (f.graph_break, "work of the host"),
        "tiny-kernels": (f.tiny_kernels, "launching one by one"),
    }
    for option, (rank, what) in hosts.items():
        if rank is not None and s.cuda_graphs is Graphs.ITERATION:
            yield f"--{option} {rank}: with --cuda-graphs iteration one launch runs the pass; {what} delays nothing"
    loading = [rank for rank in range(s.world) if grid.place(rank)["pp"] in (0, s.pp - 1)]
    for option, rank in (("data-stall", f.data_stall), ("loader-late", f.loader_late)):
        if rank is not None and rank not in loading:
            stage = grid.place(rank)["pp"]
            yield f"--{option} {rank}: rank {rank} is in stage {stage} and loads no data; ranks {_ranges(loading)} do"
    if f.slow_link is not None and s.world == 1:
        yield f"--slow-link {f.slow_link}: the job's only rank has no links; give it more ranks"
    if f.slow_nic is not None and s.world <= s.node_size:
        yield f"--slow-nic {f.slow_nic}: the job is on one node, where no card is used; lower --node-size"
    if f.bursts and s.world == 1:
        yield "--bursts: the job's only rank transfers nothing; give it more ranks"
    if f.throttle is not None and f.throttle_from_ms >= f.throttle_to_ms:
        yield f"--throttle {f.throttle}: it ends at {f.throttle_to_ms:g} ms, before it starts"
    if f.expert_imbalance and s.ep == 1:
        yield "--expert-imbalance: with --ep 1 every rank holds all experts; raise --ep"
    strengths: dict[str, tuple[float | None, float, int]] = {
        "slow GPU": (f.slow_gpu, f.slow_gpu_factor, 1),
        "slow link": (f.slow_link, f.slow_link_factor, 1),
        "throttled GPU": (f.throttle, f.throttle_factor, 1),
        "slow group": (f.slow_group, f.slow_group_factor, 1),
        "slow node": (f.slow_node, f.slow_node_factor, 1),
        "slow stage": (f.slow_stage, f.slow_stage_factor, 1),
        "slow network card": (f.slow_nic, f.slow_nic_factor, 1),
        "slow clock": (f.slow_clock, f.slow_clock_factor, 1),
        "slow memory": (f.slow_memory, f.slow_memory_factor, 1),
        "other algorithm": (f.other_algorithm, f.other_algorithm_factor, 1),
        "bursts": (f.bursts or None, f.bursts_factor, 1),
        "late loader": (f.loader_late, f.loader_late_ms, 0),
        "data stall": (f.data_stall, f.data_stall_ms, 0),
        "GC pause": (f.garbage_collection, f.garbage_collection_ms, 0),
        "graph break": (f.graph_break, f.graph_break_ms, 0),
        "number of tiny kernels": (f.tiny_kernels, f.tiny_kernels_count, 0),
    }
    for name, (who, strength, none) in strengths.items():
        if who is not None and strength <= none:
            yield f"{name} of {strength:g}: it must be above {none}"


def _ranges(ranks: Iterable[int]) -> str:
    """Ranks in ascending order as text: ``0-3, 12-15``."""
    members = list(ranks)
    cuts = [0, *(index + 1 for index, (one, other) in enumerate(pairwise(members)) if other != one + 1), len(members)]
    runs = [members[begin:end] for begin, end in pairwise(cuts)]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def culprits(settings: JobSettings, stage_of: dict[int, int]) -> list[Culprit]:
    """All injected faults; rank or stage is -1 where the fault has none."""
    f = settings.faults
    found = []
    for name, rank, magnitude, unit in (
        ("slow_gpu", f.slow_gpu, f.slow_gpu_factor, "times"),
        ("slow_link", f.slow_link, f.slow_link_factor, "times"),
        ("throttle", f.throttle, f.throttle_factor, "times"),
        ("slow_nic", f.slow_nic, f.slow_nic_factor, "times"),
        ("slow_clock", f.slow_clock, f.slow_clock_factor, "times"),
        ("slow_memory", f.slow_memory, f.slow_memory_factor, "times"),
        ("other_algorithm", f.other_algorithm, f.other_algorithm_factor, "times"),
        ("data_stall", f.data_stall, f.data_stall_ms, "ms"),
        ("loader_late", f.loader_late, f.loader_late_ms, "ms per micro-batch"),
        ("garbage_collection", f.garbage_collection, f.garbage_collection_ms, "ms"),
        ("hidden_synchronisation", f.hidden_synchronisation, 1.0, "per forward step"),
        ("pageable_copy", f.pageable_copy, 1.0, "per forward step"),
        ("graph_break", f.graph_break, f.graph_break_ms, "ms per forward step"),
        ("tiny_kernels", f.tiny_kernels, float(f.tiny_kernels_count), "per forward step"),
    ):
        if rank is not None:
            found.append(Culprit(name, rank, stage_of[rank], magnitude, unit, (rank,)))
    for name in ("slow_group", "slow_node", "slow_stage"):
        ranks = slow_together(settings, name)
        if ranks:
            stages = {stage_of[rank] for rank in ranks}
            stage = stages.pop() if len(stages) == 1 else -1
            found.append(Culprit(name, -1, stage, getattr(f, f"{name}_factor"), "times", ranks))
    if f.expert_imbalance:
        found.append(Culprit("expert_imbalance", -1, -1, f.expert_imbalance, "share of tokens"))
    if f.bad_stage_split:
        found.append(Culprit("bad_stage_split", -1, 0, float(f.bad_stage_split), "layers"))
    if f.varying_sequences:
        found.append(Culprit("varying_sequences", -1, -1, f.varying_sequences, "share of the length"))
    if f.bursts:
        found.append(Culprit("bursts", -1, -1, f.bursts_factor, "times"))
    return found

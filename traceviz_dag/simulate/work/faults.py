"""Injected faults: where they act, and the culprits that the truth names."""

from __future__ import annotations

from dataclasses import dataclass

from traceviz_dag.simulate.settings import JobSettings
from traceviz_dag.simulate.tree import Row, builtin, op, pause, py, synchronise
from traceviz_dag.simulate.work import kernels


@dataclass(frozen=True, slots=True)
class Culprit:
    """One injected fault: what it is, who has it, and by how much."""

    fault: str
    rank: int
    stage: int
    magnitude: float
    unit: str


def speed_factor(settings: JobSettings, rank: int) -> float:
    """By how much a rank's kernels take longer than a healthy GPU's."""
    return settings.faults.slow_gpu_factor if settings.faults.slow_gpu == rank else 1.0


def loader_stall_ns(settings: JobSettings, rank: int) -> int:
    """How long a rank's data loader stalls before its first micro-batch."""
    return int(settings.faults.data_stall_ms * 1e6) if settings.faults.data_stall == rank else 0


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


def culprits(settings: JobSettings, stage_of: dict[int, int]) -> list[Culprit]:
    """All injected faults; rank or stage is -1 where the fault has none."""
    f = settings.faults
    found = []
    for name, rank, magnitude, unit in (
        ("slow_gpu", f.slow_gpu, f.slow_gpu_factor, "times"),
        ("slow_link", f.slow_link, f.slow_link_factor, "times"),
        ("data_stall", f.data_stall, f.data_stall_ms, "ms"),
        ("garbage_collection", f.garbage_collection, f.garbage_collection_ms, "ms"),
        ("hidden_synchronisation", f.hidden_synchronisation, 1.0, "per forward step"),
    ):
        if rank is not None:
            found.append(Culprit(name, rank, stage_of[rank], magnitude, unit))
    if f.expert_imbalance:
        found.append(Culprit("expert_imbalance", -1, -1, f.expert_imbalance, "share of tokens"))
    if f.bad_stage_split:
        found.append(Culprit("bad_stage_split", -1, 0, float(f.bad_stage_split), "layers"))
    return found

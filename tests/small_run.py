"""A small Megatron run for tests: pipelines of two stages, a few micro-batches, in the profiler's own form."""

from __future__ import annotations

from pathlib import Path

from tests.kineto_file import AUTOGRAD, KinetoFile

SCHEDULES = "megatron/core/pipeline_parallel/schedules.py"
GEMM = "nvjet_hsh_64x64"
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SENDRECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def groups_of(rank: int, world: int) -> list[dict[str, object]]:
    """Pipeline groups of two stages, data-parallel over the rest, as Megatron lays them out."""
    half = world // 2
    stage, peer = divmod(rank, half)
    pipeline = [peer, peer + half]
    data = list(range(stage * half, stage * half + half))
    return [
        {"pg_name": "0", "pg_desc": "default_pg", "pg_size": world, "ranks": list(range(world))},
        {"pg_name": f"{1 + stage}", "pg_desc": "DATA_PARALLEL_GROUP_WITH_CP", "pg_size": half, "ranks": data},
        {"pg_name": f"{3 + stage}", "pg_desc": "DATA_PARALLEL_GROUP", "pg_size": half, "ranks": data},
        {"pg_name": f"{5 + peer}", "pg_desc": "PIPELINE_MODEL_PARALLEL_GROUP", "pg_size": 2, "ranks": pipeline},
        {"pg_name": f"{50 + rank}", "pg_desc": "TENSOR_MODEL_PARALLEL_GROUP", "pg_size": 1, "ranks": [rank]},
    ]


def rank_file(rank: int, world: int, step: int = 7, microbatches: int = 2, scale: int = 1) -> KinetoFile:
    """One rank's training step: forwards, backwards, one gradient reduction, an optimizer step."""
    file = KinetoFile(rank=rank, world_size=world, groups=groups_of(rank, world))
    at = 1_000
    file.annotation(f"ProfilerStep#{step}", 0, 100_000 * scale)
    file.python("megatron/training/training.py(900): train_step", 10, 99_990 * scale)
    file.python(f"{SCHEDULES}(2147): forward_backward_pipelining_without_interleaving", 20, 80_000 * scale)
    for index in range(microbatches):
        file.python(f"{SCHEDULES}(402): forward_step", at, at + 900)
        file.operator("aten::mm", at + 50, at + 100, **{"Sequence number": index})
        file.kernel(GEMM, at + 100, at + 100 + 600 * scale, launched=at + 60)
        file.kernel(GEMM, at + 100 + 600 * scale, at + 100 + 900 * scale, launched=at + 80)
        at += 1_000 * scale
    for index in range(microbatches):
        file.python(f"{SCHEDULES}(538): backward_step", at, at + 900)
        node = "autograd::engine::evaluate_function: MmBackward0"
        file.operator(node, at + 50, at + 150, AUTOGRAD, **{"Sequence number": index})
        file.kernel(GEMM, at + 100, at + 100 + 800 * scale, launched=at + 60, thread=AUTOGRAD)
        file.python("megatron/core/pipeline_parallel/p2p_communication.py(280): _communicate", at + 910, at + 980)
        file.kernel(SENDRECV, at + 950, at + 990, launched=at + 920, stream=28)
        at += 1_000 * scale
    file.python("megatron/core/distributed/finalize_model_grads.py(560): finalize_model_grads", at, at + 900)
    data_group = groups_of(rank, world)[1]
    facts = {
        "Collective name": "allreduce",
        "Process Group Name": data_group["pg_name"],
        "Process Group Description": data_group["pg_desc"],
        "Process Group Ranks": str(data_group["ranks"]),
        "Group size": data_group["pg_size"],
        "dtype": "Float",
        "In msg nelems": 4096,
        "Out msg nelems": 4096,
    }
    file.kernel(REDUCE, at + 100, at + 700, launched=at + 50, stream=32, **facts)
    at += 1_000
    file.python("megatron/core/optimizer/optimizer.py(1886): step", at, at + 900)
    file.kernel("multi_tensor_apply_kernel", at + 100, at + 500, launched=at + 50)
    return file


def write_run(folder: Path, iterations: dict[int, int] | None = None, world: int = 4) -> Path:
    """A run folder in the iteration layout.

    Args:
        iterations: iteration → number of ranks that have a file; by default iteration 7 with all of them.
    """
    for iteration, ranks in (iterations or {7: world}).items():
        for rank in range(ranks):
            name = f"iteration_{iteration}/rank_{rank:04d}_iter_{iteration}.pt.trace.json"
            rank_file(rank, world, step=iteration).write(folder / name)
    return folder


def two_ranks_analysed(folder: Path) -> tuple[Path, Path]:
    """A run of two ranks, and a home that holds what they show."""
    from traceviz_dag.pipeline.analysis import AnalysisSettings, analyse
    from traceviz_dag.pipeline.discovery import inputs_below

    run = write_run(folder / "job", world=2)
    analyse(AnalysisSettings(folder / "home", workers=1), inputs_below([run]))
    return run, folder / "home"

"""Where files are and how they are named, and the topology text file of TraceViz's patch."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

from traceviz_dag.simulate.rank_grids import dense_grid, expert_grid
from traceviz_dag.simulate.settings import JobSettings, Layout
from traceviz_dag.system.whole_files import write_atomically


def trace_path(settings: JobSettings, rank: int, iteration: int) -> Path:
    """Path of a trace, relative to the run folder; ``iteration`` is the first that the file holds."""
    suffix = ".json.gz" if settings.gzip else ".json"
    if settings.layout is Layout.TORCH_PROFILE:
        return Path("torch_profile") / f"rank-{rank}{suffix}"
    if settings.layout is Layout.TENSORBOARD:
        node, process = rank // settings.node_size, 20_000 + crc32(f"{settings.seed}|{rank}".encode()) % 30_000
        time_ns = 1_770_682_356_000_000_000 + 1_000_003 * rank
        return Path(f"node{node:03d}_{process}.{time_ns}.pt.trace{suffix}")
    return Path(f"iteration_{iteration}") / f"rank_{rank:04d}_iter_{iteration}.pt.trace{suffix}"


def text_file(settings: JobSettings, out: Path) -> Path:
    """Write ``unique_parallel_groups_TIMESTAMP.txt`` as TraceViz's patch does, gaps and all."""
    dense, expert = dense_grid(settings), expert_grid(settings)
    sections = [
        ("TENSOR PARALLEL (TP) GROUPS", dense.groups("tp")),
        ("PIPELINE PARALLEL (PP) GROUPS", dense.groups("pp")),
        ("DATA PARALLEL (DP) GROUPS", dense.groups("dp")),
    ]
    if settings.ep > 1:
        sections.append(("EXPERT PARALLEL (EP) GROUPS", expert.groups("ep")))
    ruler = "-" * 50
    lines = ["=" * 80, "MEGATRON PARALLEL CONFIGURATION", "=" * 80, "Timestamp: 2026-01-01 00:00:00"]
    sizes = {"TP": settings.tp, "PP": settings.pp, "CP": settings.cp, "EP": settings.ep}
    lines += [f"{name} Size: {size}" for name, size in sizes.items()]
    batch = settings.microbatches * settings.batch * settings.dp
    lines += [f"World Size: {settings.world}", "", f"Global Batch Size: {batch}", "", "STATISTICS", ruler]
    lines += [f"Total Ranks: {settings.world}", f"Valid Ranks: {settings.world}", "Error Ranks: 0", ""]
    for title, groups in sections:
        unique = sorted({tuple(sorted(group)) for group in groups})
        lines += [title, ruler]
        lines += [f"Group {index}: {list(group)}" for index, group in enumerate(unique, 1)]
        lines += [f"Total groups: {len(unique)}", ""]
    replicas = _replicas(settings)
    product = sizes["TP"] * sizes["EP"] * sizes["PP"] * sizes["CP"]
    lines += ["FULL MODEL RANK GROUPS (by DP Rank)", ruler]
    lines += ["Each DP rank contains ONE complete model replica with ALL shards."]
    lines += [
        f"Full model = TP{settings.tp} x EP{settings.ep} x PP{settings.pp} x CP{settings.cp} = {product} ranks",
        ruler,
    ]
    lines += [f"Group {index}: {ranks}" for index, ranks in enumerate(replicas)]
    lines += ["", f"Total model replicas (DP): {len(replicas)}"]
    path = out / "unique_parallel_groups_20260101_000000.txt"
    write_atomically(path, ("\n".join(lines) + "\n").encode())
    return path


def _replicas(settings: JobSettings) -> list[list[int]]:
    grid = expert_grid(settings) if settings.ep > 1 else dense_grid(settings)
    found: dict[int, list[int]] = {}
    for rank in range(settings.world):
        found.setdefault(grid.place(rank)["dp"], []).append(rank)
    return [found[index] for index in sorted(found)]

"""The ``nsys profile`` line, with an output name for each rank under torchrun and under Slurm."""

from __future__ import annotations

import shlex

from traceviz_dag.capture.configuration import ProfilingConfig
from traceviz_dag.capture.rendering import Rendering

TORCHRUN_NAME = "profile_%p_rank%q{RANK}"
_METRICS = '$([ "${LOCAL_RANK:-$SLURM_LOCALID}" = 0 ] && echo --gpu-metrics-devices=all)'
SLURM_NAME = "profile_%p_%q{SLURM_JOB_ID}_node%q{SLURM_NODEID}_rank%q{SLURM_PROCID}"


def words(config: ProfilingConfig, name: str) -> list[str]:
    """The line up to the program, one entry per word.

    Args:
        name: the report's name; nsys puts in process id (%p) and environment (%q).
    """
    line = ["nsys", "profile", "-s", "none", "-o", f"{config.output_folder}/{name}", "-t", ",".join(config.nsys_trace)]
    return [*line, "--force-overwrite", "true", "--capture-range=cudaProfilerApi", "--capture-range-end=stop"]


def line(config: ProfilingConfig, name: str) -> str:
    """The same, quoted for a shell; GPU metrics are collected by the first rank of a node, for all of its GPUs."""
    plain = shlex.join(words(config, name))
    if not config.nsys_gpu_metrics:
        return plain
    script = f'exec {plain} {_METRICS} "$@"'
    return f"bash -c {shlex.quote(script)} nsys"


def render(config: ProfilingConfig) -> list[Rendering]:
    """The line for torchrun and for Slurm; none where nsys is off."""
    if not config.use_nsys_profiler:
        return []
    notes = [
        "The range opens and closes where the job calls cudaProfilerStart and Stop: only ranks of profile_ranks write.",
        "Kernels of CUDA graphs show one by one only with --cuda-graph-trace=node, which costs more.",
    ]
    if config.nsys_gpu_metrics:
        first = set(range(0, config.job.world_size, config.job.node_size))
        recording = sorted(first & set(config.ranks()))
        notes += [
            "GPU metrics need the right to read performance counters; older nsys spells it --gpu-metrics-device.",
            "One nsys collects them for all GPUs of a node: its first rank's. "
            f"Nodes whose first rank records: {len(recording)} of {config.job.nodes}.",
        ]
    export = (
        f"nsys export --type=sqlite --include-blobs=true --force-overwrite=true {config.output_folder}/REPORT.nsys-rep"
    )
    return [
        Rendering(
            "nsys-export",
            "Export of each report, on a machine with nsys",
            export,
            ("Without the blobs traceviz does not know the sizes and groups of NCCL's operations.",),
        ),
        Rendering("nsys-torchrun", "Nsight Systems under torchrun", line(config, TORCHRUN_NAME), tuple(notes)),
        Rendering("nsys-slurm", "Nsight Systems under Slurm", line(config, SLURM_NAME), tuple(notes)),
    ]

"""Whole launches, under torchrun and under Slurm."""

from __future__ import annotations

import shlex

from traceviz_dag.capture.configuration import ProfilingConfig
from traceviz_dag.capture.rendering import Rendering
from traceviz_dag.capture.targets import megatron, nsys, traceviz


def render(config: ProfilingConfig) -> list[Rendering]:
    """A torchrun line for every node, and a Slurm batch script."""
    job = config.job
    if config.use_nsys_profiler:
        exports: list[str] = []
        command = f"{job.command} {shlex.join(megatron.arguments(config))}"
        torchrun = f"--no-python {nsys.line(config, nsys.TORCHRUN_NAME)} python {command}"
        slurm = f"{nsys.line(config, nsys.SLURM_NAME)} python {command}"
        notes: tuple[str, ...] = (
            "The arguments are those of Megatron-LM's main; the targets megatron-0.18, megatron-0.17 and "
            "megatron-older have those of releases.",
        )
        exports += [f"mkdir -p {shlex.join(config.folders())}"]
    else:
        exports = [traceviz.exports(traceviz.plugin_variables(config))]
        torchrun = f"-m traceviz_capture {job.command}"
        slurm = f"python -m traceviz_capture {job.command}"
        notes = ("traceviz_capture.py must be on PYTHONPATH or in the working folder of every node.",)
    nodes = f"--nnodes {job.nodes} --nproc-per-node {min(job.node_size, job.world_size)}"
    rendezvous = "--rdzv-backend c10d --rdzv-endpoint $MASTER_ADDR:$MASTER_PORT"
    batch = [
        "#!/bin/bash",
        f"#SBATCH --nodes={job.nodes}",
        f"#SBATCH --ntasks-per-node={min(job.node_size, job.world_size)}",
        f"#SBATCH --gpus-per-node={min(job.node_size, job.world_size)}",
        'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) MASTER_PORT=29500',
        *exports,
        "srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS exec \"$@\"' capture \\",
        f"    {slurm}",
    ]
    return [
        Rendering(
            "torchrun",
            "Launch with torchrun",
            "\n".join([*exports, f"torchrun {nodes} {rendezvous} {torchrun}"]),
            notes,
        ),
        Rendering("slurm", "Launch with Slurm", "\n".join(batch), notes),
    ]

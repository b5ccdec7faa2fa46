"""Call chains equal those of authentic Megatron traces; lines and frames between differ by seed and era."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.simulate.conftest import Job, decode, small
from traceviz_dag.simulate import simulate
from traceviz_dag.simulate.settings import Era, JobSettings, Recompute, Transformer
from traceviz_dag.simulate.work import stacks

_LEAVES = ("record_param_comms", "aten::native_layer_norm", "aten::gelu")
_HARNESS = ("pretrain_gpt_tiny.py", "run_cpu_megatron.py", "pretrain_gpt.py", "megatron/bridge/")
_OPTIONAL = (
    "nn.Module: Float16Module",
    "megatron/core/transformer/module.py: forward",
    ": inner",
    "<built-in",
    "c10d::",
)
"""Frames that depend on the script, on wrappers that a job may have, or on the PyTorch build."""


def _chains(trace: dict) -> Iterator[tuple[str, ...]]:
    """Chains from the schedule, the optimizer or the engine down to each leaf, without lines, numbers and addresses."""
    threads = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event.get("cat") in ("cpu_op", "python_function"):
            threads[event["tid"]].append((float(event["ts"]), -float(event["dur"]), event["name"]))
    for rows in threads.values():
        stack: list[tuple[float, str]] = []
        for begin, minus_length, name in sorted(rows):
            while stack and stack[-1][0] <= begin:
                stack.pop()
            plain = re.sub(r"\(\d+\): ", ": ", name)
            stack.append((begin - minus_length, re.sub(r"^(nn.Module: \w+?)_\d+$", r"\1", plain)))
            if name in _LEAVES:
                names = [entry for _, entry in stack]
                yield tuple(name for name in names[_root(names) :] if not _skipped(name))


def _root(names: list[str]) -> int:
    roots = ("megatron/core/pipeline_parallel/schedules.py", "autograd::engine", "megatron/core/optimizer/optimizer.py")
    return next((index for index, name in enumerate(names) if name.startswith(roots)), 0)


def _skipped(name: str) -> bool:
    return name.startswith(_HARNESS) or any(part in name for part in _OPTIONAL)


def _plain_seed(settings: JobSettings) -> JobSettings:
    """The job under the first seed whose script and wrappers are those of the authentic runs."""
    optional = ("float16", "bridge", "custom backward")
    plain = (replace(settings, seed=seed) for seed in range(100))
    return next(job for job in plain if not any(stacks.chance(job, what) for what in optional))


def test_chains_equal_those_of_the_authentic_traces(shared_data: Path, tmp_path: Path):
    """Tensor-parallel layers, full recompute, interleaving: each authentic chain stands in the simulated trace."""
    settings = _plain_seed(
        small(
            tp=2,
            pp=2,
            vpp=2,
            recompute=Recompute.FULL,
            transformer=Transformer.LOCAL,
            sequence_parallel=False,
            distributed_optimizer=False,
            overlap_param_gather=False,
            filler_frames=0.0,
        )
    )
    job = Job(settings, simulate(settings, tmp_path, workers=1))
    # Ranks of one tensor-parallel group run the same: one of each stage.
    for rank in (0, 3):
        folder = shared_data / "megatron_gpu" / "tp2_pp2_vpp2_full" / "iteration_2"
        authentic = set(_chains(decode((folder / f"rank_{rank:04d}_iter_2.pt.trace.json.gz").read_bytes())))
        absent = authentic - set(_chains(job.trace(rank)))
        assert len(authentic) > 20
        # Megatron also calls groups of one rank; that starts no kernel, and the simulator leaves it out.
        of_one_rank = ("finish_grad_sync", "forward_step_calc_loss", "finalize_model_grads.py: finalize_model_grads")
        assert not [chain for chain in absent if not any(name.endswith(of_one_rank) for name in chain)]
        assert len(absent) <= 3


def _locations(trace: dict) -> dict[str, set[str]]:
    """Function → the lines at which it stands."""
    lines = defaultdict(set)
    for event in trace["traceEvents"]:
        if event.get("cat") == "python_function" and (found := re.match(r"(.+)\((\d+)\): (.+)", event["name"])):
            lines[f"{found[1]}: {found[3]}"].add(found[2])
    return lines


def test_lines_and_frames_differ_by_seed_and_era(tmp_path: Path):
    jobs = {}
    for seed, era in ((1, Era.TORCH_2_7), (2, Era.TORCH_2_7), (1, Era.TORCH_2_4)):
        settings = small(pp=2, seed=seed, era=era)
        jobs[seed, era] = Job(settings, simulate(settings, tmp_path / f"{seed}{era.name}", workers=1))
    first, *others = (_locations(job.trace(0)) for job in jobs.values())
    assert all(len(lines) == 1 for lines in first.values())
    for other in others:
        common = first.keys() & other.keys()
        assert len(common) > 30
        assert sum(first[name] == other[name] for name in common) < 0.1 * len(common)
        assert first.keys() != other.keys()


def test_the_first_forward_of_a_recomputed_layer_makes_no_nodes(tmp_path: Path):
    settings: JobSettings = small(recompute=Recompute.FULL)
    job = Job(settings, simulate(settings, tmp_path, workers=1))
    operators = [event for event in job.trace(0)["traceEvents"] if event.get("cat") == "cpu_op"]
    linears = [event for event in operators if event["name"] == "_LayerNormLinear"]
    with_node = [event for event in linears if "Sequence number" in event["args"]]
    assert len(with_node) * 2 == len(linears) > 0

"""A real job of several ranks on one GPU: does a gain that is predicted from its traces come true?

Run: ``nvidia-cuda-mps-control -d``, then ``python benchmarks/one_gpu.py OUT --stall 0.03`` in an environment that holds
PyTorch with CUDA and megatron-core, and elsewhere ``traceviz what-if OUT/stall --fix-rank 0``.

Trains a small GPT with Megatron-core's own schedules, distributed optimizer and communication, a process a rank. NCCL
refuses two ranks on one GPU unless it takes them for those of different hosts (``NCCL_HOSTID``), which then talk over
sockets of the loopback, as over a network. With the multi-process service (MPS) their kernels run side by side. One
iteration is recorded by the capture plugin; the others, which nothing slows, give the true step.

``OUT/plain`` is the job as it is; in ``OUT/stall`` each micro-batch's data come so many seconds late on some ranks.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import json
import os
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
RECORDED, STEPS, WARM_UP = 8, 24, 5
SEQUENCE, VOCABULARY, HIDDEN, HEADS = 1024, 8192, 1024, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    for name, default in (("tp", 1), ("pp", 4), ("dp", 1), ("layers", 8), ("microbatches", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--stall", type=float, default=0.0, help="seconds by which data come late")
    parser.add_argument("--stall-ranks", type=int, nargs="*", default=[0])
    given = vars(parser.parse_args())
    out = given.pop("out").resolve()
    for name in ("plain", "stall") if given["stall"] else ("plain",):
        job = {**given, "stall": given["stall"] if name == "stall" else 0.0}
        steps = run(out / name, job)
        sys.stdout.write(f"{name}: median step {statistics.median(steps) * 1e3:.1f} ms of {len(steps)}\n")


def run(out: Path, job: dict[str, Any]) -> list[float]:
    """Train in a process a rank; returns what the steps take that nothing slows, s."""
    world = job["tp"] * job["pp"] * job["dp"]
    out.mkdir(parents=True)
    common = {
        **os.environ,
        "WORLD_SIZE": str(world),
        "JOB": json.dumps({**job, "store": str(out / "store")}),
        "TRACEVIZ_CAPTURE_ITERATIONS": str(RECORDED),
        "TRACEVIZ_CAPTURE_OUT": str(out),
        "TRACEVIZ_CAPTURE_RANKS": "all",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "NCCL_IB_DISABLE": "1",
        "NCCL_SOCKET_IFNAME": "lo",
        "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": "4",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank"],
            env={**common, "RANK": str(rank), "LOCAL_RANK": "0", "NCCL_HOSTID": f"host{rank}"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    said = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit("a rank failed")
    (out / "store").unlink(missing_ok=True)
    ends: list[float] = json.loads(said[0].splitlines()[-1])
    # Around the recorded step the profiler starts, stops and writes.
    slowed = range(RECORDED - 3, RECORDED + 2)
    pairs = enumerate(pairwise(ends), start=2)
    return [after - before for step, (before, after) in pairs if step > WARM_UP and step not in slowed]


def one_rank() -> None:
    """Train; prints when each step ended, s."""
    specification = importlib.util.spec_from_file_location(
        "traceviz_capture", HERE / "traceviz_dag" / "capture" / "plugin.py"
    )
    assert specification is not None and specification.loader is not None
    plugin = sys.modules["traceviz_capture"] = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(plugin)
    sys.path.insert(0, str(HERE / "tests" / "capture" / "stand_in"))
    plugin.install()
    import torch
    import torch.distributed as dist

    job, rank = json.loads(os.environ["JOB"]), int(os.environ["RANK"])
    torch.cuda.set_device(0)
    store = dist.FileStore(job["store"], int(os.environ["WORLD_SIZE"]))
    dist.init_process_group("nccl", store=store, rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
    chunk, optimizer, schedule = build(job)
    from megatron.training.training import train

    ends: list[float] = []
    whole = optimizer.step

    def step() -> Any:
        done = whole()
        ends.append(time.monotonic())
        return done

    optimizer.step = step
    late = job["stall"] if rank in job["stall_ranks"] else 0.0
    sizes = {"num_microbatches": job["microbatches"], "seq_length": SEQUENCE, "micro_batch_size": 1}
    train(1, STEPS, forward_step, [batches(torch, late)], [chunk], optimizer, schedule, **sizes)
    torch.cuda.synchronize()
    sys.stdout.write(json.dumps(ends) + "\n")
    dist.destroy_process_group()


def build(job: dict[str, Any]) -> tuple[Any, Any, Any]:
    import torch
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from megatron.core.transformer.transformer_config import TransformerConfig

    parallel_state.initialize_model_parallel(job["tp"], job["pp"])
    torch.manual_seed(1)
    model_parallel_cuda_manual_seed(1)
    # What needs Transformer Engine or Apex is off.
    off = ("gradient_accumulation_fusion", "masked_softmax_fusion", "bias_dropout_fusion", "bias_activation_fusion")
    config = TransformerConfig(
        num_layers=job["layers"],
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        pipeline_dtype=torch.bfloat16,
        params_dtype=torch.bfloat16,
        bf16=True,
        tensor_model_parallel_size=job["tp"],
        pipeline_model_parallel_size=job["pp"],
        calculate_per_token_loss=True,
        persist_layer_norm=False,
        apply_rope_fusion=False,
        **dict.fromkeys(off, False),
    )
    config.finalize_model_grads_func = finalize_model_grads
    first, last = parallel_state.is_pipeline_first_stage, parallel_state.is_pipeline_last_stage
    whole = {"ignore_virtual": True} if "ignore_virtual" in inspect.signature(first).parameters else {}
    model = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(),
        vocab_size=VOCABULARY,
        max_sequence_length=SEQUENCE,
        pre_process=first(**whole),
        post_process=last(**whole),
        share_embeddings_and_output_weights=False,
    )
    reduction = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=True,
        overlap_param_gather=True,
        use_distributed_optimizer=True,
        bucket_size=20_000_000,
    )
    chunk = DistributedDataParallel(config=config, ddp_config=reduction, module=model.cuda().bfloat16())
    settings = OptimizerConfig(
        optimizer="adam", lr=1e-4, clip_grad=1.0, bf16=True, use_distributed_optimizer=True, overlap_param_gather=True
    )
    optimizer = get_megatron_optimizer(settings, [chunk])
    config.no_sync_func, config.grad_sync_func = chunk.no_sync, chunk.start_grad_sync
    config.param_sync_func, config.grad_scale_func = chunk.start_param_sync, optimizer.scale_loss
    return chunk, optimizer, get_forward_backward_func()


def batches(torch: Any, late: float) -> Any:
    generator = torch.Generator().manual_seed(7)
    causal = (torch.ones(1, 1, SEQUENCE, SEQUENCE).tril() < 0.5).cuda()
    places = torch.arange(SEQUENCE).cuda()[None]
    while True:
        if late:
            time.sleep(late)
        tokens = torch.randint(0, VOCABULARY, (1, SEQUENCE), generator=generator)
        yield tokens.pin_memory().cuda(non_blocking=True), places, causal


def forward_step(data_iterator: Any, model: Any) -> tuple[Any, Any]:
    import torch

    tokens, places, causal = next(data_iterator)
    losses = model(tokens, places, causal, labels=tokens)

    def loss(output: Any) -> tuple[Any, Any, dict[str, Any]]:
        total, count = output.float().sum(), torch.tensor(output.numel(), dtype=torch.int, device="cuda")
        return total, count, {"lm loss": torch.stack([total.detach(), count.float()])}

    return losses, loss


if __name__ == "__main__":
    one_rank() if sys.argv[1:] == ["--rank"] else main()

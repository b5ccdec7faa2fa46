"""Trains a tiny GPT in several processes with Megatron-core's own schedules, once for each scenario.

    python megatron_job.py JOB.json

JOB.json names the sizes and the scenarios; each scenario is a job of its own in fresh processes. What each rank saw
(losses, groups, coordinates) is written to FOLDER/NAME.RANK.json. Runs in the environment that holds torch and
megatron-core.
"""

import faulthandler
import importlib
import inspect
import json
import logging
import os
import resource
import signal
import sys
import warnings
from pathlib import Path

SEQUENCE, VOCABULARY = 16, 64
MODULES = (
    *("parallel_state", "models.gpt.gpt_model", "models.gpt.gpt_layer_specs"),
    *("distributed", "optimizer", "pipeline_parallel.schedules"),
)


def main():
    job = json.loads(Path(sys.argv[1]).read_text())
    sys.path[:0] = [job["plugin_folder"], str(Path(__file__).parent / "stand_in"), *job["packages"]]
    faulthandler.enable()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    os.environ.update(TORCHDYNAMO_DISABLE="1", CUDA_DEVICE_MAX_CONNECTIONS="1", OMP_NUM_THREADS="1")
    plugin = importlib.import_module("traceviz_capture")
    if job["install_before_import"]:
        # Iteration 0 never comes; each scenario brings its own settings.
        os.environ["TRACEVIZ_CAPTURE_ITERATIONS"] = "0"
        plugin.install()
        del os.environ["TRACEVIZ_CAPTURE_ITERATIONS"]
    import torch

    torch.set_num_threads(1)
    for name in MODULES:
        importlib.import_module(f"megatron.core.{name}")
    failed = [scenario["name"] for scenario in job["scenarios"] if not in_processes(job, scenario, plugin)]
    sys.exit(f"scenarios failed: {failed}" if failed else 0)


def in_processes(job, scenario, plugin):
    """Each rank is a child that leaves as any Python process does: exit handlers, destructors and all."""
    children = []
    for rank in range(job["world"]):
        child = os.fork()
        if child == 0:
            train(job, scenario, plugin, rank)
            sys.exit(0)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    for rank, code in enumerate(codes):
        if code:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"left with {code}"
            sys.stderr.write(f"scenario {scenario['name']}: rank {rank} {how}\n")
    return not any(codes)


def train(job, scenario, plugin, rank):
    os.environ.update({f"TRACEVIZ_CAPTURE_{name.upper()}": str(value) for name, value in scenario["capture"].items()})
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(job["world"]), LOCAL_RANK=str(rank))
    os.environ["STAND_IN_WITHOUT"] = scenario.get("without", "")
    if job["install_before_import"]:
        # The hooks are there in the scenario without a capture, too.
        os.environ.setdefault("TRACEVIZ_CAPTURE_OUT", str(Path(job["folder"], "out", scenario["name"])))
        capture = plugin.install()
        for one in filter(None, (capture, capture._profiler)):
            one.settings = plugin.CaptureSettings.from_environment()
    else:
        plugin.install()
    import torch.distributed as dist

    rendezvous = f"file://{job['folder']}/{scenario['name']}.rendezvous"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=job["world"])
    break_something(scenario.get("faults", {}).get(str(rank), scenario.get("fault")), plugin)
    parts, sizes = build(job)
    from megatron.training.training import train as loop

    losses = loop(scenario["first"], scenario["count"], *parts, **sizes)
    seen = {"losses": [[float(one["lm loss"][0]) for one in step] for step in losses], **what_megatron_says(job)}
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    Path(job["folder"], f"{scenario['name']}.{rank}.json").write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()


def break_something(fault, plugin):
    import torch

    if fault == "full disk":
        # No file of this process grows further, as on a disk without room.
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    elif fault == "handler raises":

        def export(*_):
            raise RuntimeError("the exporter is broken")

        torch.profiler.profile.export_chrome_trace = export
    elif fault == "profiler raises":

        def start(*_):
            raise RuntimeError("the profiler is broken")

        torch.profiler.profile.start_trace = start
    elif fault == "other profiler":
        from megatron.training import get_args

        get_args().profiler = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU],
            schedule=torch.profiler.schedule(wait=0, warmup=1, active=2, repeat=1),
            on_trace_ready=torch.profiler.tensorboard_trace_handler(os.environ["TRACEVIZ_CAPTURE_OUT"]),
            with_stack=True,
        )
    elif fault == "slow disk":
        plugin._WRITER = "import time; time.sleep(1)\n" + plugin._WRITER
    elif fault == "disk hangs":
        plugin._WRITER = "import time; time.sleep(15)"


def build(job):
    import torch
    from cpu_megatron import stand_in_for_cuda
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from megatron.core.transformer.transformer_config import TransformerConfig

    stand_in_for_cuda()
    pp, vpp = job["pp"], job["vpp"]
    parallel_state.initialize_model_parallel(1, pp, vpp, order=job["order"])
    torch.manual_seed(1)
    model_parallel_cuda_manual_seed(1)
    config = TransformerConfig(
        num_layers=4,
        hidden_size=32,
        num_attention_heads=4,
        use_cpu_initialization=True,
        pipeline_dtype=torch.float32,
        params_dtype=torch.float32,
        pipeline_model_parallel_size=pp,
        virtual_pipeline_model_parallel_size=vpp,
        batch_p2p_sync=False,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        bias_dropout_fusion=False,
        bias_activation_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
        calculate_per_token_loss=True,
    )
    config.finalize_model_grads_func = finalize_model_grads
    reduction = DistributedDataParallelConfig(grad_reduce_in_fp32=True)
    chunks = [DistributedDataParallel(config, reduction, model(config, chunk, vpp)) for chunk in range(vpp or 1)]
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=1e-3, clip_grad=1.0), chunks)
    data = [batches(torch) for _ in chunks]
    sizes = {"num_microbatches": job["microbatches"], "seq_length": SEQUENCE, "micro_batch_size": 1}
    return (forward_step, data, chunks, optimizer, get_forward_backward_func()), sizes


def model(config, chunk, vpp):
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel

    named = {}
    if vpp:
        if "vp_stage" in inspect.signature(GPTModel).parameters:
            named["vp_stage"] = chunk
        else:
            parallel_state.set_virtual_pipeline_model_parallel_rank(chunk)
    first, last = parallel_state.is_pipeline_first_stage, parallel_state.is_pipeline_last_stage
    return GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(),
        vocab_size=VOCABULARY,
        max_sequence_length=SEQUENCE,
        pre_process=first(ignore_virtual=not vpp, **named),
        post_process=last(ignore_virtual=not vpp, **named),
        share_embeddings_and_output_weights=True,
        **named,
    )


def batches(torch):
    generator = torch.Generator().manual_seed(7)
    causal = torch.ones(1, 1, SEQUENCE, SEQUENCE).tril() < 0.5
    while True:
        tokens = torch.randint(0, VOCABULARY, (1, SEQUENCE), generator=generator)
        yield tokens, torch.arange(SEQUENCE)[None], causal


def forward_step(data_iterator, model):
    import torch

    tokens, positions, causal = next(data_iterator)
    losses = model(tokens, positions, causal, labels=tokens)

    def loss(output):
        total, count = output.float().sum(), torch.tensor(output.numel(), dtype=torch.int)
        return total, count, {"lm loss": torch.stack([total.detach(), count.float()])}

    return losses, loss


def what_megatron_says(job):
    from megatron.core import parallel_state as ps

    pipeline = ps.get_pipeline_model_parallel_group()
    import torch.distributed as dist

    return {
        "pp": dist.get_process_group_ranks(pipeline),
        "dp": dist.get_process_group_ranks(ps.get_data_parallel_group()),
        "tp": dist.get_process_group_ranks(ps.get_tensor_model_parallel_group()),
        "cp": dist.get_process_group_ranks(ps.get_context_parallel_group()),
        "ep": dist.get_process_group_ranks(ps.get_expert_model_parallel_group()),
        "pp_rank": ps.get_pipeline_model_parallel_rank(),
        "dp_rank": ps.get_data_parallel_rank(),
        "groups": [
            [one["pg_name"], one["pg_desc"], list(one["ranks"])] for one in dist.distributed_c10d._get_all_pg_configs()
        ],
    }


if __name__ == "__main__":
    main()

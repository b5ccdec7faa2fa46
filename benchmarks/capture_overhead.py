"""What the capture plugin costs the training thread, in CPU time of an iteration of a tiny Megatron-core model.

    make capture-environment
    .venv/bin/traceviz capture plugin > /tmp/capture/traceviz_capture.py
    PYTHONPATH=/tmp/capture:tests/capture:tests/capture/stand_in .venv-capture/bin/python benchmarks/capture_overhead.py

One process, one pipeline stage of four layers, eight micro-batches, no GPU: nearly all of it is the host's work, which
is what a profiler slows down, so a job that computes on GPUs is slowed down less. What follows the iteration (stopping
and exporting, which the job waits for, and compressing, which it does not) is not in the figures.
"""

from __future__ import annotations

import importlib
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

ITERATIONS, WARM = 40, 8
RECORDED = (10, 15, 20, 25, 30, 35)
VARIANTS: dict[str, dict[str, str]] = {
    "without the plugin": {},
    "plugin, not recording": {"ITERATIONS": "9999"},
    "recording, no stacks, no shapes": {"ITERATIONS": ",".join(map(str, RECORDED)), "STACKS": "0", "SHAPES": "0"},
    "recording stacks and shapes": {"ITERATIONS": ",".join(map(str, RECORDED))},
}


def main() -> None:
    for name, settings in VARIANTS.items():
        with tempfile.TemporaryDirectory() as out:
            given = {f"TRACEVIZ_CAPTURE_{key}": value for key, value in {**settings, "OUT": out}.items()}
            environment = {**os.environ, **given, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "OUT": out}
            environment |= {"TORCHDYNAMO_DISABLE": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1", "OMP_NUM_THREADS": "1"}
            command = [sys.executable, __file__, "one"]
            said = subprocess.run(command, env=environment, text=True, capture_output=True, check=True).stdout
        times = [float(line) for line in said.splitlines()]
        measured = [times[number - 1] for number in RECORDED] if "recording " in name else times[WARM:]
        low, high = min(measured), max(measured)
        print(f"{name:32} median {statistics.median(measured):6.1f} ms   {low:.1f} to {high:.1f}")


def one() -> None:
    """Train in this process and print the CPU time of each iteration's main thread, ms."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    plugin = importlib.import_module("traceviz_capture")
    capture = plugin.install()
    job = importlib.import_module("megatron_job")
    for module in job.MODULES:
        importlib.import_module(f"megatron.core.{module}")
    import torch

    torch.set_num_threads(1)
    rendezvous = f"file://{os.environ['OUT']}/rendezvous"
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=0, world_size=1)
    parts, sizes = job.build({"pp": 1, "vpp": None, "order": "tp-cp-ep-dp-pp", "microbatches": 8})
    training = importlib.import_module("megatron.training.training")
    step = getattr(training.train_step, "__wrapped__", training.train_step)

    def timed(*given, **named):
        start = time.thread_time()
        result = step(*given, **named)
        print((time.thread_time() - start) * 1e3)
        return result

    training.train_step = capture.around_train_step(timed, "megatron.training.training")
    training.train(1, ITERATIONS, *parts, **sizes)


if __name__ == "__main__":
    one() if sys.argv[1:] == ["one"] else main()

"""Records chosen training iterations of a Megatron or plain PyTorch job, without changing Megatron.

One file, standard library and the job's own torch. It never raises into the job, never talks to other ranks and writes
within bounds; what goes wrong is a line on stderr. Switch it on in one of four ways (traceviz_capture is this file):
a line in the script (``import traceviz_capture; traceviz_capture.install()``), ``python -m traceviz_capture SCRIPT …``
(or ``-m MODULE …``), those two statements in a sitecustomize.py on PYTHONPATH, or
``callbacks=[traceviz_capture.BridgeCallback()]`` with Megatron Bridge. Your own loop may call
``traceviz_capture.step(iteration)`` first in every iteration.

TRACEVIZ_CAPTURE_ITERATIONS   120,500-501   iterations as the job logs them; nothing is recorded without it
TRACEVIZ_CAPTURE_OUT          folder of the run, default traceviz_capture
TRACEVIZ_CAPTURE_STAGING      folder for raw traces until they are compressed, default OUT/.staging; name a disk of the
                              node where OUT is a network's: what the training waits for goes there alone
TRACEVIZ_CAPTURE_RANKS        replica (default: one complete model), all, stage, node, or numbers like 0,4-7;
                              PROFILE_ALLRANKS=1 of TraceViz's patch means all
TRACEVIZ_CAPTURE_STACKS, _SHAPES, _CUDA_SYNC   1 or 0: call stacks (1), tensor shapes (1), cuda_sync rows (0)
TRACEVIZ_CAPTURE_MEMORY       0 (default), 1: allocations in the trace, history: the allocator's history with Python
                              stacks, too, a snapshot beside each trace; _MEMORY_ENTRIES: most entries, default 100000
TRACEVIZ_CAPTURE_WARMUP       iterations that the profiler runs before it records, default 1
TRACEVIZ_CAPTURE_FIRST        number of the process's first iteration, where nothing else gives it; default 1
TRACEVIZ_CAPTURE_MAX_BYTES    most that a rank writes, default 8 GiB; _KEEP_FREE_BYTES: disk left free, default 1 GiB
TRACEVIZ_CAPTURE_EXIT_SECONDS longest wait at exit for files still being compressed, default 30

In its order: settings, topology, the processes that write, the profiler, the capture that counts iterations, the hooks
that tie it to a job, the entry points.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import difflib
import functools
import gc
import importlib.abc
import importlib.util
import inspect
import json
import math
import os
import re
import runpy
import shutil
import subprocess
import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PREFIX = "TRACEVIZ_CAPTURE_"
_WARNINGS = 20
_RECORDED_PARTS = {
    "/torch/_dynamo/": "a compiled region",
    "/torch/_inductor/": "a compiled region",
    "/torch/_functorch/": "a compiled region",
    "/torch/_ops.py": "an operator",
    "/torch/_library/": "an operator",
    "/torch/autograd/": "a function of autograd",
}
"""Parts of torch that call Python from inside a function that they record from C++."""
_KEPT_VARIABLES = (
    *("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING", "OMP_NUM_THREADS"),
    *("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "TORCH_NCCL_AVOID_RECORD_STREAMS", "TORCH_NCCL_BLOCKING_WAIT"),
    *("TORCH_NCCL_HIGH_PRIORITY", "NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_CUMEM_ENABLE", "NCCL_IB_DISABLE"),
    *("NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS", "NCCL_NVLS_ENABLE", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"),
    *("NVTE_BWD_LAYERNORM_SM_MARGIN", "NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_FWD_LAYERNORM_SM_MARGIN"),
    *("NVTE_UNFUSED_ATTN", "UB_SKIPMC"),
)
"""Variables of the environment whose values are in a trace's header; no other variable is."""

_KEPT_ARGUMENTS = (
    *("micro_batch_size", "global_batch_size", "seq_length", "num_layers", "hidden_size", "num_attention_heads"),
    *("ffn_hidden_size", "num_experts", "moe_router_topk", "moe_token_dispatcher_type", "moe_grouped_gemm"),
    *("bf16", "fp16", "fp8", "transformer_impl", "attention_backend", "use_flash_attn", "sequence_parallel"),
    *("recompute_granularity", "recompute_method", "recompute_num_layers", "use_distributed_optimizer"),
    *("overlap_grad_reduce", "overlap_param_gather", "overlap_p2p_comm", "tp_comm_overlap", "delay_wgrad_compute"),
    *("gradient_accumulation_fusion", "ddp_bucket_size", "num_distributed_optimizer_instances", "external_cuda_graph"),
    *("enable_cuda_graph", "manual_gc", "manual_gc_interval", "num_workers", "data_parallel_sharding_strategy"),
    *("padded_vocab_size", "kv_channels", "group_query_attention", "num_query_groups", "swiglu", "quick_geglu"),
    *("moe_layer_freq", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size", "moe_latent_size"),
    *("multi_latent_attention", "mtp_num_layers", "experimental_attention_variant", "attention_output_gate"),
    *("is_hybrid_model", "decoder_num_layers", "fp4", "variable_seq_lengths", "sequence_packing", "sft"),
    *("hybrid_context_parallel", "dynamic_context_parallel", "sequence_packing_scheduler"),
)
"""Arguments of Megatron-LM whose values are in a trace's header; no other argument is."""

_NOTED_ARGUMENTS = (
    *("window_size", "hybrid_override_pattern", "hybrid_layer_pattern"),
    *("heterogeneous_layers_config_path", "heterogeneous_layers_config_encoded_json"),
)
"""Arguments of which a header says only that they are given."""

_SETTING = re.compile(r"[\w.,:=+\-\[\]]{1,300}", re.ASCII)
"""What a setting's value may look like; others, such as paths, are left out."""

_GLOO_THREADS = "pt_gloo_runloop"
_SECONDS_GLOO = 1.0
"""How long a window waits at the most for gloo's threads to note the end of what the job has waited for already."""
_WRITER = """
import functools, gzip, os, shutil, sys
source, target = sys.argv[1:3]
folder, name = os.path.split(target)
hidden = os.path.join(folder, f".{name}.{os.getpid()}")
pack = functools.partial(gzip.open, compresslevel=3) if target.endswith(".gz") else open
text = b"" if source else sys.stdin.buffer.read()
try:
    os.nice(10)
    os.makedirs(folder, exist_ok=True)
    if source:
        with open(source, "rb") as file, pack(hidden, "wb") as packed:
            shutil.copyfileobj(file, packed, 1 << 20)
    else:
        with open(hidden, "wb") as file:
            file.write(text)
    size = os.path.getsize(hidden)
    os.replace(hidden, target)
    print(size)
except OSError as error:
    sys.exit(f"{type(error).__name__}: {error}")
finally:
    for path in filter(os.path.exists, (hidden, source)):
        os.unlink(path)
"""
"""Compresses or moves a file, or writes its standard input, and prints how many bytes it wrote.

It writes under a hidden name first: no reader sees half a file.
"""
_AXES = {
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "cp": "CONTEXT_PARALLEL_GROUP",
    "dp": "DATA_PARALLEL_GROUP",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    "ep": "EXPERT_MODEL_PARALLEL_GROUP",
    "etp": "EXPERT_TENSOR_PARALLEL_GROUP",
    "edp": "EXPERT_DATA_PARALLEL_GROUP",
}
_TEXT_SECTIONS = {"tp": "TENSOR PARALLEL", "pp": "PIPELINE PARALLEL", "dp": "DATA PARALLEL", "ep": "EXPERT PARALLEL"}


@dataclass(frozen=True)
class Numbers:
    """Whole numbers, as ascending ranges: ``1-3000000000`` costs no more than ``3``."""

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, text: str) -> Numbers:
        """The numbers of a list such as ``0,4-7``.

        Raises:
            ValueError: the text is no such list.
        """
        found: list[tuple[int, int]] = []
        for part in filter(None, (part.strip() for part in text.split(","))):
            match = re.fullmatch(r"(\d+)(?:\s*-\s*(\d+))?", part, re.ASCII)
            if match is None:
                raise ValueError(f"{part!r} is no number and no range like 4-7")
            first, last = int(match[1]), int(match[2] or match[1])
            if last < first:
                raise ValueError(f"{part!r} runs backwards: write {last}-{first}")
            found.append((first, last))
        if not found:
            raise ValueError("names no number")
        merged: list[tuple[int, int]] = []
        for first, last in sorted(found):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
            else:
                merged.append((first, last))
        return cls(tuple(merged))

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __contains__(self, number: int) -> bool:
        return any(first <= number <= last for first, last in self.ranges)

    def __str__(self) -> str:
        return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in self.ranges)

    def following(self, number: int) -> int | None:
        """The first of them that is not below a number."""
        return next((max(first, number) for first, last in self.ranges if last >= number), None)

    @classmethod
    def each(cls, numbers: Iterable[int]) -> Numbers:
        """These numbers, of which there is one at least."""
        return cls.of(",".join(map(str, numbers)))

    def within(self, lowest: int, highest: int) -> Numbers:
        """Those from ``lowest`` to ``highest``."""
        cut = ((max(first, lowest), min(last, highest)) for first, last in self.ranges)
        return Numbers(tuple((first, last) for first, last in cut if first <= last))

    def outside(self, lowest: int, highest: int) -> Numbers:
        """Those below ``lowest`` or above ``highest``."""
        below = [(first, min(last, lowest - 1)) for first, last in self.ranges if first < lowest]
        above = [(max(first, highest + 1), last) for first, last in self.ranges if last > highest]
        return Numbers((*below, *above))


@dataclass(frozen=True)
class CaptureSettings:
    """What to record and where; see the variables above.

    Attributes:
        memory: allocations are part of the trace.
        history: the allocator's history is recorded, too, with at most ``memory_entries`` entries.
        first: number of the process's first iteration; None where the job gives it, or else 1.
    """

    iterations: Numbers = Numbers()
    out: str = "traceviz_capture"
    staging: str = ""
    ranks: str = "replica"
    stacks: bool = True
    shapes: bool = True
    cuda_sync: bool = False
    memory: bool = False
    history: bool = False
    memory_entries: int = 100_000
    warmup: int = 1
    first: int | None = None
    max_bytes: int = 8 << 30
    keep_free_bytes: int = 1 << 30
    exit_seconds: float = 30.0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> CaptureSettings:
        """The settings that TRACEVIZ_CAPTURE_* variables give.

        Raises:
            ValueError: a variable does not hold what it should; names it.
        """
        found: dict[str, Any] = {}
        if environment.get("PROFILE_ALLRANKS", "").strip() == "1":
            found["ranks"] = "all"
        for name, read in _READERS.items():
            text = environment.get(_PREFIX + name.upper(), "").strip()
            if text:
                try:
                    found[name] = read(text)
                except ValueError as error:
                    raise ValueError(f"{_PREFIX}{name.upper()}={text[:60]}: {error}") from None
        found["history"] = found.get("memory") == "history"
        found["memory"] = found.get("memory", False) is not False
        return cls(**found)


def odd_variables(environment: Mapping[str, str] = os.environ) -> list[str]:
    """A sentence for each variable that is not one of ours though it looks like one, or has no effect."""
    said = []
    known = [_PREFIX + name.upper() for name in _READERS]
    for name in sorted(environment):
        if name.startswith(_PREFIX) and name not in known:
            near = difflib.get_close_matches(name, known, 1)
            said.append(f"{name} is no variable of the plugin" + (f"; did you mean {near[0]}?" if near else ""))
    if environment.get("PROFILE_ALLRANKS", "").strip() == "1" and environment.get(f"{_PREFIX}RANKS", "").strip():
        said.append(f"PROFILE_ALLRANKS=1 has no effect beside {_PREFIX}RANKS={environment[_PREFIX + 'RANKS']}")
    return said


def _switch(text: str) -> bool:
    if text.lower() not in (*_ON, *_OFF):
        raise ValueError("must be 1 or 0")
    return text.lower() in _ON


def _memory(text: str) -> bool | str:
    return "history" if text.lower() == "history" else _switch(text)


def _at_least(lowest: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d{1,18}", text, re.ASCII) or int(text) < lowest:
            raise ValueError(f"must be a whole number from {lowest}")
        return int(text)

    return read


def _seconds(text: str) -> float:
    if not re.fullmatch(r"\d+(\.\d*)?", text, re.ASCII) or not math.isfinite(float(text)):
        raise ValueError("must be a number of seconds")
    return float(text)


def _ranks(text: str) -> str:
    if text.lower() in ("replica", "all", "stage", "node"):
        return text.lower()
    try:
        return str(Numbers.of(text))
    except ValueError as error:
        raise ValueError(f"must be replica, all, stage, node or numbers ({error})") from None


_ON, _OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_READERS: dict[str, Callable[[str], Any]] = {
    "iterations": Numbers.of,
    "out": str,
    "staging": str,
    "ranks": _ranks,
    "stacks": _switch,
    "shapes": _switch,
    "cuda_sync": _switch,
    "memory": _memory,
    "memory_entries": _at_least(1),
    "warmup": _at_least(0),
    "first": _at_least(0),
    "max_bytes": _at_least(0),
    "keep_free_bytes": _at_least(0),
    "exit_seconds": _seconds,
}
"""How the text of each variable becomes a setting."""


@dataclass
class Topology:
    """The job's process groups, as Megatron creates them.

    Attributes:
        groups: name, description and members (in group order) of each.
        complete: every group of the job is there; else those of this rank alone.
        microbatches: of one pipeline in an iteration; the sizes are of one micro-batch and of the whole iteration.
    """

    world_size: int
    sizes: dict[str, int] = field(default_factory=dict)
    order: str | None = None
    groups: list[dict[str, Any]] = field(default_factory=list)
    complete: bool = False
    microbatches: int | None = None
    micro_batch_size: int | None = None
    global_batch_size: int | None = None

    def of(self, axis: str) -> list[list[int]]:
        """All known groups of one axis (tp, cp, dp, pp, ep, etp, edp)."""
        return [list(group["ranks"]) for group in self.groups if group["description"] == _AXES[axis]]

    def coordinates(self, rank: int) -> dict[str, int]:
        """The rank's position in its group of every known axis."""
        found = {axis: next((g for g in self.of(axis) if rank in g), None) for axis in _AXES}
        return {axis: group.index(rank) for axis, group in found.items() if group is not None}

    def replicas(self) -> list[list[int]]:
        """Complete models: ranks joined by a dense (dp) or an expert (edp) index; empty where groups are missing."""
        root = list(range(self.world_size))

        def find(rank: int) -> int:
            while root[rank] != rank:
                root[rank] = root[root[rank]]
                rank = root[rank]
            return rank

        if not self.complete or not self.of("dp"):
            return []
        for axis in ("dp", "edp"):
            first: dict[int, int] = {}
            for group in self.of(axis):
                for index, rank in enumerate(group):
                    root[find(rank)] = find(first.setdefault(index, rank))
        models: dict[int, list[int]] = {}
        for rank in range(self.world_size):
            models.setdefault(find(rank), []).append(rank)
        return sorted(models.values())

    def chosen_ranks(self, wanted: str, node_size: int | None) -> Numbers | None:
        """Ranks to record, as far as this rank can tell; None where its groups do not show all of them.

        Args:
            node_size: ranks on each node; None where that is not known.
        """
        every = Numbers(((0, self.world_size - 1),))
        if wanted == "node":
            return Numbers.each(range(0, self.world_size, node_size)) if node_size else None
        if wanted == "stage" and self.of("pp"):
            return next((Numbers.each(group) for group in self.of("pp") if 0 in group), None)
        if wanted == "replica" and self.of("dp"):
            models = self.replicas()
            return Numbers.each(models[0]) if models else None
        return every if wanted in ("all", "replica", "stage") else Numbers.of(wanted).within(0, self.world_size - 1)

    def chosen(self, wanted: str, rank: int, local_rank: int) -> bool:
        """Whether a rank is among those to record."""
        if wanted == "node":
            return local_rank == 0
        if wanted == "stage" and self.of("pp"):
            return any(rank in group for group in self.of("pp") if 0 in group)
        if wanted == "replica" and self.of("dp"):
            models = self.replicas()
            return rank in models[0] if models else self.coordinates(rank).get("dp") == 0
        return wanted in ("all", "replica", "stage") or rank in Numbers.of(wanted)

    def misses(self, wanted: str) -> str | None:
        """What a choice of ranks cannot find in this job, in words; None where it finds all."""
        if wanted in ("replica", "stage"):
            if self.of("dp" if wanted == "replica" else "pp") or self.world_size == 1:
                return None
            return f"no {wanted} is known without Megatron's process groups, so all {self.world_size} ranks record"
        beyond = Numbers() if wanted in ("all", "node") else Numbers.of(wanted).outside(0, self.world_size - 1)
        if not beyond:
            return None
        nobody = ", so no rank records" if beyond == Numbers.of(wanted) else ""
        return f"{_PREFIX}RANKS names {beyond}, but the job has ranks 0 to {self.world_size - 1}{nobody}"

    def as_json(self) -> dict[str, Any]:
        """Everything known, for the topology file."""
        return {
            "format": "traceviz topology",
            "version": 1,
            "world_size": self.world_size,
            "sizes": self.sizes,
            "order": self.order,
            "microbatches": self.microbatches,
            "micro_batch_size": self.micro_batch_size,
            "global_batch_size": self.global_batch_size,
            "complete": self.complete,
            "groups": self.groups,
            "replicas": self.replicas(),
        }

    def as_text(self) -> str:
        """The part of it that TraceViz's text file can hold, in its form."""
        rule = "-" * 50
        lines = ["=" * 80, "MEGATRON PARALLEL CONFIGURATION", "=" * 80, time.strftime("Timestamp: %Y-%m-%d %H:%M:%S")]
        lines += [f"{axis.upper()} Size: {self.sizes.get(axis, 1)}" for axis in ("tp", "pp", "cp", "ep", "dp")]
        further = {
            "Virtual Pipeline Stages": self.sizes.get("vpp", 1),
            "Micro Batch Size": self.micro_batch_size,
            "Global Batch Size": self.global_batch_size,
            "Number of Micro-batches": self.microbatches,
        }
        lines += [f"{words}: {value}" for words, value in further.items() if value is not None]
        lines += [f"World Size: {self.world_size}", "", "STATISTICS", rule, f"Total Ranks: {self.world_size}"]
        for axis, words in _TEXT_SECTIONS.items():
            groups = self.of(axis)
            if groups and (axis != "ep" or self.sizes.get("ep", 1) > 1):
                lines += ["", f"{words} ({axis.upper()}) GROUPS", rule]
                lines += [f"Group {number}: {sorted(group)}" for number, group in enumerate(groups, start=1)]
                lines.append(f"Total groups: {len(groups)}")
        models = self.replicas()
        lines += ["", "FULL MODEL RANK GROUPS (by DP Rank)", rule]
        lines += [f"Group {number}: {model}" for number, model in enumerate(models)]
        return "\n".join([*lines, "", f"Total model replicas (DP): {len(models)}", ""])


class _Writers:
    """Writes files in separate processes, one after the other, beside the training.

    A thread would be simpler, but torch's call stacks reach into every thread that lives while a window is recorded.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._waiting: deque[tuple[str, Path, bytes]] = deque()
        self._running: tuple[subprocess.Popen[bytes], Path] | None = None
        self.written = 0
        self.refused = False

    def take(self, raw: Path, target: Path) -> None:
        """Compress a file to a name that ends in .gz, or move it to any other."""
        self._waiting.append((str(raw), target, b""))
        self.tend()

    def write(self, text: str, target: Path) -> None:
        """Write a small file."""
        self._waiting.append(("", target, text.encode()))
        self.tend()

    def tend(self) -> None:
        """Take note of what has ended and begin what waits; never blocks."""
        while self._ended() and self._waiting:
            self._begin(*self._waiting.popleft())

    def wait(self, seconds: float) -> bool:
        """Wait so long at the most; False where something is still being written, which goes on by itself."""
        deadline = time.monotonic() + seconds
        while not self._idle() and time.monotonic() < deadline:
            time.sleep(0.02)
        finished = self._idle()
        while self._waiting:
            self._begin(*self._waiting.popleft())
        return finished

    def forget(self) -> None:
        """Leave everything to the parent process."""
        self._waiting.clear()
        self._running = None

    def _idle(self) -> bool:
        self.tend()
        return self._running is None

    def _ended(self) -> bool:
        """Whether nothing is running; says what failed."""
        if self._running is None:
            return True
        process, target = self._running
        if process.poll() is None:
            return False
        self._running = None
        # The writer says how much it wrote: a look at the file could wait for a hanging disk, or miss it.
        written, words = (text.decode(errors="replace").strip() for text in process.communicate())
        if process.returncode or not written.isdecimal():
            self.refused = True
            self._warn(f"{target.name} is not written: {words.splitlines()[-1] if words else process.returncode}")
        else:
            self.written += int(written)
        return True

    def _begin(self, source: str, target: Path, text: bytes) -> None:
        command = [sys.executable, "-I", "-S", "-c", _WRITER, source, str(target)]
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        try:
            process = subprocess.Popen(
                command, stdin=nothing if source else pipe, stdout=pipe, stderr=pipe, start_new_session=True
            )
            self._running = process, target
            if process.stdin is not None:
                with process.stdin:
                    process.stdin.write(text)
                process.stdin = None
        except OSError as error:
            self._warn(f"{target.name} is not written: {type(error).__name__}: {error}")
            if source:
                Path(source).unlink(missing_ok=True)


class _OpenFunctions:
    """Functions that the job records itself (``record_function``) and that a window has seen open but not closed.

    torch keeps a pointer into the window's buffer for each. Where the window has ended and another one records by the
    time the function closes, torch writes the closing time through that pointer, into memory that is free by then.
    """

    def __init__(self) -> None:
        self.watching = False
        self._open: dict[int, Any] = {}
        self._kept: list[Any] = []

    def watch(self, function_class: Any) -> None:
        """Take note of what opens and closes, from now on."""
        enter, leave = function_class.__enter__, function_class.__exit__

        @functools.wraps(enter)
        def entered(function: Any) -> Any:
            result = enter(function)
            if self.watching:
                self._open[id(function)] = function
            return result

        @functools.wraps(leave)
        def left(function: Any, *details: Any) -> Any:
            self._open.pop(id(function), None)
            return leave(function, *details)

        function_class.__enter__, function_class.__exit__ = entered, left

    def cut_off(self) -> None:
        """A window has ended: what is still open has ended with it, and its end is reported to nobody any more.

        The records are kept, for torch reports the end of one that is thrown away, too.
        """
        self.watching = False
        for function in list(self._open.values()):
            function.run_callbacks_on_exit = False
            self._kept.append(function.record)
        self._open.clear()


class _Profiler:
    """torch's profiler: the one place that makes, starts and stops it, one window after the other.

    A window starts and stops between the job's calls, on the thread that started it, never inside a function that torch
    is recording: see _OpenFunctions and Capture._is_safe.
    """

    def __init__(self, settings: CaptureSettings, warn: Callable[[str], None]) -> None:
        self.settings = settings
        self._warn = warn
        self._torchs: Any = None
        self._annotation: Any = None
        self._own_history = False
        self._kept: list[Any] = []
        self.functions = _OpenFunctions()
        self.used = False
        self.calling: int | None = None
        self.iteration: int | None = None
        self.clock: dict[str, Any] = {}

    @property
    def warm(self) -> bool:
        """Whether the profiler runs, recording or not."""
        return self._torchs is not None

    def prepare(self) -> None:
        """Begin to warm up."""
        from torch import cuda, profiler

        activities = [profiler.ProfilerActivity.CPU]
        if cuda.is_available():
            activities.append(profiler.ProfilerActivity.CUDA)
        self.used = True
        with self._own_call():
            made = profiler.profile(
                activities=activities,
                with_stack=self.settings.stacks and not self._is_followed(),
                record_shapes=self.settings.shapes,
                profile_memory=self.settings.memory,
                **self._experimental(),
            )
            made.prepare_trace()
        self._torchs = made

    def _is_followed(self) -> bool:
        """Whether the job has a profile function: torch's call stacks would take its place, and not give it back."""
        followed = sys.getprofile() is not None
        if followed and self.settings.stacks:
            self._warn("the job has its own profile function (sys.setprofile): call stacks are not recorded")
        return followed

    def _experimental(self) -> dict[str, Any]:
        if not self.settings.cuda_sync:
            return {}
        try:
            from torch._C._profiler import _ExperimentalConfig

            return {"experimental_config": _ExperimentalConfig(enable_cuda_sync_events=True)}
        except (ImportError, TypeError):
            self._warn(f"this torch has no cuda_sync rows, so {_PREFIX}CUDA_SYNC has no effect")
            return {}

    def start(self, iteration: int) -> None:
        """Begin to record."""
        from torch.profiler import record_function

        self._start_history()
        with self._own_call():
            self._torchs.start_trace()
        self.iteration = iteration
        self.clock = {"start": clock_pair()}
        self._annotation = record_function(f"ProfilerStep#{iteration}")
        self._annotation.__enter__()
        self.functions.watching = True

    def stop(self, header: Callable[[], Mapping[str, Any]]) -> Any:
        """End the window; returns torch's profiler, which holds it. What ``header`` gives becomes part of the trace."""
        profiler, annotation, self._annotation = self._torchs, self._annotation, None
        # The step ends here: on a GPU job the rest that follows takes 25 to 33 ms, which the job has only in a capture.
        annotation.__exit__(None, None, None)
        self.clock["end"] = clock_pair()
        _let_gloo_rest()
        profiler.add_metadata_json("traceviz_capture", json.dumps(header()))
        with self._own_call():
            profiler.stop_trace()
        self._torchs = self.iteration = self._annotation = None
        self.functions.cut_off()
        return profiler

    def give_up(self) -> None:
        """Stop without a trace, whatever state the profiler is in: a process that leaves with it running crashes."""
        profiler, annotation = self._torchs, self._annotation
        self._torchs = self.iteration = self._annotation = None
        if "torch" not in sys.modules:
            return
        from torch._C._autograd import _disable_profiler, _profiler_enabled

        try:
            if annotation is not None:
                annotation.__exit__(None, None, None)
            with self._own_call():
                # One that only warms up cannot be stopped: torch crashes on it.
                if profiler is not None and not _profiler_enabled():
                    profiler.start_trace()
                if profiler is not None and _profiler_enabled():
                    profiler.stop_trace()
        finally:
            if _profiler_enabled():
                _disable_profiler()
            self.functions.cut_off()
            self._stop_history()

    def forget(self) -> None:
        """In a forked child: the profiler is the parent's, and this thread records nothing for it."""
        if self.warm:
            # Without it the last garbage collection of a child that leaves by Python's own exit crashes or never ends.
            gc.freeze()
        if self.iteration is not None:
            from torch._C._autograd import _enable_record_function

            _enable_record_function(False)
            sys.setprofile(None)
        if self.used:
            _leave_without_destructors()
        # The parent's, as well: its end is not the child's to report.
        self._kept += [self._torchs, self._annotation]
        self._torchs = self.iteration = self._annotation = None

    def _start_history(self) -> None:
        if not self.settings.history:
            return
        from torch import _C, cuda

        if not cuda.is_available():
            self._warn(f"there is no CUDA here, so {_PREFIX}MEMORY=history records no allocator history")
        elif not getattr(_C, "_cuda_isHistoryEnabled", bool)():
            entries = self.settings.memory_entries
            cuda.memory._record_memory_history(enabled="all", context="all", stacks="python", max_entries=entries)
            self._own_history = True

    def _stop_history(self) -> None:
        if self._own_history:
            from torch import cuda

            self._own_history = False
            cuda.memory._record_memory_history(enabled=None)

    def dump_history(self, path: Path) -> bool:
        """Write the allocator's history, the job's own where it records one; False where there is none."""
        from torch import cuda

        if not self.settings.history or not cuda.is_available():
            return False
        try:
            cuda.memory._dump_snapshot(str(path))
        finally:
            self._stop_history()
        return True

    @contextlib.contextmanager
    def _own_call(self) -> Iterator[None]:
        self.calling = threading.get_ident()
        try:
            yield
        finally:
            self.calling = None


def _leave_without_destructors() -> None:
    """Let a forked child leave before libkineto's destructor, which waits for a thread that only the parent has."""
    libc = ctypes.CDLL(None)
    # What is registered last is called first: flush, then leave with the status that exit was given.
    for function in (getattr(libc, "_exit", None), getattr(libc, "fcloseall", None)):
        if function is not None and hasattr(libc, "on_exit"):
            libc.on_exit(ctypes.cast(function, ctypes.c_void_p), None)


def _guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Keep every exception of the plugin away from the job.

    What the disk refuses costs that window, and those after it are not paid for; anything else is a fault of the plugin
    or an unknown torch, and switches the plugin off. To catch everything is right here, and only here: whatever it is
    that this file has not foreseen, a training step that others paid for must not fail because somebody wanted to watch
    it.
    """

    @functools.wraps(method)
    def wrapper(self: Capture, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except OSError as error:
            self.warn(f"{type(error).__name__}: {error}")
            self.abandon()
        except Exception as error:  # noqa: BLE001
            self.switch_off(f"{method.__name__.strip('_')} failed ({type(error).__name__}: {error})")
        return None

    return wrapper


class _NothingRecorded:
    """What a profiler that was not started holds, in the form of torch's results."""

    def events(self) -> list[Any]:
        return []

    def experimental_event_tree(self) -> list[Any]:
        return []

    def trace_start_ns(self) -> int:
        return time.time_ns()

    def save(self, path: str) -> None:
        Path(path).write_text(json.dumps({"schemaVersion": 1, "traceEvents": []}), encoding="utf-8")


class Capture:
    """Records the wanted iterations of this process.

    ``begin(iteration)`` and ``end()`` enclose an iteration; ``step(iteration)`` alone does where nothing else follows.
    """

    def __init__(self, settings: CaptureSettings) -> None:
        self.settings = settings
        self.topology: Topology | None = None
        self.microbatches: int | None = None
        self.micro_batch_size: int | None = None
        self._off = self._tidied = self._forked = False
        self._started_in = _current_folder()
        self._taken: set[int] = set()
        self._source: str | None = None
        self._how: str | None = None
        self._stepping = threading.local()
        self._counted: int | None = None
        self._counts: Any = None
        self._rank: int | None = None
        self._reached: tuple[int, int] | None = None
        self._stamp = time.strftime("%Y%m%d_%H%M%S")
        self._topology_written: Any = None
        self._writers = _Writers(self.warn)
        self._profiler = _Profiler(settings, self.warn)
        self._largest = 0
        self._said: set[str] = set()
        self._chosen: tuple[Topology | None, bool] | None = None
        self._refused = False
        self._unkept: set[int] = set()

    def warn(self, words: str) -> None:
        """Say a thing once on stderr; a job in which every iteration brings another fault is heard only so often."""
        if words not in self._said and len(self._said) < _WARNINGS:
            self._said.add(words)
            with contextlib.suppress(OSError, ValueError, AttributeError):
                sys.stderr.write(f"traceviz_capture: rank {_rank() if self._rank is None else self._rank}: {words}\n")

    def tell(self, words: str) -> None:
        """Say on rank 0 what holds for the whole job."""
        if (_rank() if self._rank is None else self._rank) == 0:
            self.warn(words)

    def switch_off(self, words: str) -> None:
        """Do nothing any more, for the reason given."""
        if not self._off:
            self._off = True
            self.warn(f"{words}: nothing more is recorded in this process")
            self.abandon()

    def abandon(self) -> None:
        """Give up an open window, so that the profiler does not go on."""
        try:
            if self._profiler.warm and _is_main_thread():
                self._profiler.give_up()
        except Exception as error:  # noqa: BLE001 (see _guarded)
            self.switch_off(f"the profiler did not stop ({error})")

    # Counting iterations.

    @_guarded
    def begin(self, iteration: int, source: str = "script", how: str | None = None) -> None:
        """An iteration begins; ``source`` names who counts. Other counters are ignored from then on.

        Args:
            how: the counter in words, for the trace's header and for people.
        """
        if self._is_over() or self._source not in (None, source, "optimizer") or not self._is_safe():
            return
        iteration = int(iteration)
        self._writers.tend()
        self._rank = _rank()
        if self._profiler.iteration is not None:
            self._end("iteration")
        if self._source != source:
            self._source, self._how = source, how or source
            self._announce(iteration)
        self._write_topology()
        wanted = self._next_wanted(iteration)
        if wanted is None or wanted > iteration + self.settings.warmup:
            self.abandon()
            return
        if not self._profiler.warm and self._may_record(wanted):
            self._profiler.prepare()
        if iteration == wanted and self._profiler.warm:
            self._profiler.start(iteration)

    @_guarded
    def end(self, source: str = "script", iteration: int | None = None) -> None:
        """The iteration ends: stop recording and write what was recorded."""
        if self._is_over() or self._source != source or not self._is_safe():
            return
        if iteration is not None:
            self._reach(iteration)
        if self._profiler.iteration is not None:
            self._end("iteration")

    @_guarded
    def step(self, iteration: int | None = None, source: str = "script") -> None:
        """The last iteration has ended, the given one (default: the next) begins."""
        last = self._counted
        self.end(source, last)
        self._counted = (self._first() if last is None else last + 1) if iteration is None else int(iteration)
        self.begin(self._counted, source)

    def _is_over(self) -> bool:
        """Whether the capture is switched off; stops what the thread that did so could not."""
        if self._off:
            self.abandon()
        return self._off

    def _next_wanted(self, iteration: int) -> int | None:
        """The next iteration to record; one that was recorded and is counted again is not."""
        wanted = self.settings.iterations.following(iteration)
        if wanted == iteration and wanted in self._taken:
            self.warn("iterations are counted again (does the count start again?): the first of a number is kept")
        while wanted is not None and wanted in self._taken:
            wanted = self.settings.iterations.following(wanted + 1)
        return wanted

    def _reach(self, iteration: int) -> None:
        lowest, highest = self._reached or (iteration, iteration)
        self._reached = (min(lowest, iteration), max(highest, iteration))

    def _first(self) -> int:
        """Number of the process's first iteration: as configured, or after Megatron's resumed one, or 1."""
        if self.settings.first is not None:
            return self.settings.first
        resumed = getattr(_megatrons_arguments(), "iteration", None)
        return resumed + 1 if isinstance(resumed, int) else 1

    def _is_safe(self) -> bool:
        """Whether the profiler may start and stop at this place.

        It may not inside a backward pass, a compiled region or an operator: torch records these from C++, where nobody
        can cut them off. It may not on a thread other than the main one: a profiler stops where it started, and who
        leaves the process with one still running crashes.
        """
        inside = _recorded_from_outside() if _is_main_thread() else "a thread that is not the main one"
        if inside is not None:
            self.switch_off(f"iterations are counted inside {inside}, where no profiler may start")
        return inside is None

    def _announce(self, iteration: int) -> None:
        """Say once who counts, from where, and what will be recorded."""
        topology = self._known_topology()
        ranks, misses = self.settings.ranks, topology.misses(self.settings.ranks)
        self.tell(
            f"{self._how} counts, now at iteration {iteration}; records {self.settings.iterations} of "
            f"{'ranks ' if ranks[0].isdigit() else ''}{ranks} below {self._out}"
        )
        if misses is not None:
            self.tell(misses)

    @_guarded
    def finish(self) -> None:
        """The job ends: close what is open, say what never came, and wait, within bounds, for files being written."""
        if self._off and self._source is None:
            return
        if self._source == "script" and self._profiler.iteration is not None and not self._off and self._is_safe():
            self._reach(self._profiler.iteration)
            self._end("exit")
        # Whoever else counts has ended its last iteration already: what is open is none.
        self.abandon()
        self._tell_what_never_came()
        if self._unkept:
            self.warn(f"{len(self._unkept)} wanted iterations were not recorded, as the disk refused them")
        if not self._writers.wait(self.settings.exit_seconds):
            self.warn(f"left before its last file was written: raise {_PREFIX}EXIT_SECONDS")

    def _tell_what_never_came(self) -> None:
        if self._off or "torch" not in sys.modules or _is_launcher():
            return
        if self._source is None:
            if self._forked:
                return
            self.tell(
                f"nothing is recorded: no iteration was counted in process {os.getpid()} ({Path(sys.argv[0]).name}), "
                f"for there was neither Megatron's train_step nor an optimizer's step; if it trains, call "
                f"traceviz_capture.step(iteration) in the loop to get {self.settings.iterations}"
            )
        elif self._reached is None:
            self.tell(f"nothing is recorded: no iteration came to its end, wanted were {self.settings.iterations}")
        elif never := self.settings.iterations.outside(*self._reached):
            self.tell(f"iterations {never} never came; {self._reached[0]} to {self._reached[1]} were counted")

    # Recording one iteration.

    def _known_topology(self) -> Topology:
        return self.topology or Topology(_world_size(), groups=_own_groups())

    def _may_record(self, wanted: int) -> bool:
        """Whether this rank is wanted and its files will find room; checked before the profiler costs anything.

        Once the disk has refused a window, no further one is paid for.
        """
        if self._chosen is None or self._chosen[0] is not self.topology:
            local_rank = _from_environment("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK") or 0
            chosen = self._known_topology().chosen(self.settings.ranks, _rank(), local_rank)
            self._chosen = (self.topology, chosen)
        if not self._chosen[1]:
            return False
        if self._refused or self._writers.refused:
            self._unkept.add(wanted)
            self.warn("the disk refused what was recorded, so nothing more is recorded in this process")
            return False
        self._unkept.add(wanted)
        self._check_room()
        self._unkept.discard(wanted)
        return True

    def _check_room(self) -> None:
        """Refuse to record what would find no room.

        Raises:
            OSError: there is none.
        """
        self._staging.mkdir(parents=True, exist_ok=True)
        if not self._tidied:
            # What a job that was killed left here.
            self._tidy(rf"rank_{_rank():04d}_iter_\d+")
            self._tidied = True
        needed = self._largest * 5 // 4
        if self._writers.written + needed // 8 > self.settings.max_bytes:
            raise OSError(f"what is written and one more window would pass {_PREFIX}MAX_BYTES, so nothing is recorded")
        if shutil.disk_usage(self._staging).free < self.settings.keep_free_bytes + needed:
            raise OSError(
                f"too few bytes are free below {self._staging} ({_PREFIX}KEEP_FREE_BYTES): nothing is recorded"
            )

    @property
    def _staging(self) -> Path:
        if not self.settings.staging:
            return self._out / ".staging"
        # Jobs that share a disk of the node have a folder each, and nothing else is in it.
        number = zlib.crc32(os.fsencode(self._out))
        return self._absolute(self.settings.staging) / f"traceviz_capture_{number:08x}"

    @property
    def _out(self) -> Path:
        return self._absolute(self.settings.out)

    def _absolute(self, path: str) -> Path:
        """Where a path was when the job started, whatever folder it goes to later."""
        with contextlib.suppress(RuntimeError):
            return self._started_in / Path(path).expanduser()
        return self._started_in / path

    def _tidy(self, stem: str) -> None:
        """Remove what a failed export left: torch writes to a temporary name of its own first."""
        for path in self._staging.iterdir():
            if re.fullmatch(rf"{stem}\.(pt\.trace\.json|memory\.pickle).*", path.name):
                path.unlink(missing_ok=True)

    def _end(self, ended_by: str) -> None:
        """Stop, and write the raw files; compression and the final names follow in a process beside the training."""
        iteration = self._profiler.iteration
        stem = f"rank_{_rank():04d}_iter_{iteration}"
        folder = self._out / f"iteration_{iteration}"
        raw, snapshot = self._staging / f"{stem}.pt.trace.json", self._staging / f"{stem}.memory.pickle"
        try:
            profiler = self._profiler.stop(lambda: self._header(iteration, ended_by))
            has_history = self._profiler.dump_history(snapshot)
            profiler.export_chrome_trace(str(raw))
            if not _is_whole(raw):
                raise OSError("torch wrote no whole trace: is the disk full?")
        except BaseException as error:
            if isinstance(error, OSError) and iteration is not None:
                self._refused = True
                self._unkept.add(iteration)
            self._profiler.give_up()
            self._tidy(stem)
            raise
        if iteration is not None:
            self._taken.add(iteration)
        size = raw.stat().st_size
        self._writers.take(raw, folder / f"{raw.name}.gz")
        if has_history:
            size += snapshot.stat().st_size
            self._writers.take(snapshot, folder / snapshot.name)
        self._largest = max(self._largest, size)

    def _header(self, iteration: int | None, ended_by: str) -> dict[str, Any]:
        """What a trace's header says of its capture; groups are this rank's alone."""
        topology, rank = self._known_topology(), _rank()
        own = [group for group in topology.groups if rank in group["ranks"]]
        node_size = _from_environment("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE") or 0
        # Where a node's ranks do not follow each other, nobody knows those of other nodes.
        in_order = node_size > 0 and topology.world_size % node_size == rank % node_size == 0
        chosen = topology.chosen_ranks(self.settings.ranks, node_size if in_order else None)
        return {
            "version": 1,
            "settings": _settings(global_batch_size=self._batches()[2]),
            "iteration": iteration,
            "iteration_from": self._how,
            "ended_by": ended_by,
            "rank": rank,
            "world_size": topology.world_size,
            "captured_ranks": None if chosen is None else str(chosen),
            "clock": self._profiler.clock,
            "order": topology.order,
            "sizes": topology.sizes,
            "microbatches": self._batches()[0],
            "coordinates": topology.coordinates(rank),
            "groups": [group for group in own if len(group["ranks"]) < topology.world_size],
        }

    def _batches(self) -> tuple[int | None, int | None, int | None]:
        """Number and size of micro-batches, and size of the whole iteration's batch, as far as Megatron gives them."""
        calculator = sys.modules.get("megatron.core.num_microbatches_calculator")

        def ask(name: str, otherwise: int | None) -> int | None:
            try:
                return int(getattr(calculator, name)())
            except (AttributeError, TypeError):
                return otherwise

        return (
            ask("get_num_microbatches", self.microbatches),
            ask("get_micro_batch_size", self.micro_batch_size),
            ask("get_current_global_batch_size", None),
        )

    def _write_topology(self) -> None:
        """Rank 0 writes the files when training starts, and again where the batches have changed."""
        if self._rank != 0:
            return
        topology, batches = self._known_topology(), self._batches()
        if not topology.groups or self._topology_written == batches:
            return
        self._topology_written = batches
        topology.microbatches, topology.micro_batch_size, topology.global_batch_size = batches
        base = self._out / f"unique_parallel_groups_{self._stamp}"
        self._writers.write(json.dumps(topology.as_json()), base.with_suffix(".json"))
        if topology.complete:
            self._writers.write(topology.as_text(), base.with_suffix(".txt"))

    # What follows ties the capture to the job.

    def install(self) -> None:
        """Watch for Megatron's and torch's modules; optimizer steps count until anything better does."""
        atexit.register(self.finish)
        os.register_at_fork(after_in_child=self._in_child)
        sys.meta_path.insert(0, _AfterImport(self))
        for name in _HOOKS:
            if name in sys.modules:
                self.hook(name, sys.modules[name])

    @_guarded
    def _in_child(self) -> None:
        """A child that a training process forks (to load data, to write a checkpoint) records nothing."""
        self._forked = True
        self._profiler.forget()
        if self._source is not None:
            self._off = True
            self._source = None
        self._writers.forget()
        self._rank = None

    @_guarded
    def hook(self, name: str, module: Any) -> None:
        """Tie the capture to a module of the job."""
        try:
            _HOOKS[name](self, module)
        except AttributeError as error:
            self.tell(f"{name} has no {error.name}: {_WITHOUT[name]}")

    def around_profiler(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A call that makes or starts a profiler; one of the job's own ends the capture.

        torch has room for one profiler at a time, and torch 2.13 crashes where another one with call stacks follows the
        steps of a first. Where another thread starts one while a window is open, which only the main thread can end,
        torch crashes as that window ends; so that one is not started, and has recorded nothing when it is stopped.
        """

        @functools.wraps(call)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if self._profiler.calling != threading.get_ident():
                if not self._off:
                    self._give_way()
                if call.__name__ != "__init__" and self._is_in_the_way(call.__name__):
                    return None
            return call(*args, **kwargs)

        return wrapper

    def around_profiler_end(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A call that stops a profiler and returns what it holds; nothing where the profiler was not started."""

        @functools.wraps(call)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._stepping, "denied", False):
                self._stepping.denied = False
                return _NothingRecorded()
            return call(*args, **kwargs)

        return wrapper

    def _is_in_the_way(self, step: str) -> bool:
        """Whether a window of the main thread is open while another thread prepares a profiler, and then enables it."""
        if step == "_prepare_profiler":
            self._stepping.denied = self._profiler.warm and not _is_main_thread()
        elif self._profiler.warm and not _is_main_thread():
            self._stepping.denied = True
        denied = getattr(self._stepping, "denied", False)
        if denied:
            self.warn("the job's profiler on another thread records nothing: a window was open when it started")
        return denied

    def watch_functions(self, function_class: Any) -> None:
        """Watch ``record_function``, for a window may end inside one."""
        self._profiler.functions.watch(function_class)

    @_guarded
    def _give_way(self) -> None:
        self.switch_off("the job has its own profiler")

    def around_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """``Optimizer.step`` as torch decorates it; counts after it, outside of what torch records of it.

        ``GradScaler.step``, too: it leaves the optimizer's out where gradients are not finite, which ends an iteration.
        """

        @functools.wraps(step)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            import torch

            if torch.compiler.is_compiling():
                return step(*args, **kwargs)
            depth = getattr(self._stepping, "depth", 0)
            self._stepping.depth = depth + 1
            try:
                result = step(*args, **kwargs)
            finally:
                self._stepping.depth = depth
            if not depth:
                self.count_optimizer_step(next((one for one in args if isinstance(one, torch.optim.Optimizer)), None))
            return result

        return wrapper

    @_guarded
    def count_optimizer_step(self, optimizer: Any) -> None:
        """A step of the first optimizer seen ends an iteration."""
        if self._is_over() or self._source not in (None, "optimizer"):
            return
        self._counts = id(optimizer) if self._counts is None else self._counts
        if self._counts == id(optimizer):
            self._counted = self._first() if self._counted is None else self._counted
            self.step(source="optimizer")

    def around_groups(self, initialize: Callable[..., Any]) -> Callable[..., Any]:
        """``initialize_model_parallel``, noting every group that it creates."""

        @functools.wraps(initialize)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            import torch.distributed as dist

            found: list[dict[str, Any]] = []
            create = dist.new_group
            dist.new_group = self._noting(create, found)
            try:
                result = initialize(*args, **kwargs)
            finally:
                dist.new_group = create
            self._keep_topology(initialize, args, kwargs, found)
            return result

        return wrapper

    def _noting(self, create: Callable[..., Any], found: list[dict[str, Any]]) -> Callable[..., Any]:
        """``torch.distributed.new_group``, its group noted; every rank calls it for every group of the job."""

        @functools.wraps(create)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            number = _group_count()
            group = create(*args, **kwargs)
            self._note(found, number, kwargs.get("ranks", args[0] if args else None), kwargs.get("group_desc"))
            return group

        return wrapper

    @_guarded
    def _note(self, found: list[dict[str, Any]], number: Any, ranks: Any, description: Any) -> None:
        members = list(range(_world_size())) if ranks is None else [int(rank) for rank in ranks]
        name = None if number is None else str(number)
        found.append({"name": name, "description": description, "ranks": members})

    @_guarded
    def _keep_topology(self, initialize: Any, args: Any, kwargs: Any, found: list[dict[str, Any]]) -> None:
        given = inspect.signature(initialize).bind(*args, **kwargs)
        given.apply_defaults()
        topology = Topology(_world_size(), order=given.arguments.get("order"), groups=found, complete=True)
        sizes = {axis: len(groups[0]) for axis in _AXES if (groups := topology.of(axis))}
        vpp = given.arguments.get("virtual_pipeline_model_parallel_size")
        instances = given.arguments.get("num_distributed_optimizer_instances")
        topology.sizes = {**sizes, "vpp": vpp or 1, "distributed_optimizer_instances": instances or 1}
        self.topology = topology

    def around_train_step(self, train_step: Callable[..., Any], source: str) -> Callable[..., Any]:
        """A framework's ``train_step``, enclosed by begin and end."""

        @functools.wraps(train_step)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            iteration = self.begin_framework(source, (*args, *kwargs.values()))
            try:
                result = train_step(*args, **kwargs)
            except BaseException:
                self.abandon()
                raise
            self.end(source, iteration)
            return result

        return wrapper

    @_guarded
    def begin_framework(self, source: str, arguments: Sequence[Any]) -> int:
        """Begin the iteration that Bridge's training state among the arguments, or else Megatron-LM's, names.

        Where neither does, calls are counted, from the resumed iteration on.
        """
        state = next((one.train_state for one in arguments if hasattr(one, "train_state")), None)
        finished = getattr(_megatrons_arguments(), "curr_iteration", None) if state is None else state.step
        how = source
        if finished is None:
            finished = self._first() - 1 if self._counted is None else self._counted
            how = f"calls of train_step ({source} does not name the iteration)"
        self._counted = int(finished) + 1
        self.begin(self._counted, source, how)
        return self._counted

    def around_schedule(self, choose: Callable[..., Any]) -> Callable[..., Any]:
        """``get_forward_backward_func``, whose schedules are given number and size of their micro-batches."""

        @functools.wraps(choose)
        def chooser(*args: Any, **kwargs: Any) -> Any:
            schedule = choose(*args, **kwargs)

            @functools.wraps(schedule)
            def wrapper(*arguments: Any, **named: Any) -> Any:
                if not named.get("forward_only"):
                    for name, found in (("microbatches", "num_microbatches"), ("micro_batch_size",) * 2):
                        if isinstance(named.get(found), int):
                            setattr(self, name, named[found])
                return schedule(*arguments, **named)

            return wrapper

        return chooser


class BridgeCallback:
    """For Megatron Bridge: ``pretrain(config, forward_step, callbacks=[BridgeCallback()])``."""

    _iteration: int | None = None

    def on_train_step_start(self, context: Any) -> None:
        """Begin the iteration that Bridge's training state names."""
        self._iteration = install().begin_framework("bridge callback", [getattr(context, "state", None)])

    def on_train_step_end(self, context: Any) -> None:
        """End it."""
        install().end("bridge callback", self._iteration)


def _hook_parallel_state(capture: Capture, module: Any) -> None:
    module.initialize_model_parallel = capture.around_groups(module.initialize_model_parallel)


def _hook_schedules(capture: Capture, module: Any) -> None:
    module.get_forward_backward_func = capture.around_schedule(module.get_forward_backward_func)
    package = sys.modules.get("megatron.core.pipeline_parallel")
    if hasattr(package, "get_forward_backward_func"):
        package.get_forward_backward_func = module.get_forward_backward_func  # type: ignore[union-attr]


def _hook_training(capture: Capture, module: Any) -> None:
    module.train_step = capture.around_train_step(module.train_step, module.__name__)


def _hook_profiler(capture: Capture, module: Any) -> None:
    for name in ("_prepare_profiler", "_enable_profiler"):
        setattr(module, name, capture.around_profiler(getattr(module, name)))
    module._disable_profiler = capture.around_profiler_end(module._disable_profiler)
    capture.watch_functions(module.record_function)


def _hook_profile(capture: Capture, module: Any) -> None:
    module.profile.__init__ = capture.around_profiler(module.profile.__init__)


def _hook_optimizers(capture: Capture, module: Any) -> None:
    decorate = module.Optimizer.profile_hook_step
    module.Optimizer.profile_hook_step = staticmethod(lambda step: capture.around_step(decorate(step)))
    # Classes that have made an optimizer already carry torch's decoration.
    waiting = [module.Optimizer]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        step = vars(kind).get("step")
        if getattr(step, "hooked", False):
            kind.step = capture.around_step(step)


def _hook_scaler(capture: Capture, module: Any) -> None:
    module.GradScaler.step = capture.around_step(module.GradScaler.step)


_OPTIMIZERS = "iterations are counted by optimizer steps"
_HOOKS: dict[str, Callable[[Capture, Any], None]] = {
    "megatron.core.parallel_state": _hook_parallel_state,
    "megatron.core.pipeline_parallel.schedules": _hook_schedules,
    "megatron.training.training": _hook_training,
    "megatron.bridge.training.train": _hook_training,
    "torch.optim.optimizer": _hook_optimizers,
    "torch.amp.grad_scaler": _hook_scaler,
    "torch.autograd.profiler": _hook_profiler,
    "torch.profiler.profiler": _hook_profile,
}
_WITHOUT = {
    "megatron.core.parallel_state": "the topology is known from torch alone",
    "megatron.core.pipeline_parallel.schedules": "the number of micro-batches is not known",
    "megatron.training.training": _OPTIMIZERS,
    "megatron.bridge.training.train": _OPTIMIZERS,
    "torch.optim.optimizer": "optimizer steps do not count",
    "torch.amp.grad_scaler": "optimizer steps that it leaves out are not counted",
    "torch.autograd.profiler": "the job must not use its own profiler",
    "torch.profiler.profiler": "the job must not use its own profiler",
}
"""What follows where a module has not the names that its hook takes hold of."""


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a module's hook right after its import, before anyone can take names out of it."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """The spec that the other finders give, with the hook behind its execution."""
        if name not in _HOOKS:
            return None
        finders = [getattr(finder, "find_spec", None) for finder in sys.meta_path if finder is not self]
        found = (find(name, path, target) for find in finders if find is not None)
        spec: Any = next((one for one in found if one is not None), None)
        execute = getattr(getattr(spec, "loader", None), "exec_module", None)
        if execute is None:
            return spec

        def exec_module(module: Any) -> None:
            execute(module)
            self._capture.hook(name, module)

        try:
            spec.loader.exec_module = exec_module
        except AttributeError:
            self._capture.warn(f"{name} is loaded in a way that cannot be watched: {_WITHOUT[name]}")
        return spec


def clock_pair() -> dict[str, int]:
    """The monotonic and the UTC clock at one moment, ns, and how long reading both took at the most."""
    best: tuple[int, int, int] | None = None
    for _ in range(5):
        before, utc, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        if best is None or after - before < best[0]:
            best = (after - before, (before + after) // 2, utc)
    assert best is not None
    return {"monotonic_ns": best[1], "utc_ns": best[2], "uncertainty_ns": best[0]}


def _distributed() -> Any:
    """torch.distributed where it is initialized, else None."""
    distributed = sys.modules.get("torch.distributed")
    # While torch is being imported, the module is there before its names are.
    initialized = getattr(distributed, "is_initialized", None)
    return distributed if initialized is not None and initialized() else None


def _current_folder() -> Path:
    """The current folder, absolute unless it is gone."""
    with contextlib.suppress(OSError):
        return Path.cwd()
    return Path()


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _recorded_from_outside() -> str | None:
    """What torch is running around this call and would record, in words; None where it is nothing."""
    task = getattr(getattr(sys.modules.get("torch"), "_C", None), "_current_graph_task_id", None)
    if task is not None and task() != -1:
        return "a backward pass"
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if "torch" in path:
            for part, words in _RECORDED_PARTS.items():
                if part in path:
                    return words
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _own_groups() -> list[dict[str, Any]]:
    """The groups of this rank, as torch lists them; empty outside a distributed job."""
    return [
        {"name": one.get("pg_name"), "description": one.get("pg_desc"), "ranks": list(one.get("ranks") or ())}
        for one in _listed_groups()
    ]


def _listed_groups() -> list[Any]:
    distributed = _distributed()
    if distributed is None:
        return []
    listed: list[Any] = getattr(distributed.distributed_c10d, "_get_all_pg_configs", list)()
    return listed


def _uses_gloo() -> bool:
    return any("gloo" in str(one.get("backend_config")) for one in _listed_groups())


def _let_gloo_rest() -> None:
    """Wait until gloo's threads sleep.

    Such a thread first wakes whoever waits for its operation and then notes the operation's end in the window's buffer;
    on a busy machine any time may pass in between, and a window that stops there frees the buffer under its hands.
    """
    if not _uses_gloo():
        return
    deadline = time.monotonic() + _SECONDS_GLOO
    asleep = 0
    while asleep < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
        asleep = 0 if "R" in _states_of_threads(_GLOO_THREADS) else asleep + 1


def _states_of_threads(name: str) -> set[str]:
    """States, in the letters of Linux, of this process's threads of that name; empty where the system does not say."""
    found = set()
    for path in Path("/proc/self/task").glob("*/stat"):
        try:
            thread, _, rest = path.read_text().rpartition(")")
        except OSError:  # ended meanwhile
            continue
        if thread.partition("(")[2] == name:
            found.add(rest.split()[0])
    return found


def _group_count() -> Any:
    """The number that torch will give to the next group; None where it does not say."""
    module = sys.modules.get("torch.distributed.distributed_c10d")
    return getattr(getattr(module, "_world", None), "group_count", None)


def _megatrons_arguments() -> Any:
    """Megatron-LM's arguments, None without Megatron-LM or before it has parsed them."""
    get = getattr(sys.modules.get("megatron.training"), "get_args", None)
    try:
        return None if get is None else get()
    except (AssertionError, AttributeError):
        return None


def _settings(environment: Mapping[str, str] = os.environ, *, global_batch_size: int | None = None) -> dict[str, str]:
    """Settings that a job's speed may depend on, by name: of the environment, of Megatron-LM, and torch's version.

    Args:
        global_batch_size: of this iteration, where Megatron gives it: it may still ramp up to that of the arguments.
    """
    arguments = _megatrons_arguments()
    given: dict[str, Any] = {name: environment[name] for name in _KEPT_VARIABLES if name in environment}
    given |= {name: getattr(arguments, name) for name in _KEPT_ARGUMENTS if getattr(arguments, name, None) is not None}
    given |= {name: True for name in _NOTED_ARGUMENTS if getattr(arguments, name, None)}
    if "global_batch_size" in given and global_batch_size is not None:
        given["global_batch_size"] = global_batch_size
    elif getattr(arguments, "rampup_batch_size", None):
        given.pop("global_batch_size", None)
    given["torch"] = getattr(sys.modules.get("torch"), "__version__", None)
    plain = {name: _as_text(value) for name, value in given.items()}
    return {name: value for name, value in plain.items() if _SETTING.fullmatch(value)}


def _as_text(value: Any) -> str:
    """A value on one line, "" for what is none of a setting: a list has whole numbers alone."""
    if isinstance(value, list) and all(type(one) is int for one in value):
        return f"[{','.join(map(str, value))}]"
    return str(value) if isinstance(value, bool | int | float | str) else ""


def _from_environment(*names: str) -> int | None:
    given = (os.environ.get(name, "").strip() for name in names)
    return next((int(text) for text in given if re.fullmatch(r"\d{1,9}", text, re.ASCII)), None)


def _rank() -> int:
    distributed = _distributed()
    if distributed is not None:
        return int(distributed.get_rank())
    return _from_environment("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK") or 0


def _world_size() -> int:
    distributed = _distributed()
    if distributed is not None:
        return int(distributed.get_world_size())
    return _from_environment("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE") or 1


def _is_launcher() -> bool:
    """Whether this process starts the ranks and is none itself, or helps one."""
    agent = "torch.distributed.launcher.api" in sys.modules and "TORCHELASTIC_RUN_ID" not in os.environ
    processes = sys.modules.get("multiprocessing.process")
    return agent or (processes is not None and processes.parent_process() is not None)


def _is_whole(raw: Path) -> bool:
    """Whether a trace has its last brace: a full disk cuts files short without an error from torch."""
    if not raw.is_file():
        return False
    with raw.open("rb") as file:
        file.seek(max(0, raw.stat().st_size - 64))
        return file.read().rstrip().endswith(b"}")


_installed: Capture | None = None


def install(settings: CaptureSettings | None = None) -> Capture:
    """Switch the capture on, once; without iterations to record it does nothing."""
    global _installed  # noqa: PLW0603
    if _installed is None:
        said = [] if settings is not None else odd_variables()
        try:
            settings = settings or CaptureSettings.from_environment()
        except ValueError as error:
            settings, said = CaptureSettings(), [f"nothing is recorded: {error}", *said]
        _installed = Capture(settings)
        for words in said:
            _installed.tell(words)
        if settings.iterations:
            _installed.install()
        else:
            given = [name for name in os.environ if name.startswith(_PREFIX)]
            if given and not said:
                _installed.tell(f"nothing is recorded: {_PREFIX}ITERATIONS is not set")
    return _installed


def step(iteration: int | None = None) -> None:
    """For a loop of one's own: the first line of every iteration, with the number that the job logs."""
    install().step(iteration)


def main() -> None:
    """Run a script or a module with the capture on: ``python -m traceviz_capture [-m] SCRIPT ARGUMENTS…``."""
    is_module = sys.argv[1:2] == ["-m"]
    arguments = sys.argv[1 + is_module :]
    if not arguments or arguments[0].startswith("-"):
        sys.exit("usage: python -m traceviz_capture [-m MODULE | SCRIPT] [ARGUMENTS...]")
    sys.modules.setdefault("traceviz_capture", sys.modules[__name__])
    sys.argv = arguments
    if is_module:
        sys.path.insert(0, str(Path.cwd()))
        if not _is_module(arguments[0]):
            sys.exit(f"traceviz_capture: there is no module {arguments[0]} to run")
        install()
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        if not Path(arguments[0]).exists():
            sys.exit(f"traceviz_capture: there is no script {arguments[0]} to run")
        # As "python SCRIPT" has it: its folder, not the current one, which python -m has put first.
        if not getattr(sys.flags, "safe_path", False):
            sys.path[0] = str(Path(arguments[0]).resolve().parent)
        install()
        runpy.run_path(arguments[0], run_name="__main__")


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


if __name__ == "__main__":
    main()

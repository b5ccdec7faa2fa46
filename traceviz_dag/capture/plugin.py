"""Records chosen training iterations of a Megatron or plain PyTorch job, without changing Megatron.

One file, standard library and the job's own torch. It never raises into the job, never talks to other ranks and writes
within bounds; what goes wrong is a line on stderr. Switch it on in one of four ways (traceviz_capture is this file):
a line in the script (``import traceviz_capture; traceviz_capture.install()``), ``python -m traceviz_capture SCRIPT …``,
those two statements in a sitecustomize.py on PYTHONPATH, or ``callbacks=[traceviz_capture.BridgeCallback()]`` with
Megatron Bridge. A loop of one's own may call ``traceviz_capture.step(iteration)`` first in every iteration.

TRACEVIZ_CAPTURE_ITERATIONS   120,500-501   iterations as the job logs them; nothing is recorded without it
TRACEVIZ_CAPTURE_OUT          folder of the run, default traceviz_capture
TRACEVIZ_CAPTURE_STAGING      folder for raw traces until they are compressed, default OUT/.staging; name a disk of the
                              node where OUT is a network's: what the training waits for goes there alone
TRACEVIZ_CAPTURE_RANKS        replica (default: one complete model), all, stage, node, or numbers like 0,4-7
TRACEVIZ_CAPTURE_STACKS, _SHAPES, _MEMORY   1 or 0: call stacks (1), tensor shapes (1), allocations (0)
TRACEVIZ_CAPTURE_WARMUP       iterations that the profiler runs before it records, default 1
TRACEVIZ_CAPTURE_FIRST        number of the process's first iteration, where nothing else tells it; default 1
TRACEVIZ_CAPTURE_MAX_BYTES    most that a rank writes, default 8 GiB; _KEEP_FREE_BYTES: disk left free, default 1 GiB
TRACEVIZ_CAPTURE_EXIT_SECONDS longest wait at exit for files still being compressed, default 30
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.abc
import inspect
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PREFIX = "TRACEVIZ_CAPTURE_"
_WARNINGS = 20
_WRITER = """
import gzip, os, shutil, sys
source, target = sys.argv[1:3]
folder, name = os.path.split(target)
hidden = os.path.join(folder, f".{name}.{os.getpid()}")
text = b"" if source else sys.stdin.buffer.read()
try:
    os.nice(10)
    os.makedirs(folder, exist_ok=True)
    if source:
        with open(source, "rb") as file, gzip.open(hidden, "wb", compresslevel=3) as packed:
            shutil.copyfileobj(file, packed, 1 << 20)
    else:
        with open(hidden, "wb") as file:
            file.write(text)
    os.replace(hidden, target)
except OSError as error:
    sys.exit(f"{type(error).__name__}: {error}")
finally:
    for path in filter(os.path.exists, (hidden, source)):
        os.unlink(path)
"""
"""Compresses a file, or writes its standard input; under a hidden name first, so that no reader sees half a file."""
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
class Settings:
    """What to record and where; see the variables above."""

    iterations: frozenset[int] = frozenset()
    out: str = "traceviz_capture"
    staging: str = ""
    ranks: str = "replica"
    stacks: bool = True
    shapes: bool = True
    memory: bool = False
    warmup: int = 1
    first: int = 1
    max_bytes: int = 8 << 30
    keep_free_bytes: int = 1 << 30
    exit_seconds: float = 30.0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """The settings that TRACEVIZ_CAPTURE_* variables give.

        Raises:
            ValueError: a variable does not hold what it should.
        """
        given = {name[len(_PREFIX) :].lower(): value for name, value in environment.items() if name.startswith(_PREFIX)}
        settings: dict[str, Any] = {name: given[name] for name in ("out", "staging", "ranks") if given.get(name)}
        settings["iterations"] = frozenset(numbers(given.get("iterations", "")))
        for name in ("stacks", "shapes", "memory"):
            if name in given:
                settings[name] = given[name].strip().lower() not in ("", "0", "false", "no", "off")
        for name in ("warmup", "first", "max_bytes", "keep_free_bytes"):
            if name in given:
                settings[name] = int(given[name])
        if "exit_seconds" in given:
            settings["exit_seconds"] = float(given["exit_seconds"])
        if settings.get("ranks", "all") not in ("replica", "all", "stage", "node"):
            numbers(settings["ranks"])
        return cls(**settings)


def numbers(text: str) -> list[int]:
    """Numbers of a list such as ``0,4-7``.

    Raises:
        ValueError: the text is no such list.
    """
    found: list[int] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None:
            raise ValueError(f"{part!r} is no number and no range like 4-7")
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return found


@dataclass
class Topology:
    """The job's process groups, as Megatron creates them.

    Attributes:
        groups: name, description and members (in group order) of each.
        complete: every group of the job is there; else those of this rank alone.
    """

    world_size: int
    sizes: dict[str, int] = field(default_factory=dict)
    order: str | None = None
    groups: list[dict[str, Any]] = field(default_factory=list)
    complete: bool = False
    microbatches: int | None = None

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

    def chosen(self, wanted: str, rank: int, local_rank: int) -> bool:
        """Whether a rank is among those to record."""
        if wanted == "node":
            return local_rank == 0
        if wanted == "stage" and self.of("pp"):
            return any(rank in group for group in self.of("pp") if 0 in group)
        if wanted == "replica" and self.of("dp"):
            models = self.replicas()
            return rank in models[0] if models else self.coordinates(rank).get("dp") == 0
        return wanted in ("all", "replica", "stage") or rank in numbers(wanted)

    def as_json(self) -> dict[str, Any]:
        """Everything known, for the topology file."""
        return {
            "format": "traceviz topology",
            "version": 1,
            "world_size": self.world_size,
            "sizes": self.sizes,
            "order": self.order,
            "microbatches": self.microbatches,
            "complete": self.complete,
            "groups": self.groups,
            "replicas": self.replicas(),
        }

    def as_text(self) -> str:
        """The part of it that TraceViz's text file can hold, in its form."""
        rule = "-" * 50
        lines = ["=" * 80, "MEGATRON PARALLEL CONFIGURATION", "=" * 80, time.strftime("Timestamp: %Y-%m-%d %H:%M:%S")]
        lines += [f"{axis.upper()} Size: {self.sizes.get(axis, 1)}" for axis in ("tp", "pp", "cp", "ep")]
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


def _guarded(*, abandon: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Turn every exception of a method into a warning: a capture must never cost the job a training step.

    Args:
        abandon: an open recording is given up too.
    """

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def wrapper(self: Capture, *args: Any, **kwargs: Any) -> Any:
            try:
                return method(self, *args, **kwargs)
            except Exception as error:  # noqa: BLE001
                self.warn(f"{method.__name__.strip('_')} failed: {type(error).__name__}: {error}")
                if abandon:
                    self.abandon()
                return None

        return wrapper

    return decorate


class _Writers:
    """Writes files in processes of their own, one after the other, beside the training.

    A thread would be simpler, but torch's call stacks reach into every thread that lives while a window is recorded.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._waiting: deque[tuple[str, Path, bytes]] = deque()
        self._running: tuple[subprocess.Popen[bytes], Path] | None = None
        self.written = 0

    def compress(self, raw: Path, target: Path) -> None:
        """Compress a file that is removed afterwards."""
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
        with process:
            words = process.stderr.read().decode(errors="replace").strip() if process.stderr is not None else ""
        if process.returncode:
            self._warn(f"{target.name} is not written: {words.splitlines()[-1] if words else process.returncode}")
        else:
            self.written += target.stat().st_size
        return True

    def _begin(self, source: str, target: Path, text: bytes) -> None:
        command = [sys.executable, "-I", "-S", "-c", _WRITER, source, str(target)]
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        try:
            process = subprocess.Popen(
                command, stdin=nothing if source else pipe, stdout=nothing, stderr=pipe, start_new_session=True
            )
            self._running = process, target
            if process.stdin is not None:
                with process.stdin:
                    process.stdin.write(text)
        except OSError as error:
            self._warn(f"{target.name} is not written: {type(error).__name__}: {error}")
            if source:
                Path(source).unlink(missing_ok=True)


class Capture:
    """Records the wanted iterations of this process.

    ``begin(iteration)`` and ``end()`` enclose an iteration; ``step(iteration)`` alone does where nothing else follows.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.topology: Topology | None = None
        self.microbatches: int | None = None
        self._profiler: Any = None
        self._recording: int | None = None
        self._annotation: Any = None
        self._clock: dict[str, Any] = {}
        self._source: str | None = None
        self._counted = settings.first - 1
        self._counts: Any = None
        self._stamp = time.strftime("%Y%m%d_%H%M%S")
        self._topology_written: Any = None
        self._writers = _Writers(self.warn)
        self._largest = self._warned = 0
        self._tidied = self._calling = self._foreign = False
        self._chosen: tuple[Topology | None, bool] | None = None

    def warn(self, words: str) -> None:
        """Say what went wrong on stderr; a job that fails in every iteration is heard only so often."""
        self._warned += 1
        if self._warned <= _WARNINGS:
            with contextlib.suppress(OSError, ValueError, AttributeError):
                sys.stderr.write(f"traceviz_capture: rank {_rank()}: {words}\n")

    @_guarded(abandon=True)
    def begin(self, iteration: int, source: str = "script") -> None:
        """An iteration begins; ``source`` names who counts. Other counters are ignored from then on."""
        self._writers.tend()
        if self._source not in (None, source, "optimizer") or self._foreign:
            return
        self._source = source
        if self._recording is not None:
            self.end(source)
        wanted = self.settings.iterations
        ahead = any(number in wanted for number in range(iteration, iteration + self.settings.warmup + 1))
        if ahead and self._profiler is None and self._may_record():
            self._prepare()
        if iteration in wanted and self._profiler is not None:
            self._start(iteration)

    @_guarded(abandon=True)
    def end(self, source: str = "script", ended_by: str = "iteration") -> None:
        """The iteration ends: stop recording and write what was recorded."""
        if self._recording is None or self._source != source:
            return
        profiler, iteration = self._profiler, self._recording
        self._annotation.__exit__(None, None, None)
        self._clock["end"] = clock_pair()
        profiler.add_metadata_json("traceviz_capture", json.dumps(self._header(iteration, ended_by)))
        with self._own_call():
            profiler.stop_trace()
        self._profiler = self._recording = self._annotation = None
        self._export(profiler, iteration)

    def step(self, iteration: int | None = None, source: str = "script") -> None:
        """The last iteration has ended, the given one (default: the next) begins."""
        self._counted = self._counted + 1 if iteration is None else iteration
        self.end(source)
        self.begin(self._counted, source)

    @_guarded(abandon=True)
    def finish(self) -> None:
        """The job ends: close what is open and wait, within bounds, for files still being written."""
        if self._source == "script":
            self.end("script", ended_by="exit")
        else:
            # Whoever else counts has ended its last iteration already: what is open is none.
            self.abandon()
        if not self._writers.wait(self.settings.exit_seconds):
            self.warn("left before its last file was written: raise TRACEVIZ_CAPTURE_EXIT_SECONDS")

    def abandon(self) -> None:
        """Give up an open recording, so that the profiler does not go on."""
        profiler, recording, annotation = self._profiler, self._recording, self._annotation
        self._profiler = self._recording = self._annotation = None
        try:
            if annotation is not None:
                annotation.__exit__(None, None, None)
            if profiler is not None:
                with self._own_call():
                    # One that only warms up cannot be stopped: torch crashes on it.
                    if recording is None:
                        profiler.start_trace()
                    profiler.stop_trace()
        except Exception as error:  # noqa: BLE001
            self.warn(f"the profiler did not stop: {error}")

    @contextlib.contextmanager
    def _own_call(self) -> Iterator[None]:
        self._calling = True
        try:
            yield
        finally:
            self._calling = False

    def around_profiler(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A call that makes or starts a profiler; one of the job's own ends the capture.

        torch has room for one profiler at a time, and torch 2.13 crashes where another one with call stacks follows the
        steps of a first.
        """

        @functools.wraps(call)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not self._calling and not self._foreign:
                self._foreign = True
                self.warn("the job has a profiler of its own, so nothing more is recorded here")
                self.abandon()
            return call(*args, **kwargs)

        return wrapper

    def _may_record(self) -> bool:
        """Whether this rank is wanted and its files will find room; checked before the profiler costs anything."""
        topology = self.topology or Topology(_world_size(), groups=_own_groups())
        self._write_topology(topology)
        if self._chosen is None or self._chosen[0] is not self.topology:
            local_rank = int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")))
            self._chosen = (self.topology, topology.chosen(self.settings.ranks, _rank(), local_rank))
        if not self._chosen[1]:
            return False
        self._staging.mkdir(parents=True, exist_ok=True)
        if not self._tidied:
            # What a job that was killed left here.
            self._tidy(f"rank_{_rank():04d}_*")
            self._tidied = True
        needed = self._largest * 5 // 4
        if self._writers.written + needed // 8 > self.settings.max_bytes:
            raise OSError(f"{self._writers.written} bytes written, more would pass TRACEVIZ_CAPTURE_MAX_BYTES")
        free = shutil.disk_usage(self._staging).free
        if free < self.settings.keep_free_bytes + needed:
            raise OSError(f"only {free} bytes are free below {self._staging}, so nothing is recorded")
        return True

    @property
    def _staging(self) -> Path:
        return Path(self.settings.staging or Path(self.settings.out, ".staging"))

    def _tidy(self, pattern: str) -> None:
        """Remove what a failed export left: torch writes to a temporary name of its own first."""
        for path in self._staging.glob(pattern):
            path.unlink(missing_ok=True)

    def _prepare(self) -> None:
        from torch import cuda, profiler

        activities = [profiler.ProfilerActivity.CPU]
        if cuda.is_available():
            activities.append(profiler.ProfilerActivity.CUDA)
        with self._own_call():
            recorder = profiler.profile(
                activities=activities,
                with_stack=self.settings.stacks,
                record_shapes=self.settings.shapes,
                profile_memory=self.settings.memory,
            )
            recorder.prepare_trace()
        self._profiler = recorder

    def _start(self, iteration: int) -> None:
        from torch.profiler import record_function

        with self._own_call():
            self._profiler.start_trace()
        self._recording = iteration
        self._clock = {"start": clock_pair()}
        self._annotation = record_function(f"ProfilerStep#{iteration}")
        self._annotation.__enter__()

    def _header(self, iteration: int, ended_by: str) -> dict[str, Any]:
        """What a trace's header says of its capture; groups are this rank's alone."""
        topology, rank = self.topology or Topology(_world_size(), groups=_own_groups()), _rank()
        own = [group for group in topology.groups if rank in group["ranks"]]
        return {
            "version": 1,
            "iteration": iteration,
            "iteration_from": self._source,
            "ended_by": ended_by,
            "rank": rank,
            "world_size": topology.world_size,
            "clock": self._clock,
            "order": topology.order,
            "sizes": topology.sizes,
            "microbatches": self._microbatch_count(),
            "coordinates": topology.coordinates(rank),
            "groups": [group for group in own if len(group["ranks"]) < topology.world_size],
        }

    def _export(self, profiler: Any, iteration: int) -> None:
        """Write the raw trace; compression and the final name follow in a process beside the training."""
        name = f"rank_{_rank():04d}_iter_{iteration}.pt.trace.json"
        raw = self._staging / name
        try:
            profiler.export_chrome_trace(str(raw))
            if not _is_whole(raw):
                raise OSError("torch wrote no whole trace: is the disk full?")
        except BaseException:
            self._tidy(f"{name}*")
            raise
        size = raw.stat().st_size
        self._largest = max(self._largest, size)
        target = Path(self.settings.out, f"iteration_{iteration}", f"{name}.gz")
        self._writers.compress(raw, target)

    def _microbatch_count(self) -> int | None:
        calculator = sys.modules.get("megatron.core.num_microbatches_calculator")
        try:
            return int(calculator.get_num_microbatches()) if calculator is not None else self.microbatches
        except (AttributeError, TypeError):
            return self.microbatches

    @_guarded(abandon=False)
    def _write_topology(self, topology: Topology) -> None:
        """Rank 0 writes the files, again where the number of micro-batches has changed."""
        topology.microbatches = self._microbatch_count()
        if _rank() != 0 or not topology.groups or self._topology_written == (topology.microbatches,):
            return
        self._topology_written = (topology.microbatches,)
        base = Path(self.settings.out, f"unique_parallel_groups_{self._stamp}")
        self._writers.write(json.dumps(topology.as_json()), base.with_suffix(".json"))
        if topology.complete:
            self._writers.write(topology.as_text(), base.with_suffix(".txt"))

    # What follows ties the capture to the job.

    def install(self) -> None:
        """Watch for Megatron's modules, and count optimizer steps until anything better counts."""
        atexit.register(self.finish)
        sys.meta_path.insert(0, _AfterImport(self))
        for name in _HOOKS:
            if name in sys.modules:
                self.hook(name, sys.modules[name])

    @_guarded(abandon=False)
    def hook(self, name: str, module: Any) -> None:
        """Tie the capture to a module of the job."""
        _HOOKS[name](self, module)

    @_guarded(abandon=True)
    def count_optimizer_step(self, optimizer: Any) -> None:
        """A step of the first optimizer seen ends an iteration."""
        if self._source not in (None, "optimizer"):
            return
        self._counts = self._counts if self._counts is not None else id(optimizer)
        if self._counts == id(optimizer):
            if self._source is None:
                self._counted += 1
            self.step(source="optimizer")

    def around_groups(self, initialize: Callable[..., Any]) -> Callable[..., Any]:
        """``initialize_model_parallel``, noting every group that it creates."""

        @functools.wraps(initialize)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            import torch.distributed as dist

            found: list[dict[str, Any]] = []
            create = dist.new_group
            dist.new_group = functools.partial(self._noting, create, found)
            try:
                result = initialize(*args, **kwargs)
            finally:
                dist.new_group = create
            self._keep_topology(inspect.signature(initialize), args, kwargs, found)
            return result

        return wrapper

    def _noting(self, create: Callable[..., Any], found: list[dict[str, Any]], *args: Any, **kwargs: Any) -> Any:
        """``torch.distributed.new_group``, its group noted; every rank calls it for every group of the job."""
        number = getattr(
            getattr(sys.modules["torch.distributed.distributed_c10d"], "_world", None), "group_count", None
        )
        group = create(*args, **kwargs)
        self._note(found, number, kwargs.get("ranks", args[0] if args else None), kwargs.get("group_desc"))
        return group

    @_guarded(abandon=False)
    def _note(self, found: list[dict[str, Any]], number: Any, ranks: Any, description: Any) -> None:
        members = list(range(_world_size())) if ranks is None else [int(rank) for rank in ranks]
        name = None if number is None else str(number)
        found.append({"name": name, "description": description, "ranks": members})

    @_guarded(abandon=False)
    def _keep_topology(self, signature: Any, args: Any, kwargs: Any, found: list[dict[str, Any]]) -> None:
        given = signature.bind(*args, **kwargs)
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
            self.begin_framework(source, (*args, *kwargs.values()))
            try:
                result = train_step(*args, **kwargs)
            except BaseException:
                self.abandon()
                raise
            self.end(source)
            return result

        return wrapper

    @_guarded(abandon=True)
    def begin_framework(self, source: str, arguments: Sequence[Any]) -> None:
        """Begin the iteration that Bridge's training state among the arguments, or else Megatron-LM's, names."""
        state = next((one.train_state for one in arguments if hasattr(one, "train_state")), None)
        if state is not None:
            finished = int(state.step)
        else:
            finished = int(sys.modules["megatron.training"].get_args().curr_iteration)
        self.begin(finished + 1, source)

    def around_schedule(self, choose: Callable[..., Any]) -> Callable[..., Any]:
        """``get_forward_backward_func``, whose schedules are told their number of micro-batches."""

        @functools.wraps(choose)
        def chooser(*args: Any, **kwargs: Any) -> Any:
            schedule = choose(*args, **kwargs)

            @functools.wraps(schedule)
            def wrapper(*arguments: Any, **named: Any) -> Any:
                if not named.get("forward_only") and isinstance(named.get("num_microbatches"), int):
                    self.microbatches = named["num_microbatches"]
                return schedule(*arguments, **named)

            return wrapper

        return chooser


class BridgeCallback:
    """For Megatron Bridge: ``pretrain(config, forward_step, callbacks=[BridgeCallback()])``."""

    def on_train_step_start(self, context: Any) -> None:
        """Begin the iteration that Bridge's training state names."""
        install().begin_framework("bridge callback", [context.state])

    def on_train_step_end(self, context: Any) -> None:
        """End it."""
        install().end("bridge callback")


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


def _hook_profile(capture: Capture, module: Any) -> None:
    module.profile.__init__ = capture.around_profiler(module.profile.__init__)


def _hook_optimizers(capture: Capture, module: Any) -> None:
    module.register_optimizer_step_post_hook(lambda optimizer, *_: capture.count_optimizer_step(optimizer))


_HOOKS: dict[str, Callable[[Capture, Any], None]] = {
    "megatron.core.parallel_state": _hook_parallel_state,
    "megatron.core.pipeline_parallel.schedules": _hook_schedules,
    "megatron.training.training": _hook_training,
    "megatron.bridge.training.train": _hook_training,
    "torch.optim.optimizer": _hook_optimizers,
    "torch.autograd.profiler": _hook_profiler,
    "torch.profiler.profiler": _hook_profile,
}


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
            self._capture.warn(f"{name} is loaded in a way that cannot be watched")
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


def _own_groups() -> list[dict[str, Any]]:
    """The groups of this rank, as torch lists them; empty outside a distributed job."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return []
    listed: list[Any] = getattr(distributed.distributed_c10d, "_get_all_pg_configs", list)()
    return [
        {"name": one.get("pg_name"), "description": one.get("pg_desc"), "ranks": list(one.get("ranks") or ())}
        for one in listed
    ]


def _rank() -> int:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")))


def _world_size() -> int:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    return int(os.environ.get("WORLD_SIZE", os.environ.get("SLURM_NTASKS", "1")))


def _is_whole(raw: Path) -> bool:
    """Whether a trace has its last brace: a full disk cuts files short without an error from torch."""
    if not raw.is_file():
        return False
    with raw.open("rb") as file:
        file.seek(max(0, raw.stat().st_size - 64))
        return file.read().rstrip().endswith(b"}")


_installed: Capture | None = None


def install(settings: Settings | None = None) -> Capture:
    """Switch the capture on, once; without iterations to record it does nothing."""
    global _installed  # noqa: PLW0603
    if _installed is None:
        fault = None
        try:
            settings = settings or Settings.from_environment()
        except ValueError as error:
            settings, fault = Settings(), f"nothing is recorded: {error}"
        _installed = Capture(settings)
        if fault is not None:
            _installed.warn(fault)
        if settings.iterations:
            _installed.install()
    return _installed


def step(iteration: int | None = None) -> None:
    """For a loop of one's own: the first line of every iteration, with the number that the job logs."""
    install().step(iteration)


def main() -> None:
    """Run a script with the capture on: ``python -m traceviz_capture SCRIPT ARGUMENTS…``."""
    if len(sys.argv) < 2:
        sys.exit("usage: traceviz_capture.py SCRIPT [ARGUMENTS...]")
    sys.modules.setdefault("traceviz_capture", sys.modules[__name__])
    install()
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()

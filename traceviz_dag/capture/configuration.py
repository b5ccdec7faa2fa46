"""What to capture of a job, checked before the job starts: every refusal says what is wrong, why, and what to do."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from traceviz_dag.capture.sizes import Estimate, estimate, readable_bytes, readable_seconds
from traceviz_dag.classify.topology.parallel_sizes import DEFAULT_ORDER, ParallelSizes
from traceviz_dag.classify.topology.rank_grids import compute_grids
from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.read.limits import MOST_RANKS
from traceviz_dag.read.toml_file import parse_json, parse_toml, read_text

RankChoice = Literal["replica", "all", "stage", "node"]
_MOST = 10**9
_LARGEST_BYTES = 100 * 10**9
_NSYS_TRACES = ("cuda", "nvtx", "osrt", "cudnn", "cublas", "mpi", "ucx", "cuda-hw", "none")


class Job(BaseModel):
    """The job to be captured, as far as the capture depends on it.

    Attributes:
        world_size, node_size: ranks in all and on each node.
        layers, microbatches: of the whole model, and of a pipeline in one iteration; they size the estimate.
        save_interval: a checkpoint every so many iterations; None where none is written.
        fault_tolerance: the job runs under the fault-tolerance launcher.
        command: how the training script is called, without the profiler's arguments.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    world_size: int = Field(default=8, ge=1, le=MOST_RANKS)
    node_size: int = Field(default=8, ge=1, le=MOST_RANKS)
    tp: int = Field(default=1, ge=1, le=_MOST)
    cp: int = Field(default=1, ge=1, le=_MOST)
    pp: int = Field(default=1, ge=1, le=_MOST)
    ep: int = Field(default=1, ge=1, le=_MOST)
    etp: int | None = Field(default=None, ge=1, le=_MOST)
    vpp: int | None = Field(default=None, ge=1, le=_MOST)
    order: str = DEFAULT_ORDER
    layers: int = Field(default=32, ge=1, le=_MOST)
    microbatches: int = Field(default=8, ge=1, le=_MOST)
    save_interval: int | None = Field(default=None, ge=1, le=_MOST)
    fault_tolerance: bool = False
    command: str = "pretrain_gpt.py"

    def sizes(self) -> ParallelSizes:
        """The sizes of the rank grids.

        Raises:
            UsageError: Megatron would refuse them.
        """
        return ParallelSizes.of(
            world=self.world_size,
            tp=self.tp,
            cp=self.cp,
            pp=self.pp,
            ep=self.ep,
            etp=self.etp,
            vpp=self.vpp,
            order=self.order,
        )

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return -(-self.world_size // self.node_size)


STARTER = """\
use_pytorch_profiler = true       # or use_nsys_profiler; never both
profile_step_start = 120          # the first iteration to record
profile_step_end = 122            # the first one after it
profile_ranks = "replica"
output_folder = "traces"

[job]
world_size = 8
tp = 2
pp = 2
layers = 32
microbatches = 8
save_interval = 500
command = "pretrain_gpt.py --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
"""
"""A configuration to begin with, as TOML."""


class ProfilingConfig(BaseModel):
    """What to record, on which ranks, in which iterations; names as in Megatron Bridge.

    Attributes:
        profile_step_start, profile_step_end: the first iteration to record and the first not to record any more.
        profile_ranks: one complete model (replica, our default; Bridge's is rank 0, Megatron-LM's all ranks), all, one
            of each pipeline stage (stage), the first of each node (node), or a list of ranks.
        wait_steps: iterations before the profiler starts; by default as many as leave room for the warm-up.
        warmup_steps: iterations with the profiler running whose records are thrown away.
        execution_traces: Chakra execution traces of torch.profiler, for replay, beside the traces.
        accept_size: record however large the estimate is.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    use_nsys_profiler: bool = False
    use_pytorch_profiler: bool = False
    profile_step_start: int = Field(default=10, ge=0, le=_MOST)
    profile_step_end: int = Field(default=12, ge=0, le=_MOST)
    profile_ranks: RankChoice | tuple[Annotated[int, Field(ge=0, le=_MOST)], ...] = "replica"
    record_shapes: bool = True
    with_stack: bool = True
    record_memory_history: bool = False
    memory_snapshot_path: str = "snapshot.pickle"
    execution_traces: bool = False
    nsys_trace: tuple[str, ...] = ("cuda", "nvtx")
    nsys_gpu_metrics: bool = False
    nvtx_ranges: bool = False
    wait_steps: int | None = Field(default=None, ge=0, le=_MOST)
    warmup_steps: int = Field(default=1, ge=0, le=_MOST)
    output_folder: str = "traces"
    accept_size: bool = False
    job: Job = Job()

    @model_validator(mode="after")
    def _sound(self) -> ProfilingConfig:
        for fault in (
            self._profiler_fault,
            self._step_fault,
            self._rank_fault,
            self._checkpoint_fault,
            self._size_fault,
        ):
            words = fault()
            if words is not None:
                raise ValueError(words)
        return self

    @property
    def iterations(self) -> range:
        """The iterations recorded, as the log counts them; Megatron starts nsys one later than the PyTorch profiler."""
        later = int(self.use_nsys_profiler)
        return range(self.profile_step_start + later, self.profile_step_end + later)

    @property
    def wait(self) -> int:
        """Iterations before the warm-up."""
        return max(self.profile_step_start - self.warmup_steps, 0) if self.wait_steps is None else self.wait_steps

    def ranks(self) -> tuple[int, ...]:
        """The ranks that record, ascending."""
        if not isinstance(self.profile_ranks, str):
            return tuple(sorted(set(self.profile_ranks)))
        if self.profile_ranks == "all":
            return tuple(range(self.job.world_size))
        if self.profile_ranks == "node":
            return tuple(range(0, self.job.world_size, self.job.node_size))
        grids = compute_grids(self.job.sizes())
        if self.profile_ranks == "stage":
            return tuple(sorted(next(group for group in grids.groups["pp"] if 0 in group)))
        return next(model for model in grids.replicas.closure if 0 in model)

    def rank_snapshot_path(self, rank: int | str) -> str:
        """Where Megatron Bridge dumps the memory history of a rank."""
        path = PurePosixPath(self.memory_snapshot_path)
        return str(path.with_name(f"{path.stem}_{rank}{path.suffix}"))

    def folders(self) -> tuple[str, ...]:
        """Folders that must be there before the job starts: neither Megatron-LM nor Bridge makes the snapshots'."""
        snapshots = str(PurePosixPath(self.memory_snapshot_path).parent)
        wanted = (self.output_folder, *([snapshots] if self.record_memory_history and snapshots != "." else []))
        return tuple(dict.fromkeys(wanted))

    def estimate(self) -> Estimate:
        """How much will be written, and how long writing holds the job up."""
        return estimate(
            layers=-(-self.job.layers // self.job.pp),
            microbatches=self.job.microbatches,
            iterations=len(self.iterations),
            ranks=len(self.ranks()),
            stacks=self.with_stack,
        )

    def _profiler_fault(self) -> str | None:
        if self.use_nsys_profiler and self.use_pytorch_profiler:
            return (
                "use_nsys_profiler and use_pytorch_profiler are both on: both take the GPU's one tracing interface "
                "(CUPTI), so one of them records nothing; choose one, and make a second run for the other"
            )
        if not (self.use_nsys_profiler or self.use_pytorch_profiler):
            return "no profiler is on, so nothing would be recorded; set use_pytorch_profiler or use_nsys_profiler"
        if self.use_nsys_profiler and self.job.fault_tolerance:
            return (
                "nsys under fault tolerance: the restarting launcher and nsys both want to start the ranks, and "
                "Megatron Bridge drops nsys with a mere warning; switch job.fault_tolerance off for this run or use "
                "the PyTorch profiler"
            )
        if self.use_nsys_profiler and self.execution_traces:
            return (
                "execution_traces with nsys: only the PyTorch profiler writes Chakra's; leave them out or "
                "set use_pytorch_profiler"
            )
        unknown = [name for name in self.nsys_trace if name not in _NSYS_TRACES]
        if unknown:
            return f"nsys_trace has {', '.join(unknown)}; nsys traces {', '.join(_NSYS_TRACES)}"
        return None

    def _step_fault(self) -> str | None:
        start, end = self.profile_step_start, self.profile_step_end
        if end == start:
            return (
                f"profile_step_start and profile_step_end are both {start}: the range is empty, and torch.profiler "
                f"crashes on it; the end is the first step not recorded, so set it to {start + 1} for one iteration"
            )
        if end < start:
            return f"profile_step_end {end} is before profile_step_start {start}; swap them"
        if self.wait_steps is None and self.warmup_steps > start:
            return (
                f"{self.warmup_steps} warm-up iterations do not fit before iteration {start}; start at "
                f"{self.warmup_steps} or later"
            )
        first = self.wait + self.warmup_steps
        if end <= first:
            return (
                f"profile_step_end {end} stops the profiler inside its warm-up ({self.wait} to wait + "
                f"{self.warmup_steps} to warm up), which crashes the process; end after {first}"
            )
        if first != start:
            return (
                f"wait_steps {self.wait} + warmup_steps {self.warmup_steps} begin to record at {first}, not at "
                f"profile_step_start {start}; leave wait_steps out or set it to {max(start - self.warmup_steps, 0)}"
            )
        return None

    def _rank_fault(self) -> str | None:
        try:
            self.job.sizes()
        except UsageError as error:
            return f"job: {error}"
        if not isinstance(self.profile_ranks, str):
            if not self.profile_ranks:
                return (
                    "profile_ranks is empty: today's Megatron-LM takes that for all ranks, older ones and Bridge for "
                    'none; write "all" or name the ranks'
                )
            beyond = [rank for rank in self.profile_ranks if rank >= self.job.world_size]
            if beyond:
                return f"profile_ranks has {beyond[0]}, but the job has ranks 0 to {self.job.world_size - 1}"
        return None

    def _checkpoint_fault(self) -> str | None:
        interval = self.job.save_interval
        inside = [] if interval is None else [number for number in self.iterations if number and number % interval == 0]
        if not inside:
            return None
        return (
            f"a checkpoint is written after iteration {inside[0]}, inside the recorded range: its input and output "
            f"would count as idle time; start, for example, at {inside[-1] + 1}"
        )

    def _size_fault(self) -> str | None:
        found = self.estimate()
        if self.accept_size or not self.use_pytorch_profiler or found.bytes_raw <= _LARGEST_BYTES:
            return None
        stacks = " with call stacks" if self.with_stack else ""
        return (
            f"{len(self.ranks())} ranks{stacks} would write about {readable_bytes(found.bytes_raw)} "
            f"({readable_bytes(found.bytes_compressed)} compressed) and hold the job up for about "
            f'{readable_seconds(found.seconds)}; record one replica (profile_ranks = "replica"), fewer iterations or '
            "no stacks, or set accept_size"
        )


def read_configuration(path: Path) -> ProfilingConfig:
    """Read a configuration from a TOML or a JSON file.

    Raises:
        BadInputError: the file cannot be read, or what it says cannot be captured.
    """
    remedy = "see docs/capture.md for an example"
    text = read_text(path)
    given: Any = parse_json(text, path, remedy) if path.suffix == ".json" else parse_toml(text, path, remedy)
    try:
        return ProfilingConfig.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if not str(part).startswith(("literal", "tuple")))
        words = str(first["msg"]).removeprefix("Value error, ")
        raise BadInputError(
            path, f"{where}: {words}" if where else words, "see traceviz capture plan --help"
        ) from error

"""The words of the project: each concept has one name, used in code, tables, command line and figures."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """What a kernel does."""

    COMPUTATION = "computation"
    COMMUNICATION = "communication"
    MEMORY = "memory"


class Phase(StrEnum):
    """The part of a training step that launched a kernel; ``unknown`` where the evidence does not say."""

    FORWARD = "forward"
    BACKWARD = "backward"
    RECOMPUTE = "recompute"
    OPTIMIZER = "optimizer"
    OTHER = "other"
    UNKNOWN = "unknown"


class OperationClass(StrEnum):
    """What kind of work an operation is; it follows from its name."""

    GEMM = "gemm"
    GROUPED_GEMM = "grouped_gemm"
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    NORMALIZATION = "normalization"
    SOFTMAX = "softmax"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    COPY = "copy"
    EMBEDDING = "embedding"
    OPTIMIZER = "optimizer"
    COMMUNICATION = "communication"
    OTHER = "other"


MATRIX = frozenset(
    {OperationClass.GEMM, OperationClass.GROUPED_GEMM, OperationClass.ATTENTION, OperationClass.CONVOLUTION}
)
"""Classes that compute on matrix units: their FLOPs count in the roofline; all others are limited by memory."""


class Bound(StrEnum):
    """What limits a perfect kernel of an operation: the peak of its number format, or the bandwidth of the memory."""

    COMPUTE = "compute"
    MEMORY = "memory"


class SlowKind(StrEnum):
    """Why the same work takes longer on a rank than on its peers."""

    GPU = "gpu"
    CORE_CLOCK = "core_clock"
    MEMORY = "memory"
    THROTTLING = "throttling"
    KERNEL = "kernel"
    ALGORITHM = "algorithm"
    EXTRA_WORK = "extra_work"
    LINK = "link"
    HOST = "host"


class Savings(StrEnum):
    """Whether hidden communication saves more time than the computation beside it loses."""

    SAVES = "saves"
    COSTS = "costs"
    UNSURE = "unsure"


class StepKind(StrEnum):
    """What an iteration of a rank ran: a training step, a forward pass alone (evaluation, or one that was recorded for
    itself), the step of an engine that serves a model, or replays of CUDA graphs of which no phase is recorded."""

    TRAINING = "training"
    FORWARD_ONLY = "forward_only"
    INFERENCE = "inference"
    GRAPH_REPLAY = "graph_replay"


class TrainingFramework(StrEnum):
    """What trained: Megatron-LM, with its DDP or its FSDP, or data parallelism of PyTorch or DeepSpeed without its
    schedule."""

    MEGATRON = "megatron"
    MEGATRON_FSDP = "megatron_fsdp"
    DDP = "ddp"
    FSDP = "fsdp"
    ZERO = "zero"


class Dimension(StrEnum):
    """The parallel dimension that a communication serves."""

    TP = "tp"
    CP = "cp"
    EP = "ep"
    ETP = "etp"
    DP = "dp"
    EDP = "edp"
    PP = "pp"
    EMBEDDING = "embedding"
    GRAD_NORM = "grad_norm"
    CONTROL = "control"
    WORLD = "world"
    UNKNOWN = "unknown"


class Category(StrEnum):
    """One per kernel; it follows from kind, phase and dimension (``classify.categories``)."""

    FWD_COMPUTATION = "fwd_computation"
    FWD_COMMUNICATION = "fwd_communication"
    BWD_COMPUTATION = "bwd_computation"
    BWD_COMMUNICATION = "bwd_communication"
    BWD_COMPUTATION_RECOMPUTE = "bwd_computation_recompute"
    BWD_COMMUNICATION_RECOMPUTE = "bwd_communication_recompute"
    PP_COMMUNICATION = "pp_communication"
    DP_COMMUNICATION = "dp_communication"
    OPTIMIZER_COMPUTATION = "optimizer_computation"
    OTHER_COMPUTATION = "other_computation"
    OTHER_COMMUNICATION = "other_communication"
    MEMORY = "memory"
    UNCLASSIFIED = "unclassified"


class Evidence(StrEnum):
    """Which kind of observation decided a phase or a dimension, strongest first."""

    PROCESS_GROUP = "process_group"
    CALL_STACK = "call_stack"
    STEP_WINDOW = "step_window"
    STREAM_GROUP = "stream_group"
    KERNEL_NAME = "kernel_name"
    ANNOTATION = "annotation"
    NONE = "none"


class PathCause(StrEnum):
    """What a segment of the critical path is."""

    WORK = "work"
    """A kernel or memory operation runs."""
    TRANSFER = "transfer"
    """A communication for which all have arrived."""
    UNMATCHED = "unmatched"
    """A communication whose other members nobody knows or read: nothing shows its wait from its transfer."""
    HOST = "host"
    """The host's own time until it launches, synchronises or ends the step."""
    LAUNCH = "launch"
    """From a launch to the start of its kernel beyond the usual latency."""
    SYNCHRONISATION = "synchronisation"
    """From the end of what the host waited for to the return of its call; all of it where that is of no known work."""
    UNEXPLAINED = "unexplained"
    """A kernel starts later than all it is known to wait for."""
    LATE_BEGIN = "late_begin"
    """The rank began its step later than the one whose step is the longest."""


class WindowFrom(StrEnum):
    """What the window of a training step is."""

    HOST = "host"
    LAUNCHES = "launches"
    UNKNOWN_LAUNCHES = "host_launches_unknown"


class StepEvidence(StrEnum):
    """Why a kernel belongs to its training step."""

    LAUNCH = "launch"
    START = "start"
    NEAREST = "nearest"
    CUT = "cut"
    NONE = "none"


class SynchronizationKind(StrEnum):
    """What waits for what in a synchronisation; in all but the first the host waits."""

    STREAM_WAIT = "stream_wait"
    EVENT_SYNCHRONIZE = "event_synchronize"
    STREAM_SYNCHRONIZE = "stream_synchronize"
    DEVICE_SYNCHRONIZE = "device_synchronize"
    MEMORY_COPY = "memory_copy"


class SynchronizationEvidence(StrEnum):
    """What records a synchronisation: the profiler's own row of it, or the order of the host calls alone."""

    RECORDED = "recorded"
    ORDER = "order"


class HostWork(StrEnum):
    """What a host does while its GPU waits to be given work, as far as the names of its rows show."""

    DATA_LOADING = "data_loading"
    GARBAGE_COLLECTION = "garbage_collection"
    COMPILATION = "compilation"
    GRAPH_BREAK = "graph_break"
    ALLOCATION = "allocation"
    SYNCHRONISATION = "synchronisation"


class FindingClass(StrEnum):
    """Whether something is wrong, or a healthy cost could be lower."""

    FAULT = "fault"
    OPPORTUNITY = "opportunity"


class Severity(StrEnum):
    """How much a finding matters; ``not_looked_at`` says what could not be judged."""

    FINDING = "finding"
    NOTE = "note"
    NOT_LOOKED_AT = "not_looked_at"


class Fault(StrEnum):
    """Why a communication is not matched, or not wholly."""

    NO_GROUP = "no_group"
    GROUPS_CONTRADICTED = "groups_contradicted"
    ORDER_DIFFERS = "order_differs"
    OPERATIONS_DIFFER = "operations_differ"
    MEMBERS_MISSING = "members_missing"
    MEMBERS_UNKNOWN = "members_unknown"
    NO_SCHEDULE = "no_schedule"
    NOT_IN_SCHEDULE = "not_in_schedule"
    PEER_MISSING = "peer_missing"
    PEER_DIFFERS = "peer_differs"
    NONE = "none"


class Refusal(StrEnum):
    """Why a matched communication has no wait on some clocks."""

    CLOCK_REFUSED = "clock_refused"
    COMPONENTS_DIFFER = "components_differ"
    ORDER_ALONE = "order_alone"
    ARRIVES_AFTER_END = "arrives_after_end"
    NONE = "none"


class TimeAlignment(StrEnum):
    """``global``: one zero for all ranks, their clocks as recorded; ``individual``: each rank from its first kernel;
    ``solved``: one zero on the clock that the ranks' matched communications solve for."""

    GLOBAL = "global"
    INDIVIDUAL = "individual"
    SOLVED = "solved"


class TraceStatus(StrEnum):
    """How the reading of one trace file ended."""

    READ = "read"
    PARTIAL = "partial"
    FAILED = "failed"


class StaleStage(StrEnum):
    """A step whose tables are kept or replaced together; that of another package's table has the table's name."""

    RANKS = "ranks"
    MEMORY = "memory"
    ITERATIONS = "iterations"


class StaleCause(StrEnum):
    """Why tables are kept that were not made anew.

    ``gone`` alone does not say that something newer exists: the trace was moved away, and nothing else changed.
    """

    GONE = "gone"
    UNREADABLE = "unreadable"
    OUTDATED = "outdated"
    UNLISTED = "unlisted"
    WAITING = "waiting"
    FAILED = "failed"


class TopologySource(StrEnum):
    """Where a process group or a coordinate was learnt."""

    DISTRIBUTED_INFO = "distributed_info"
    TEXT_FILE = "text_file"
    COMPUTED = "computed"


ALL_DIMENSIONS = "all"
"""The pseudo-dimension of ``overlap`` and ``microbatches`` rows that speak of all communication together."""

CPU_DEVICE = "cpu"
"""The device of work intervals that were read from a trace without GPU rows."""


DEFAULT_HOME = "traceviz_home"
"""Name of the home where none is given, in the folder that one works in."""

FIGURES_FOLDER = "figures"
"""Where figures are written in a home, and the path under which the web server shows them."""

FIGURE_FORMATS = ("png", "svg", "pdf")
"""Files that every figure is written as."""

PREVIEWS_FOLDER = "previews"
"""Folder of small pictures beside the large ones."""

PERFETTO_FOLDER = "perfetto"
"""Where Perfetto traces of iterations are written in a home."""

REPORTS_FOLDER = "reports"
"""Where the reports of a home are, as RUN/ITERATION.html."""

SCREENS_FOLDER = "screens"
"""Where a home keeps what screens show of iterations, as RUN/ITERATION, and the bookmarks of people."""


class MemoryCategory(StrEnum):
    """What a block of GPU memory holds; ``unknown`` where the evidence does not say."""

    PARAMETER = "parameter"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATION = "activation"
    INPUT = "input"
    TEMPORARY = "temporary"
    COMMUNICATION_BUFFER = "communication_buffer"
    UNKNOWN = "unknown"


class MatchEvidence(StrEnum):
    """What shows that a snapshot of GPU memory is of the trace of its rank."""

    TIME = "time"
    """Its name shows the rank, its events are of the time of the trace, and its GPU is that of the trace."""
    NAME = "name"
    """Its name shows the rank; times cannot be compared, since the one or the other shows none."""


class MemoryEvidence(StrEnum):
    """Which observation decided the category of a block."""

    FRAMES = "frames"
    """The call stack that allocated it."""
    LIFE = "life"
    """That call stack, and when it was freed: within the pass, in the backward pass, beyond an optimizer step."""
    FREE_FRAMES = "free_frames"
    """The call stack that freed it; it was allocated before the recording."""
    SIZE_MATCH = "size_match"
    """Its size, and those of the others: together they are as many and as large as the gradients."""
    NONE = "none"


class CaptureQuestion(StrEnum):
    """What a capture may be for; of a dimension: who is late in its communication."""

    OVERLAP = "overlap"
    BUBBLES = "bubbles"
    STRAGGLERS = "stragglers"
    TENSOR_WAITS = "tp"
    CONTEXT_WAITS = "cp"
    DATA_WAITS = "dp"
    EXPERT_WAITS = "ep"
    SAVINGS = "savings"

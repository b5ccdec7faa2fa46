"""Whether a snapshot is of the rank and time of a trace beside it: by what both say, not by names alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from traceviz_dag.analyze.memory.examination import Examined
from traceviz_dag.vocabulary import MatchEvidence

_LEAST_EPOCH_NS = 946_684_800_000_000_000
"""2000-01-01: what is earlier counts from something else than the epoch."""

_CLOCK_SLACK_NS = 1_000_000_000
"""How far two clocks of one host are taken to be apart at the most, both converted to the epoch."""

_GPU = "gpu:"


@dataclass(frozen=True, slots=True)
class Seen:
    """When and on which GPUs something was recorded.

    Attributes:
        first_ns, last_ns: of the epoch; None where nothing shows.
        gpus: numbers of GPUs in their process; empty where nothing shows, or where they count otherwise.
    """

    first_ns: int | None
    last_ns: int | None
    gpus: frozenset[int]


def seen_by_snapshot(devices: Sequence[Examined]) -> Seen:
    """Of a snapshot: its events with a time, and its GPUs with memory."""
    times = [one.replay.time_us[one.replay.time_us > 0] for one in devices]
    return Seen(
        min((int(each.min()) * 1000 for each in times if len(each)), default=None),
        max((int(each.max()) * 1000 for each in times if len(each)), default=None),
        frozenset(one.device for one in devices),
    )


def seen_by_trace(first_ns: int | None, last_ns: int | None, devices: Collection[str], format_name: str) -> Seen:
    """Of a trace, from its row of table ``traces``.

    Nsight Systems numbers the GPUs of a machine, Kineto and the allocator those of a process.
    """
    numbers = {int(name.removeprefix(_GPU)) for name in devices if name.startswith(_GPU)}
    on_epoch = first_ns is not None and last_ns is not None and first_ns >= _LEAST_EPOCH_NS
    of_process = format_name.startswith("kineto")
    return Seen(first_ns if on_epoch else None, last_ns if on_epoch else None, frozenset(numbers if of_process else ()))


def matched(snapshot: Seen, trace: Seen) -> tuple[MatchEvidence, str]:
    """How a snapshot of a rank's name is known to be of its trace, and why it is not; empty where it is.

    Both are known to claim one rank. GPUs must be the same, and the times overlap, as far as both give them.
    """
    if snapshot.gpus and trace.gpus and not snapshot.gpus & trace.gpus:
        return MatchEvidence.NAME, f"it is of {_gpus(snapshot.gpus)}, and the trace of its rank of {_gpus(trace.gpus)}"
    if snapshot.first_ns is None or snapshot.last_ns is None or trace.first_ns is None or trace.last_ns is None:
        return MatchEvidence.NAME, ""
    after = snapshot.first_ns > trace.last_ns + _CLOCK_SLACK_NS
    if after or snapshot.last_ns < trace.first_ns - _CLOCK_SLACK_NS:
        recorded = f"its events are of {_time(snapshot.first_ns)} to {_time(snapshot.last_ns)}"
        traced = f"the trace of its rank is of {_time(trace.first_ns)} to {_time(trace.last_ns)} (UTC)"
        return MatchEvidence.NAME, f"{recorded}, and {traced}: it is of another time or job"
    return MatchEvidence.TIME, ""


def _gpus(numbers: Collection[int]) -> str:
    return f"GPU {', '.join(str(number) for number in sorted(numbers))}"


def _time(time_ns: int) -> str:
    try:
        return datetime.fromtimestamp(time_ns // 1_000_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{time_ns:,} ns"

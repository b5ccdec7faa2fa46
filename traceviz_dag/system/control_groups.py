"""What the control groups of this process, a container's or a batch job's, allow: memory and processors. On Linux."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

_MOUNT, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_UNLIMITED = 1 << 60
"""Where there is no limit, the first version of control groups writes a number of bytes that is beyond it."""


def memory_bytes(mount: Path = _MOUNT, own: Path = _OWN) -> int | None:
    """The lowest limit of the process's groups, those around them included; None where none is set.

    Args:
        mount: where the groups are mounted. own: the file that says which are this process's.
    """
    told = [text for text in _read(mount, own, "memory", "memory.max", "memory.limit_in_bytes") if text.isdigit()]
    return min((int(text) for text in told if int(text) < _UNLIMITED), default=None)


def processors(mount: Path = _MOUNT, own: Path = _OWN) -> int | None:
    """How many processors' time the process's groups may take, rounded up; None where none is limited.

    Args:
        mount, own: as ``memory_bytes`` takes them.
    """
    shares = []
    for text in _read(mount, own, "cpu", "cpu.max", "cpu.cfs_quota_us"):
        quota, _, period = text.partition(" ")
        if quota.isdigit() and period.isdigit() and int(period):
            shares.append(math.ceil(int(quota) / int(period)))
    return max(min(shares), 1) if shares else None


def _read(mount: Path, own: Path, controller: str, unified: str, former: str) -> Iterator[str]:
    """The texts of one setting in the process's groups and in those around them, of both versions of control groups."""
    for line in _text(own).splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base, name = (mount / controller, former) if controllers else (mount, unified)
        folder = base / group.lstrip("/")
        # Within a container the group may have another name than outside, where it is the mount itself.
        for place in (folder, *folder.parents):
            if not place.is_relative_to(base):
                break
            text = _text(place / name).strip()
            if text and name == "cpu.cfs_quota_us":
                text += f" {_text(place / 'cpu.cfs_period_us').strip()}"
            if text:
                yield text


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""

"""Which node each rank runs on, as far as the devices' numbers show it."""

from __future__ import annotations

import re
from collections.abc import Mapping


def nodes_of_devices(devices: Mapping[int, str | None]) -> dict[int, int]:
    """Rank → ordinal of its node; empty where the devices do not show.

    Ranks are laid out node by node, a process a GPU: with n GPUs a node, rank r runs on device r mod n of node r // n.
    Where every process sees one device only (number 0), or a rank breaks the pattern, nothing can be known.

    Args:
        devices: rank → ``gpu:N``.
    """
    told = {rank: re.fullmatch(r"gpu:(\d+)", name or "") for rank, name in devices.items()}
    ordinals = {rank: int(match[1]) for rank, match in told.items() if match}
    size = max(ordinals.values(), default=0) + 1
    if size < 2 or len(ordinals) < len(devices) or any(rank % size != device for rank, device in ordinals.items()):
        return {}
    return {rank: rank // size for rank in ordinals}

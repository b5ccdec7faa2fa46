"""Which node each rank runs on, as far as clocks of hosts or the devices' numbers show it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import gcd

_SAME_HOST_NS = 2_000
"""Two clocks of one host are read within less than 1 µs of each other; other hosts started at other moments."""


def nodes_of_host_clocks(host_clock_ns: Mapping[int, int | None]) -> dict[int, int]:
    """Rank → ordinal of its node, in the order of the nodes' lowest ranks; empty unless all ranks state their clock.

    Both clocks of a host run at one rate, so their difference is when the host started: equal for its ranks, and hardly
    ever for two hosts.

    Args:
        host_clock_ns: of each rank, as in table ``traces``.
    """
    known = [(clock, rank) for rank, clock in host_clock_ns.items() if clock is not None]
    if len(known) < len(host_clock_ns):
        return {}
    hosts: list[list[int]] = []
    before: int | None = None
    for clock, rank in sorted(known):
        if before is None or clock - before > _SAME_HOST_NS:
            hosts.append([])
        hosts[-1].append(rank)
        before = clock
    return {rank: number for number, ranks in enumerate(sorted(hosts, key=min)) for rank in ranks}


def nodes_of_devices(devices: Mapping[int, str | None]) -> dict[int, int]:
    """Rank → ordinal of its node; empty where the devices do not show.

    Ranks are laid out node by node, a process a GPU: with n GPUs a node, rank r runs on device r mod n of node r // n.
    So n divides what rank and device differ by, and is larger than every device's number. Where every process sees one
    device only (number 0), a rank breaks the pattern, or some ranks alone leave several n possible, nothing is known.

    Args:
        devices: rank → ``gpu:N``.
    """
    told = {rank: re.fullmatch(r"gpu:(\d+)", name or "") for rank, name in devices.items()}
    ordinals = {rank: int(match[1]) for rank, match in told.items() if match}
    last = max(ordinals.values(), default=0)
    apart = gcd(*(rank - device for rank, device in ordinals.items()))
    if last == 0 or len(ordinals) < len(devices) or any(rank < device for rank, device in ordinals.items()):
        return {}
    if apart == 0:
        return dict.fromkeys(ordinals, 0)
    sizes = [size for size in range(last + 1, apart + 1) if apart % size == 0]
    return {rank: rank // sizes[0] for rank in ordinals} if len(sizes) == 1 else {}

"""Partition keys of runs, iterations and ranks as an orchestrator names them, and back."""

from __future__ import annotations

import re
from collections.abc import Collection

from traceviz_dag.errors import UsageError
from traceviz_dag.lake.partitions import escape, unescape

_SEPARATOR = "@"
_DIGITS = 4
_ITERATION_KEY = re.compile(r"([^@]+)@(0|[1-9][0-9]{0,18})")
_NUMBER = re.compile("[0-9]{1,19}")
_RANK_KEY = re.compile(r"[0-9]{4}|[1-9][0-9]{4,}")


def iteration_key(run: str, iteration: int) -> str:
    """One key for a run and an iteration, as ``job-7@120``.

    Characters with a meaning in partition keys, ranges or multi-dimensional keys are percent-encoded in the run's
    name, as in the lake's folders, so that :func:`parse_iteration_key` gives the name back.

    Raises:
        UsageError: the run has no name, or the iteration is negative.
    """
    if not run or iteration < 0:
        raise UsageError(
            f"no partition key names run {run!r}, iteration {iteration}: it takes a name and a number >= 0"
        )
    return f"{escape(run)}{_SEPARATOR}{iteration}"


def parse_iteration_key(key: str) -> tuple[str, int]:
    """(run, iteration) of a key that :func:`iteration_key` made.

    Raises:
        UsageError: it did not make this key.
    """
    match = _ITERATION_KEY.fullmatch(key)
    if match is None:
        raise UsageError(f"{key!r} is no iteration key; one looks like RUN{_SEPARATOR}ITERATION")
    return unescape(match[1]), int(match[2])


def split_name(given: str, runs: Collection[str]) -> tuple[str, int | None]:
    """(run, iteration) of ``RUN`` or ``RUN@ITERATION`` as somebody writes it, None where no iteration is named.

    A run's name counts as it is, ``@120`` at its end included, and also as partition keys have it.

    Args:
        runs: that are known.
    """
    by_key = {escape(run): run for run in runs}
    name, _, number = given.rpartition(_SEPARATOR)
    if given in runs or given in by_key or not name or _NUMBER.fullmatch(number) is None:
        name, number = given, ""
    return name if name in runs else by_key.get(name, name), int(number) if number else None


def rank_key(rank: int) -> str:
    """A rank with leading zeros, as ``0012``, so that keys sort as the ranks do up to 10,000 ranks.

    Raises:
        UsageError: the rank is negative.
    """
    if rank < 0:
        raise UsageError(f"rank {rank} is negative; count from 0")
    return f"{rank:0{_DIGITS}d}"


def parse_rank_key(key: str) -> int:
    """The rank of a key that :func:`rank_key` made.

    Raises:
        UsageError: it did not make this key.
    """
    if _RANK_KEY.fullmatch(key) is None:
        raise UsageError(f"{key!r} is no rank key; one looks like {rank_key(12)}")
    return int(key)

"""The command lines that give answers again, as a shell takes them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from traceviz_dag.vocabulary import DEFAULT_HOME


def again(words: Sequence[str], home: Path, traces: Path | None, run: str, iteration: int) -> str:
    """A question about an iteration.

    Args:
        words: the command and its options. traces: what is read where there is no home that stays.
    """
    where = ["--home", str(home)] if traces is None else [str(traces)]
    return shlex.join(["traceviz", *words, *where, "--run", run, "--iteration", str(iteration)])


def sql_again(query: str, home: Path, traces: Path | None) -> str:
    """A query; of traces without a home, they are analysed into the usual one before."""
    before = "" if traces is None else f"{shlex.join(['traceviz', 'analyze', str(traces)])} && "
    folder = str(home) if traces is None else DEFAULT_HOME
    return before + shlex.join(["traceviz", "sql", query, "--home", folder])

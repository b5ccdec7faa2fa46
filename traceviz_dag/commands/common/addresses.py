"""Addresses of objects (``s3://…``) among what a command is given become local paths, whatever the command is."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import typer

from traceviz_dag.errors import UsageError
from traceviz_dag.printable import is_object_url
from traceviz_dag.system.paths import real_path
from traceviz_dag.vocabulary import DEFAULT_HOME

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")

_WRITTEN = frozenset({"output", "out", "target", "traceviz", "install", "log"})
"""Parameters that name what a command writes."""

_COMPUTE = frozenset({"analyze", "batch"})
"""Commands that are for writing tables: they show first that the home can be written."""

_OF_MANY = frozenset({"iterations", "gate", "statement", "report"})
"""Commands that hold an iteration against others, so that all of them are needed."""

_OF_NONE = frozenset({"clean"})
"""Commands that read no iteration."""

_TEXTS = frozenset({"a", "b"})
"""Parameters that are texts and may name traces, each with ``@ITERATION``."""


@contextmanager
def at_hand(command: str, given: Mapping[str, Any], state: Path | None) -> Iterator[dict[str, Any]]:
    """A command's parameters, each address as a path: of traces what stands in for them, of a home the folder of this
    machine; what the command changed there is published when it ends, unless it is interrupted.

    Args:
        state: that folder.

    Raises:
        StoreError: a store cannot be asked. UsageError: something else would be written to a store, or no folder is
            named.
    """
    home = given.get("home")
    if home is None or not is_object_url(str(home)):
        yield {name: _local(name, value, given) for name, value in given.items()}
        return
    if command == "pack":
        raise UsageError("a home at s3:// is not packed: its files are known by their digests, and fetched once")
    if state is None:
        raise UsageError("a home at s3:// needs --state FOLDER: a folder of this machine for what is read or computed")
    if is_object_url(str(state)):
        raise UsageError("--state is a folder of this machine")
    from traceviz_dag.lake.published import Published

    published = Published(str(home), real_path(state))
    if command in _COMPUTE:
        published.prove()
    chosen = {} if command in _OF_MANY else given
    wanted = _none if command in _OF_NONE else partial(_is_wanted, chosen)
    there = published.fetch(wanted, to_compute=command in _COMPUTE)
    if not there and command not in _COMPUTE:
        typer.echo(f"traceviz: {published.url}: nothing is published there", err=True)
    ready = {**given, "home": real_path(state)}
    try:
        yield {name: _local(name, value, ready) for name, value in ready.items()}
    finally:
        if not isinstance(sys.exception(), KeyboardInterrupt):
            for key in published.publish():
                line = f"{key}: somebody else published ranks of it meanwhile; run it again for tables across all ranks"
                typer.echo(f"traceviz: {line}", err=True)


def _none(_run: str, _iteration: int) -> bool:
    return False


def _is_wanted(given: Mapping[str, Any], run: str, iteration: int) -> bool:
    """Whether a command that names run or iteration needs one."""
    chosen = (given.get("run") in (None, run), given.get("iteration") in (None, iteration))
    return all(chosen)


def _local(name: str, value: Any, given: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_local(name, one, given) for one in value]
    text = str(value) if isinstance(value, Path) or (isinstance(value, str) and name in _TEXTS) else ""
    if not is_object_url(text):
        if _ADDRESS.match(text) and not Path(text).exists():
            # It is not shown: a signed address is a secret.
            fault = f"{name.removesuffix('_')} is an address that is not read"
            raise UsageError(f"{fault}: name a folder or file of this machine, or s3://BUCKET/PREFIX")
        return value
    if name in _WRITTEN:
        raise UsageError(f"{name} is a file or folder of this machine, not at s3://; copy it from there")
    from traceviz_dag.read.object_views import local_view

    home = Path(given.get("home") or os.environ.get("TRACEVIZ_HOME") or DEFAULT_HOME)
    address, mark, number = text.rpartition("@")
    is_iteration = isinstance(value, str) and bool(mark) and number.isdecimal()
    view = local_view(address if is_iteration else text, home)
    return f"{view}@{number}" if is_iteration else str(view) if isinstance(value, str) else view

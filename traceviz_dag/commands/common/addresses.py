"""Addresses of objects (``s3://…``) among what a command is given become local paths, whatever the command is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from traceviz_dag.errors import UsageError
from traceviz_dag.vocabulary import DEFAULT_HOME

_SCHEME = "s3:/"
"""As ``Path`` spells it."""

_WRITTEN = frozenset({"output", "out", "target", "traceviz", "install", "log"})
"""Parameters that name what a command writes."""

_TEXTS = frozenset({"a", "b"})
"""Parameters that are texts and may name traces, each with ``@ITERATION``."""


def at_hand(given: Mapping[str, Any]) -> dict[str, Any]:
    """A command's parameters, each address of traces as the path in the home that stands in for them.

    Raises:
        StoreError: a store cannot be asked. UsageError: something would be written to a store.
    """
    return {name: _local(name, value, given) for name, value in given.items()}


def _local(name: str, value: Any, given: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_local(name, one, given) for one in value]
    text = str(value) if isinstance(value, Path) or (isinstance(value, str) and name in _TEXTS) else ""
    if not text.startswith(_SCHEME):
        return value
    if name in _WRITTEN:
        raise UsageError(f"{name} is a file or folder of this machine, not {text}; copy it from there")
    from traceviz_dag.read.object_views import local_view

    home = Path(given.get("home") or os.environ.get("TRACEVIZ_HOME") or DEFAULT_HOME)
    address, mark, number = text.rpartition("@")
    is_iteration = isinstance(value, str) and bool(mark) and number.isdecimal()
    view = local_view(address if is_iteration else text, home)
    return f"{view}@{number}" if is_iteration else str(view) if isinstance(value, str) else view

"""Dagster's storage with less to do: it makes an engine for every connection, which compiles every statement anew, and
reads all its migrations for every database."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

_STORAGES = (
    "event_log.sqlite.sqlite_event_log",
    "runs.sqlite.sqlite_run_storage",
    "schedules.sqlite.sqlite_schedule_storage",
)


def keep_engines() -> None:
    """Keep what a process that has imported Dagster makes of both; engines hold no connection."""
    if "dagster" not in sys.modules:
        return
    from alembic.script import ScriptDirectory

    for name in _STORAGES:
        module = import_module(f"dagster._core.storage.{name}")
        module.create_engine = _kept(module.create_engine)
    read = ScriptDirectory.from_config
    kept: dict[str | None, ScriptDirectory] = {}

    def from_config(config: Any) -> ScriptDirectory:
        place = config.get_main_option("script_location")
        if place not in kept:
            kept[place] = read(config)
        return kept[place]

    ScriptDirectory.from_config = from_config


def _kept(create: Callable[..., Any]) -> Callable[..., Any]:
    @lru_cache(maxsize=128)
    def made(url: str, poolclass: type, timeout: float | None) -> Any:
        return create(url, poolclass=poolclass, connect_args={} if timeout is None else {"timeout": timeout})

    def create_engine(url: str, *, poolclass: type, connect_args: dict[str, float] | None = None) -> Any:
        return made(url, poolclass, (connect_args or {}).get("timeout"))

    return create_engine

"""Has Dagster learn what was computed in a home, as a tick of the sensor ``computed`` does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg

from assets.resources import TracevizHome
from sensors.computed import report_once
from traceviz_dag.orchestration.instance import open_instance


@contextmanager
def informed_instance(home: Path) -> Iterator[dg.DagsterInstance]:
    """The Dagster instance of a home, which knows all that the lake holds."""
    with open_instance(home) as instance:
        report_once(instance, TracevizHome(home=str(home)), None, seconds=600)
        yield instance

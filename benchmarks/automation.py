"""All that must happen automatically, by a real daemon: on SQLite, then on PostgreSQL where it is installed.

    python -m benchmarks.automation

Arrival, change, failure, deadline, a kill while ranks are computed, new code: the scenarios of
tests/end_to_end/automation_scenarios.py, of which ``make test`` runs the first ones. Each asserts the exact set of
(asset, partition) that was materialised. Exits with 1 at the first that does not hold.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.end_to_end.automation_scenarios import runs_by_itself
from tests.end_to_end.daemon import (
    APT_LINE,
    PASSWORD_VARIABLE,
    daemon_over_an_empty_folder,
    postgresql_programs,
    running_postgresql,
)


@contextmanager
def storages() -> Iterator[dict[str, dict[str, object] | None]]:
    """Name → the storage section of a dagster.yaml; None takes Dagster's own."""
    programs = postgresql_programs()
    if programs is None:
        print(f"no PostgreSQL here: {APT_LINE}")
        yield {"SQLite": None}
        return
    os.environ[PASSWORD_VARIABLE] = "any, since the server trusts this machine"
    with running_postgresql(programs) as storage:
        yield {"SQLite": None, "PostgreSQL": storage}


def main() -> None:
    with storages() as found:
        for name, storage in found.items():
            begin = time.perf_counter()
            with tempfile.TemporaryDirectory() as folder, daemon_over_an_empty_folder(Path(folder), storage) as daemon:
                runs_by_itself(daemon, every=True)
            print(f"{name}: all scenarios hold, {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()

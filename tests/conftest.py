"""Fixtures that all tests share."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from multiprocessing.util import Finalize
from pathlib import Path

import hypothesis
import pytest

from tests.costs import Costs
from tests.kept_engines import keep_engines
from tests.made_once import begin
from tests.memory_folder import folder_in_memory
from tests.sets import numbers_of, share_of
from traceviz_dag.errors import UsageError
from traceviz_dag.read.perfetto.engines import Engine, find_engine

_SHARED_DATA = Path(os.environ.get("TRACEVIZ_SHARED_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))


# How long an example takes shows how busy the machine is.
hypothesis.settings.register_profile("without deadlines", deadline=None)
hypothesis.settings.load_profile("without deadlines")

# A worker of pytest-xdist says 80, and every command would print for a terminal of so many columns.
os.environ.pop("COLUMNS", None)

# The report of each analysis would take a quarter of the time of all tests.
os.environ["TRACEVIZ_REPORT"] = "0"

_LONGEST = tuple(
    f"test_{name}.py"
    for name in (
        "automation_on_sqlite",
        "perfetto_ui",
        "sentences",
        "pages",
        "main_job",
        "training",
        "causes",
        "pictures",
        "waits",
        "failures",
        "partial_input",
        "commands",
        "changed_folders",
        "across_ranks",
        "automation",
        "figures",
        "real_traces",
        "perfetto",
        "findings",
        "nothing_lost",
        "exit_codes_across_ranks",
        "faults",
        "reader",
        "edges",
        "upgrade",
        "daemon",
        "pictures_by_themselves",
        "faulty_places",
    )
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--share``: a part of the tests; all shares together are all tests."""
    parser.addoption("--share", metavar="K/N", type=numbers_of, help="only the files of share K of N")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let tests and what they start write into memory, unless TMPDIR says where; workers of pytest-xdist inherit it."""
    if "TMPDIR" not in os.environ and (folder := folder_in_memory()) is not None:
        folder.mkdir()
        os.environ["TMPDIR"], tempfile.tempdir = str(folder), None
        # Behind what multiprocessing itself removes there in the end.
        Finalize(None, shutil.rmtree, (folder, True), exitpriority=-200)
    # All processors have a worker already: threads of Arrow and DuckDB would cost a tenth of the time, and save none.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    begin()
    config.pluginmanager.register(Costs())


def pytest_collection() -> None:
    """Imports make millions of objects that stay: looking through them for garbage would take seconds a worker."""
    gc.disable()


def pytest_collection_finish() -> None:
    keep_engines()
    gc.enable()
    gc.freeze()
    # Dagster and DuckDB make many short-lived objects: looking through them so often takes a twentieth of the time.
    gc.set_threshold(500_000, 50, 50)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest files first, which would else run alone at the end; of a share only its own."""
    if share := config.getoption("share"):
        number, count = share
        ours = {item: share_of(item.nodeid.split("::")[0], count) == number for item in items}
        config.hook.pytest_deselected(items=[item for item in items if not ours[item]])
        items[:] = [item for item in items if ours[item]]
    items.sort(key=lambda item: _LONGEST.index(item.path.name) if item.path.name in _LONGEST else len(_LONGEST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are processors: tests that wait for daemons and browsers leave one idle."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.fixture(scope="session", autouse=True)
def _pools_find_imported() -> None:
    """The first pool of a process says what those of all its tests find imported; a test run alone needs no pool."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        from traceviz_dag.pipeline import engines, figures
        from traceviz_dag.system.processes import spread

        list(spread(abs, [0], 1, preload=(*engines.IMPORTED_ONCE, *figures.IMPORTED_ONCE)))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real traces beside the checkout; tests that need it skip where it is absent."""
    if not _SHARED_DATA.is_dir():
        pytest.skip(f"no real traces at {_SHARED_DATA}: set TRACEVIZ_SHARED_DATA to their folder")
    return _SHARED_DATA


@pytest.fixture(scope="session")
def trace_processor() -> Engine:
    """Perfetto's trace processor; tests that need it skip where there is none, unless it is required."""
    try:
        return find_engine()
    except UsageError as error:
        if os.environ.get("TRACEVIZ_REQUIRE_TRACE_PROCESSOR"):
            pytest.fail(f"a trace processor is required here: {error}")
        pytest.skip(str(error))

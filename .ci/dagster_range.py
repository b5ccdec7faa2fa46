"""Tries the oldest and the newest release of Dagster that pyproject.toml allows: what the pin says has to be true.

Only Dagster's own packages are installed, in a small environment that takes everything else from the one it runs in.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORK = ROOT / ".ci" / "work"
# The web server first: it lags behind where a release has just appeared, and names the release of all others.
PACKAGES = ("dagster-webserver", "dagster-graphql", "dagster", "dagster-pipes", "dagster-shared")
SOURCES = "tests/assets/test_sources_and_checks.py::test_"
TESTS = (
    f"{SOURCES}the_code_location_holds_together",
    f"{SOURCES}an_observation_by_hand_sees_content_and_not_times",
    f"{SOURCES}figures_that_break_an_invariant_stop_the_aggregate",
    "tests/sensors/test_killed_runs.py::test_a_killed_run_never_looks_failed_for_good_while_it_will_be_tried_again",
    "tests/sensors/test_partition_status.py",
    "tests/orchestration/test_run_launcher.py",
    "tests/orchestration/test_webserver.py::test_dagsters_own_pages_are_served_behind_the_guard",
)


def main() -> int:
    """The exit status: 1 where a release does not do."""
    (limits,) = re.findall(r'^    "dagster(>=.*)",$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    done = {version("dagster"): True}
    for name, wanted in (("oldest", limits.partition(",")[0].replace(">=", "==")), ("newest", limits)):
        python = _environment(WORK / f"dagster_{name}")
        release = _install(python, wanted)
        if release not in done:
            done[release] = _holds(python, release)
    return int(not all(done.values()))


def _environment(folder: Path) -> Path:
    venv.create(folder, clear=True, symlinks=True)
    python = folder / "bin" / "python"
    # A path alone would not do: the package under test is itself installed by such a file.
    inherited = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (_packages(python) / "tested.pth").write_text(inherited)
    return python


def _packages(python: Path) -> Path:
    return Path(_said([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]))


def _install(python: Path, wanted: str) -> str:
    """Install a release, and say which it is."""
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-deps"]
    into = ["--upgrade", "--target", _packages(python)]
    _said([*pip, *into, PACKAGES[0] + wanted])
    release = _said([python, "-c", f"import importlib.metadata as m; print(m.version({PACKAGES[0]!r}))"])
    _said([*pip, *into, *(f"{one}=={release}" for one in PACKAGES[1:])])
    return release


def _holds(python: Path, release: str) -> bool:
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", *TESTS]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(f"Dagster {release}: {'works' if ran.returncode == 0 else ran.stdout}")
    return ran.returncode == 0


def _said(command: list[Path | str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())

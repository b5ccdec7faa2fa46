"""Make the homes of earlier commits that the tests open: ``python -m tests.lake.homes.make COMMIT...``.

Each commit is checked out beside the repository and analyses the same two runs, aaa and zzz, of two ranks each. Kept
are the tables and the lists of inputs, in ``COMMIT.tar.xz``; the folder of the traces is written ``@PLACE@`` in them.
Without Dagster's records, a home is one whose records were lost: these tests are about tables.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.small_run import write_run

PLACE = "@PLACE@"
RUNS = ("aaa", "zzz")
_HERE = Path(__file__).resolve().parent
_REPOSITORY = _HERE.parents[2]


def make(commit: str) -> Path:
    """Write one commit's home beside this file."""
    with tempfile.TemporaryDirectory(prefix="homes_") as folder:
        place = Path(folder).resolve()
        sources, home = place / "sources", place / "home"
        git = ["git", "-C", str(_REPOSITORY), "worktree"]
        subprocess.run([*git, "add", "--detach", str(sources), commit], check=True, capture_output=True)
        try:
            runs = [str(write_run(place / name, world=2)) for name in RUNS]
            program = [sys.executable, "-m", "traceviz_dag.commands.main", "analyze", *runs, "--home", str(home)]
            environment = os.environ | {"PYTHONPATH": str(sources)}
            subprocess.run([*program, "--workers", "1"], check=True, env=environment, cwd=sources)
        finally:
            subprocess.run([*git, "remove", "--force", str(sources)], check=True, capture_output=True)
        return _packed(home, place, _HERE / f"{commit}.tar.xz")


def _packed(home: Path, place: Path, target: Path) -> Path:
    with tarfile.open(target, "w:xz", preset=9) as archive:
        for path in sorted(path for name in ("lake", "inputs") for path in (home / name).rglob("*")):
            if not path.is_file() or path.suffix == ".lock":
                continue
            data = path.read_bytes()
            if path.suffix == ".json":
                data = data.replace(str(place).encode(), PLACE.encode())
            member = tarfile.TarInfo(str(path.relative_to(home)))
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return target


def unpacked(commit: str, place: Path) -> Path:
    """The home of a commit in a new folder, as if its traces were beside it."""
    home = place / "home"
    with tarfile.open(_HERE / f"{commit}.tar.xz") as archive:
        archive.extractall(home, filter="data")
    for path in (home / "inputs").rglob("*.json"):
        path.write_bytes(path.read_bytes().replace(PLACE.encode(), str(place).encode()))
    return home


if __name__ == "__main__":
    for name in sys.argv[1:]:
        written = make(name)
        sys.stdout.write(f"{written.name}: {written.stat().st_size:,} B\n")

"""Processor time of ``traceviz memory summary`` on a real snapshot whose events are repeated.

``python benchmarks/memory.py SNAPSHOT.pickle --megabytes 200``. Repeated events contradict each other, which costs what
sound ones cost. The snapshot is loaded with the standard library: give one that you trust.
"""

from __future__ import annotations

import argparse
import pickle
import resource
import subprocess
import sys
import tempfile
from pathlib import Path


def repeated(source: Path, megabytes: int, target: Path) -> None:
    """Write the snapshot with its events so often that the file has that size; lists of frames are not shared."""
    value = pickle.loads(source.read_bytes())
    [events] = [trace for trace in value["device_traces"] if trace]
    span = events[-1]["time_us"] - events[0]["time_us"] + 1
    times = max(round(megabytes * 1e6 / source.stat().st_size), 1)
    value["device_traces"] = [
        [
            {**event, "frames": list(event["frames"]), "time_us": event["time_us"] + number * span}
            for number in range(times)
            for event in events
        ]
    ]
    with target.open("wb") as file:
        pickle.dump(value, file)


def main() -> None:
    """Measure, and print a line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("source", type=Path)
    options.add_argument("--megabytes", type=int, default=200)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pickle"
        # In a process of its own, whose time is not measured.
        command = "import sys; from pathlib import Path; from benchmarks.memory import repeated; "
        command += "repeated(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))"
        words = [sys.executable, "-c", command, str(chosen.source), str(chosen.megabytes), str(path)]
        subprocess.run(words, check=True)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "traceviz_dag.commands.main", "memory", "summary", str(path), "--json"]
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        size = path.stat().st_size / 1e6
        print(f"{size:,.0f} MB: {seconds:.1f} processor seconds, {size / seconds:.1f} MB/s")


if __name__ == "__main__":
    main()

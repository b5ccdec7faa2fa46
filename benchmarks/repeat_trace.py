"""A large trace for benchmarks: a real one's events repeated with times and ids moved on, so that nothing repeats.

python benchmarks/repeat_trace.py SOURCE.json.gz OUT.json --megabytes 300
"""

from __future__ import annotations

import argparse
import gzip
import re
from pathlib import Path

_METADATA_ROW = re.compile(rb'\{[^{}]*"ph": ?"[Mi]"[^{}]*(?:\{[^{}]*\}\s*)?\},?\s*')
_MOVING = re.compile(rb'"(ts|External id|correlation|Python id|Python parent id|id|Ev Idx)": ?(\d+)(\.\d+)?')
_TIME = re.compile(rb'"ts": ?(\d+\.?\d*)')


def repeat(source: Path, out: Path, megabytes: int) -> None:
    """Write the source's events again and again until the file has the size; metadata rows are in it once."""
    text = gzip.decompress(source.read_bytes()) if source.suffix == ".gz" else source.read_bytes()
    start = text.index(b"[", text.index(b'"traceEvents"')) + 1
    end = text.rindex(b"]", 0, text.rfind(b'"traceName"'))
    body = text[start:end].strip()
    times = [float(match) for match in _TIME.findall(body)]
    span = int(max(times) - min(times)) + 1000
    ids = max(int(number) for key, number, _ in _MOVING.findall(body) if key != b"ts") + 1
    events = _METADATA_ROW.sub(b"", body).strip().rstrip(b",")
    with out.open("wb") as file:
        file.write(text[:start] + body)
        for round_ in range(1, max(1, megabytes * 1_000_000 // len(body))):

            def moved(match: re.Match[bytes], by: int = round_) -> bytes:
                key, whole, fraction = match.groups()
                return b'"%s": %d%s' % (key, int(whole) + by * (span if key == b"ts" else ids), fraction or b"")

            file.write(b",\n" + _MOVING.sub(moved, events))
        file.write(text[end:])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--megabytes", type=int, default=300)
    arguments = parser.parse_args()
    repeat(arguments.source, arguments.out, arguments.megabytes)

"""A kill at every boundary of an analysis; the test of the same name tries every ninth.

python -m benchmarks.boundaries [STEP]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.end_to_end.test_kill_at_each_boundary import try_boundaries


def main() -> int:
    """Print a line for each boundary that was tried; 1 where one of them gave other tables than a clean home."""
    step = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    with tempfile.TemporaryDirectory() as folder:
        names, lines = try_boundaries(Path(folder), step)
    print("\n".join(lines))
    wrong = [line for line in lines if not line.endswith(": equal")]
    print(f"{len(lines)} of {len(names)} boundaries tried, {len(wrong)} differ")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())

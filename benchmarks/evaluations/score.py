"""Score a command that reads a question on its standard input and prints an answer; a wrong answer counts 0.

    python -m benchmarks.evaluations.score [--seed 3] [--folder DIR] [--shared DIR] [COMMAND ARGUMENT…]

Without a command it is the scripted client. The exit code is 1 where an answer is wrong.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

from benchmarks.evaluations.jobs import draw
from benchmarks.evaluations.questions import questions

SECONDS = 600
"""How long a command may think about one question."""

_SCRIPTED = [sys.executable, "-m", "benchmarks.evaluations.scripted"]


def main() -> int:
    """Print each question with what was said and what is true; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=3, help="which jobs are simulated")
    parser.add_argument("--folder", type=Path, help="where they are kept for another run")
    parser.add_argument("--shared", type=Path, default=Path("../shared/data"), help="recorded traces, if there are any")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="who is asked")
    given = parser.parse_args()
    with nullcontext(given.folder) if given.folder else tempfile.TemporaryDirectory() as folder:
        drawn = draw(given.seed, Path(folder))
        asked = questions(drawn, given.shared)
        right = 0
        for question in asked:
            said = _said(given.command or _SCRIPTED, question.asked, question.home)
            good = question.is_right(said)
            right += good
            last = (said.strip().splitlines() or [""])[-1][:80]
            print(f"{'right' if good else 'WRONG'}  {question.text}  {last}  (true: {' or '.join(question.true)})")
        print(f"{right} of {len(asked)} right")
    return 0 if right == len(asked) else 1


def _said(command: list[str], question: str, home: Path) -> str:
    environment = {**os.environ, "TRACEVIZ_HOME": str(home)}
    try:
        ended = subprocess.run(
            command, input=question.encode(), capture_output=True, check=False, timeout=SECONDS, env=environment
        )
    except (subprocess.TimeoutExpired, OSError):
        return ""
    # An answer whose bytes are no text is no answer.
    return ended.stdout.decode(errors="replace")


if __name__ == "__main__":
    sys.exit(main())

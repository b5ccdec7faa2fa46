"""How long the answers of ``traceviz mcp`` are on a home, as rows of the table in docs/agents.md.

traceviz demo --home /tmp/demo && python -m benchmarks.evaluations.tokens /tmp/demo
"""

from __future__ import annotations

import sys

import traceviz_dag as tv
from traceviz_dag.commands.mcp.tools import Tools

CHARACTERS = 4
"""Of a token, as docs/agents.md counts."""

_ASKED = {
    "explain": {"finding": 0},
    "measure": {"measure": "exposed_ns"},
    "sql": {
        "query": "SELECT rank, category, sum(duration_ns) AS ns FROM kernels GROUP BY ALL ORDER BY ns DESC LIMIT 10"
    },
    "what_if": {"fix_rank": [9]},
    "diff": {"a": "11", "b": "12"},
    "timeline_link": {"finding": 0, "rank": 9},
}
_FURTHER = (
    ("overlap", {"part": "ranks"}),
    ("waits", {"part": "costs"}),
    ("waits", {"part": "matrix"}),
    ("critical_path", {"by": "category"}),
    ("what_if", {}),
)


def main(home: str) -> None:
    """Print a row for each tool, with its shortest call, then further ones."""
    tools = {one.__name__: one for one in Tools(lambda: tv.open(home)).all}
    for name, arguments in (*((name, _ASKED.get(name, {})) for name in tools), *_FURTHER):
        said = ", ".join(f"{key}: {str(value)[:24]}" for key, value in arguments.items())
        print(f"| `{name}`{f' ({said})' if said else ''} | {len(tools[name](**arguments)) // CHARACTERS:,} |")


if __name__ == "__main__":
    main(sys.argv[1])

"""Small Kineto traces as text, for tests of what a reader must survive."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

AWKWARD_NAMES = (
    'a }, {"ph": "X"}], [{',
    'quotes " and \\ backslashes \\" },\n{ "name": "x"',
    "],}",
    "naïve – 名前 🚀",
    "NaN, Infinity",
    "",
)


def event(index: int, category: str = "cpu_op", name: str | None = None, **changes: Any) -> dict[str, Any]:
    """An event whose start is ``index`` microseconds."""
    row = {
        "ph": "X",
        "cat": category,
        "name": f"operator {index}" if name is None else name,
        "pid": 1,
        "tid": 2,
        "ts": index,
        "dur": 0.5,
        "args": {"External id": index, "correlation": index},
    }
    return {key: value for key, value in (row | changes).items() if value is not ...}


def write(path: Path, events: list[Any] | str, *, indent: int | None = None, **header: Any) -> Path:
    """Write a trace; ``events`` may be text that is no JSON. Header keys after ``behind=`` stand behind the events."""
    behind = header.pop("behind", {})
    text = events if isinstance(events, str) else json.dumps(events, indent=indent, ensure_ascii=False)
    before = json.dumps({"schemaVersion": 1, **header}, indent=indent)[:-1].rstrip()
    after = json.dumps(behind, indent=indent)[1:].lstrip() if behind else "}"
    path.write_text(f'{before}, "traceEvents": {text}{"," if behind else ""} {after}', encoding="utf-8")
    return path

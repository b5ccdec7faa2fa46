"""The page ``docs/accuracy.md``, of which six benchmarks write a part each; two parts are written by hand."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "accuracy.md"
PREDICTIONS = "## Predicted gains"
"""The heading at which the second part begins."""

ONE_GPU = "## Predicted gains on a real GPU"
"""The heading of the part written by hand from what ``benchmarks.one_gpu`` prints."""

ADVICE = "## Advice"
"""The heading of the part on advice."""

WAITS = "## Waits between streams"
"""The heading at which the third part begins."""

FINDINGS = "## Findings"
"""The heading at which the fourth part begins."""

DRAWN = "## Drawn faults"
"""The heading of the part written by hand from what ``benchmarks.drawn_faults`` prints."""

REAL_TRACES = "## Real traces"
"""The heading at which the last part begins."""

_HEADINGS = (PREDICTIONS, ONE_GPU, ADVICE, WAITS, FINDINGS, DRAWN, REAL_TRACES)


def write_classification(text: str, page: Path = PAGE) -> None:
    """Replace the first part; the others stay."""
    _write({**_parts(page), "": text}, page)


def write_predictions(text: str, page: Path = PAGE) -> None:
    """Replace the second part; the others stay."""
    _write({**_parts(page), PREDICTIONS: text}, page)


def write_advice(text: str, page: Path = PAGE) -> None:
    """Replace the part on advice; the others stay."""
    _write({**_parts(page), ADVICE: text}, page)


def write_waits(text: str, page: Path = PAGE) -> None:
    """Replace the third part; the others stay."""
    _write({**_parts(page), WAITS: text}, page)


def write_findings(text: str, page: Path = PAGE) -> None:
    """Replace the fourth part; the others stay."""
    _write({**_parts(page), FINDINGS: text}, page)


def write_real_traces(text: str, page: Path = PAGE) -> None:
    """Replace the last part; the others stay."""
    _write({**_parts(page), REAL_TRACES: text}, page)


def paragraph(text: str, indent: str = "") -> str:
    """A paragraph in lines of the page's width; a number stays beside its percent sign.

    Args:
        indent: of the lines behind the first, as the item of a list needs it.
    """
    together = " ".join(text.split()).replace(" %", "\N{NO-BREAK SPACE}%")
    lines = textwrap.fill(together, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\N{NO-BREAK SPACE}", " ")


def _parts(page: Path) -> dict[str, str]:
    text = page.read_text() if page.exists() else ""
    pieces = re.split(f"^({'|'.join(_HEADINGS)})$", text, flags=re.MULTILINE)
    return {"": pieces[0], **dict(zip(pieces[1::2], pieces[2::2], strict=True))}


def _write(parts: dict[str, str], page: Path) -> None:
    written = [parts[""].strip()]
    written += [f"{heading}\n\n{parts[heading].strip()}" for heading in _HEADINGS if heading in parts]
    page.write_text("\n\n".join(written) + "\n")

"""The examples of docs/python.md run as they stand, and the notebooks show what they show when they are run again.

``TRACEVIZ_WRITE_NOTEBOOKS=1`` runs the notebooks and writes what they show into them.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.api.notebooks import run
from tests.commands.jobs import traces_of
from tests.in_process import ranks_in_this_process
from tests.sets import fast
from tests.test_docs import REPOSITORY

NOTEBOOKS = sorted((REPOSITORY / "docs" / "notebooks").glob("*.ipynb"))
MOST_BYTES = 300_000


@pytest.mark.long
def test_the_examples_of_the_page_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TRACEVIZ_HOME", str(tmp_path / "home"))
    text = (REPOSITORY / "docs" / "python.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 5
    namespace: dict[str, object] = {}
    with ranks_in_this_process():
        for block in blocks:
            exec(block.replace("/traces/job-7", str(traces_of("slow_rank"))), namespace)
    assert "no such run or iteration; there are slow_rank 10" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize("path", fast(NOTEBOOKS, NOTEBOOKS[-1]), ids=lambda path: path.stem)
def test_a_notebook_shows_again_what_it_shows(path: Path):
    notebook = json.loads(path.read_text())
    with ranks_in_this_process():
        outputs = run(notebook)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    if os.environ.get("TRACEVIZ_WRITE_NOTEBOOKS"):
        for number, (cell, output) in enumerate(zip(cells, outputs, strict=True), 1):
            cell |= {"outputs": output, "execution_count": number}
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
    assert all(cell["outputs"] for cell in cells[1:])
    assert [_words(cell["outputs"]) for cell in cells] == [_words(output) for output in outputs]
    assert path.stat().st_size < MOST_BYTES
    assert len(NOTEBOOKS) == 2


def _words(outputs: list[dict[str, object]]) -> list[object]:
    """What outputs say; pixels depend on fonts."""
    return [
        {name: text for name, text in output["data"].items() if name != "image/png"} if "data" in output else output
        for output in outputs
    ]

"""Runs the cells of a notebook in one namespace, and gives what each shows; no kernel of Jupyter is needed."""

from __future__ import annotations

import ast
import base64
import io
from contextlib import redirect_stdout
from typing import Any


def run(notebook: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The outputs of each code cell, as the notebook's format has them."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [_outputs("".join(cell["source"]), number, namespace) for number, cell in enumerate(cells, 1)]


def _outputs(source: str, number: int, namespace: dict[str, Any]) -> list[dict[str, Any]]:
    tree, printed, shown = ast.parse(source), io.StringIO(), None
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with redirect_stdout(printed):
        exec(compile(tree, f"<cell {number}>", "exec"), namespace)
        if isinstance(last, ast.Expr):
            shown = eval(compile(ast.Expression(last.value), f"<cell {number}>", "eval"), namespace)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue()})
    if shown is not None:
        outputs.append(
            {"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": _data(shown)}
        )
    return outputs


def _data(shown: object) -> dict[str, str]:
    data = {"text/plain": repr(shown)}
    if hasattr(shown, "_repr_html_") and (html := shown._repr_html_()):
        data["text/html"] = html
    if hasattr(shown, "_repr_png_"):
        data = {"text/plain": shown.title, "image/png": base64.b64encode(shown._repr_png_()).decode()}
    return data

"""A patch that switches the plugin on inside a Megatron-LM checkout, for those who want one."""

from __future__ import annotations

import ast
import difflib
from pathlib import Path

from traceviz_dag.errors import BadInputError

PACKAGE = "megatron/training"
MODULE = "traceviz_capture"
_SWITCH = f"from . import {MODULE}\n\n{MODULE}.install()\n"


def plugin_text() -> str:
    """The plugin's source."""
    return Path(__file__).with_name("plugin.py").read_text(encoding="utf-8")


def megatron_patch(checkout: Path) -> str:
    """A patch for ``git apply``: the plugin as ``megatron/training/traceviz_capture.py``, switched on by the package.

    It records nothing without TRACEVIZ_CAPTURE_ITERATIONS.

    Raises:
        BadInputError: the folder is no Megatron-LM checkout, or has the plugin already.
    """
    package = checkout / PACKAGE / "__init__.py"
    if not package.is_file():
        raise BadInputError(
            checkout, f"no {PACKAGE}/__init__.py in it", "name a checkout of Megatron-LM, core 0.7 or newer"
        )
    if (package.parent / f"{MODULE}.py").exists():
        raise BadInputError(checkout, f"has {PACKAGE}/{MODULE}.py already", "remove it to make the patch anew")
    before = package.read_text(encoding="utf-8")
    try:
        after = _switched_on(before)
    except SyntaxError as error:
        raise BadInputError(package, f"is no Python ({error.msg})", "name an intact checkout") from error
    path = f"{PACKAGE}/__init__.py"
    change = difflib.unified_diff(_lines(before), _lines(after), f"a/{path}", f"b/{path}")
    return f"diff --git a/{path} b/{path}\n{''.join(map(_marked, change))}{_new_file()}"


def _switched_on(text: str) -> str:
    """The package's text with the switch before its first import, so that the plugin sees every later import."""
    body = ast.parse(text).body
    first = next(
        (node for node in body if isinstance(node, ast.Import | ast.ImportFrom) and not _is_future(node)), None
    )
    at = len(text.splitlines()) if first is None else first.lineno - 1
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    return "".join([*lines[:at], _SWITCH, "\n", *lines[at:]])


def _is_future(node: ast.Import | ast.ImportFrom) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _new_file() -> str:
    path = f"{PACKAGE}/{MODULE}.py"
    lines = plugin_text().splitlines(keepends=True)
    head = (
        f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n@@ -0,0 +1,{len(lines)} @@\n"
    )
    return head + "".join(f"+{line}" for line in lines)


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _marked(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"

"""The page's own script: modules of ``scripts/`` joined into one, so that a page opened from disk needs no other file.

Browsers let no module of a page on disk import another one. So the modules are laid one behind the other, each after
those that it imports: each a function that is called once and returns what it exports. Imports neither rename nor
take defaults. The order and the text follow from the files alone; no program but this one is needed.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib import resources

_IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)


@cache
def script(first: str = "main") -> str:
    """The joined script.

    Args:
        first: name of the module that nothing imports.

    Raises:
        ValueError: modules import one another in a circle, or one imports or exports in another way.
    """
    ordered: list[str] = []
    _add(first, ordered, ())
    return '"use strict";\n' + "\n".join(_wrapped(name) for name in ordered)


@cache
def styles() -> str:
    """The page's style sheet."""
    return _text("report.css")


def digest(text: str) -> str:
    """What a content security policy calls an inline script or style: ``'sha256-…'``."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _text(name: str) -> str:
    return resources.files("traceviz_dag.show.report.scripts").joinpath(name).read_text(encoding="utf-8")


def _add(name: str, ordered: list[str], above: tuple[str, ...]) -> None:
    if name in above:
        raise ValueError(f"scripts import one another in a circle: {' → '.join((*above, name))}")
    for _, imported in _IMPORT.findall(_text(f"{name}.js")):
        if imported not in ordered:
            _add(imported, ordered, (*above, name))
    if name not in ordered:
        ordered.append(name)


def _wrapped(name: str) -> str:
    text = _text(f"{name}.js")
    exported = ", ".join(_EXPORT.findall(text))
    body = _EXPORT.sub("", _IMPORT.sub(r"const \1 = module_\2;", text))
    left = re.search(r"^(?:import|export)\b.*", body, re.MULTILINE)
    if left:
        raise ValueError(f"{name}.js: {left[0]}: only named imports and exports can be joined")
    return f"const module_{name} = (() => {{\n{body}return {{ {exported} }};\n}})();\n"

"""What docs/python.md promises: public names, their parameters and attributes, held against a kept list.

``TRACEVIZ_WRITE_PROMISE=1`` writes the list; what goes from it breaks programs of others.
"""

from __future__ import annotations

import os
from dataclasses import fields, is_dataclass
from inspect import get_annotations, isclass, isfunction, signature
from pathlib import Path

import traceviz_dag as tv
from traceviz_dag.api import job

KEPT = Path(__file__).with_name("promised.txt")


def _lines() -> list[str]:
    found = []
    for name in sorted(tv.__all__):
        thing = job.analyze if name == "analyze" else getattr(tv, name)
        if not isclass(thing):
            found.append(f"{name}{signature(thing)}")
            continue
        if issubclass(thing, Exception):
            found.append(f"class {name}({thing.__mro__[1].__name__})")
            continue
        every = [one.name for one in fields(thing)] if is_dataclass(thing) else list(get_annotations(thing))
        attributes = [name for name in every if not name.startswith("_")]
        found.append(f"class {name}: {', '.join(attributes)}")
        for member, value in vars(thing).items():
            if not member.startswith("_") and member not in attributes:
                found.append(f"{name}.{member}{signature(value) if isfunction(value) else ''}")
    return found


def test_what_is_public_is_what_was_promised():
    text = "\n".join(_lines()) + "\n"
    if os.environ.get("TRACEVIZ_WRITE_PROMISE"):
        KEPT.write_text(text)
    assert text == KEPT.read_text()

"""Changes of JSON documents that keep most of the structure, so that a fault reaches what lies behind the decoder."""

from __future__ import annotations

import copy
import json
import pickle
import random
import re
from typing import Any

from benchmarks.fuzzing import odd

_RAW = re.compile(r'"@@raw(\d+)@@"')
_TWIN = re.compile(r"@@twin\d+@@")


class Document:
    """A JSON document in which a value may be any text, and a key may occur twice."""

    def __init__(self, value: Any) -> None:
        self.value = pickle.loads(pickle.dumps(value))
        self._texts: list[str] = []
        self._twins = 0

    def mutate(self, chance: random.Random, others: tuple[str, ...] = ()) -> None:
        """One change at a place of chance.

        Args:
            others: keys that mean something elsewhere in the format.
        """
        holder, key = self._place(chance)
        kind = chance.random()
        if kind < 0.5:
            holder[key] = self.text(odd.json_value(chance))
        elif kind < 0.6:
            del holder[key]
        elif kind < 0.7 and isinstance(holder, dict):
            name = chance.choice((*others, *holder, *odd.TEXTS[:20]))
            self._twins += 1
            holder[f"@@twin{self._twins}@@{name}"] = self.text(odd.json_value(chance))
        elif kind < 0.8 and isinstance(holder, dict):
            holder[chance.choice((*others, *holder))] = holder.pop(key)
        elif kind < 0.9:
            other, where = self._place(chance)
            holder[key] = copy.deepcopy(other[where])
        elif isinstance(holder, list):
            holder.insert(chance.randrange(len(holder) + 1), copy.deepcopy(holder[key]))
        else:
            holder[key] = [holder[key]] * chance.choice((1, 3))

    def text(self, raw: str) -> str:
        """A substitute for a raw text."""
        self._texts.append(raw)
        return f"@@raw{len(self._texts) - 1}@@"

    def dump(self) -> bytes:
        """The document as text."""
        plain = _TWIN.sub("", json.dumps(self.value, ensure_ascii=False))
        return _RAW.sub(lambda match: self._texts[int(match[1])], plain).encode("utf-8", "surrogatepass")

    def _place(self, chance: random.Random) -> tuple[Any, Any]:
        """A container and a key in it, every depth about as likely as the others."""
        holder: Any = self.value
        key: Any = None
        while True:
            if not holder:
                self.value["added"] = 1
                return self.value, "added"
            key = chance.choice(list(holder)) if isinstance(holder, dict) else chance.randrange(len(holder))
            inner = holder[key]
            if not isinstance(inner, dict | list) or not inner or chance.random() < 0.12:
                return holder, key
            holder = inner

"""Mutated snapshots of CUDA memory: their bytes, their values, and pickles of other things."""

from __future__ import annotations

import copy
import datetime
import os
import pickle
import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fuzzing import odd
from traceviz_dag.simulate.memory.allocator import Allocator, OutOfMemoryError
from traceviz_dag.simulate.memory.stage import Stage, StageSettings, one_forward_one_backward

_OPCODES = b"(.0123FIJKLMNPQRSTUVXabcdeghijlopqrstu})]" + bytes([*range(0x80, 0x90), 0x93, 0x94, 0x95])
_ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        1 << 31,
        (1 << 63) - 1,
        1 << 63,
        -(1 << 63),
        1 << 100,
        0.5,
        float("nan"),
        float("inf"),
    ),
    *("", "alloc", "oom", "segment_map", "inactive", b"", (), [], {}, [[]], {"a": 1}, ("x",) * 5, *odd.TEXTS),
)


class _Calls:
    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (86,)


@cache
def _snapshots() -> tuple[dict[str, Any], ...]:
    found = []
    for settings, kept in ((StageSettings(streams=True), 60), (StageSettings(late=True, cpp=False), 40)):
        allocator = Allocator(260 << 20, most_events=kept, tells_overflow=kept > 40, expandable=kept > 40)
        stage = Stage(settings, allocator)
        for number in range(2):
            stage.step(number, one_forward_one_backward(1, 2, 2))
        found.append(allocator.snapshot())
        try:
            allocator.allocate(200 << 20, [{"name": "forward", "filename": "/home/bob/x.py", "line": 3}])
        except OutOfMemoryError:
            found.append(allocator.snapshot())
    return tuple(found)


def memory(chance: random.Random, path: Path) -> None:
    """A snapshot with changed values, changed bytes, or a pickle of something else."""
    protocol = chance.randrange(6)
    if chance.random() < 0.06:
        path.write_bytes(pickle.dumps(_other(chance), protocol))
        return
    value = copy.deepcopy(chance.choice(_snapshots()))
    of_values = chance.random() < 0.5
    if of_values:
        for _ in range(chance.choice((1, 1, 2, 5))):
            _change(chance, value)
    data = bytearray(pickle.dumps(value, protocol))
    if not of_values:
        for _ in range(chance.choice((1, 1, 2, 8))):
            _damage(chance, data)
    path.write_bytes(data)


def _other(chance: random.Random) -> Any:
    return chance.choice(
        (
            *(_Calls(), {"segments": [_Calls()]}, np.arange(3), {1, 2}, datetime.date(2026, 1, 1), [1, 2], "text"),
            *(7, None, {"model": [1.5]}, {"segments": 3}, {"segments": [], "device_traces": []}),
            {"segments": [{"blocks": 1}]},
        )
    )


def _change(chance: random.Random, value: Any) -> None:
    """One change somewhere in the containers, every depth about as likely as the others."""
    holder = value
    while True:
        if not holder:
            return
        key = chance.choice(list(holder)) if isinstance(holder, dict) else chance.randrange(len(holder))
        inner = holder[key]
        if not isinstance(inner, dict | list) or not inner or chance.random() < 0.15:
            break
        holder = inner
    kind = chance.random()
    if kind < 0.55:
        holder[key] = chance.choice(_ODD)
    elif kind < 0.7:
        del holder[key]
    elif kind < 0.8 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    elif kind < 0.9 and isinstance(holder, list):
        holder.reverse()
    elif isinstance(holder, dict):
        holder[chance.choice(("added", 5, "frames", "action", "blocks"))] = chance.choice(_ODD)
    else:
        # A container in itself.
        holder[key] = holder


def _damage(chance: random.Random, data: bytearray) -> None:
    at = chance.randrange(len(data))
    kind = chance.random()
    if kind < 0.3:
        data[at] = chance.randrange(256)
    elif kind < 0.6:
        data[at] = chance.choice(_OPCODES)
    elif kind < 0.7:
        del data[at : at + chance.choice((1, 2, 9))]
    elif kind < 0.8:
        data[at:at] = bytes(chance.choice(_OPCODES) for _ in range(chance.choice((1, 3, 40))))
    elif kind < 0.9:
        del data[at:]
    else:
        data[at:at] = data[at : at + chance.choice((5, 50, 500))]
    if not data:
        data.append(46)

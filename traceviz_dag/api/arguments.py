"""Arguments of public functions, checked by their annotations: what cannot be meant is refused in one line."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import signature
from operator import index
from typing import Any, ParamSpec, TypeVar

from traceviz_dag.errors import TracevizError, UsageError, file_system_line

P = ParamSpec("P")
T = TypeVar("T")

_LARGEST = 2**63 - 1
"""Of an integer of the tables."""


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """A function that takes only what its annotations say; numbers of other libraries become Python's.

    Arguments of other annotations than those below are taken as they are.

    Raises:
        UsageError: names the argument, what it takes, and what was given.
        TracevizError: a fault of the file system, with the remedy.
    """
    known = signature(function)
    taken = {name: _taken(str(each.annotation)) for name, each in known.parameters.items()}
    several = {name for name, each in known.parameters.items() if each.kind is each.VAR_POSITIONAL}

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        given = known.bind(*args, **kwargs)
        for name, value in given.arguments.items():
            check = taken[name]
            if check is not None:
                given.arguments[name] = (
                    tuple(_one(name, each, check) for each in value) if name in several else _one(name, value, check)
                )
        try:
            return function(*given.args, **given.kwargs)
        except OSError as error:
            # The system numbers its faults: a timeout without a number is the caller's own, from a handler of signals.
            if isinstance(error, TracevizError) or (isinstance(error, TimeoutError) and error.errno is None):
                raise
            raise TracevizError(file_system_line(error)) from error

    return called


_Check = tuple[bool, str, Callable[[Any], Any]]
"""Whether None is taken, what is taken in words, and what gives it."""


def _taken(annotation: str) -> _Check | None:
    kind, _, rest = annotation.partition(" | ")
    check = _KINDS.get(kind)
    return (rest == "None", *check) if check is not None and rest in ("", "None") else None


def _one(name: str, value: Any, check: _Check) -> Any:
    optional, words, give = check
    if value is None and optional:
        return None
    try:
        return give(value)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"{name} takes {words}, not {_shown(value)}") from None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _whole(value: Any) -> int:
    number = index(value)
    if isinstance(value, bool) or abs(number) > _LARGEST:
        raise ValueError
    return number


def _number(value: Any) -> float:
    if isinstance(value, bool | str):
        raise TypeError
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise TypeError
    value.encode()
    return value


def _yes_or_no(value: Any) -> bool:
    if not isinstance(value, bool) and getattr(value, "dtype", None) != "bool":
        raise TypeError
    return bool(value)


def _path(value: Any) -> Any:
    if not isinstance(value, str | os.PathLike) or "\0" in _text(os.fsdecode(value)):
        raise TypeError
    return value


def _names(value: Any) -> Sequence[str]:
    names = [] if isinstance(value, str) else [_text(one) for one in value]
    if not names or len(set(names)) < len(names):
        raise ValueError
    return names


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError
    return {_text(name): each for name, each in value.items()}


_KINDS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "int": ("a whole number", _whole),
    "float": ("a number", _number),
    "str": ("a text", _text),
    "bool": ("True or False", _yes_or_no),
    "PathLike": ("a path", _path),
    "Sequence[str]": ("a list of different names, such as ['rank']", _names),
    "Mapping[str, float]": ("a mapping of names to numbers", _mapping),
    "Mapping[str, object]": ("a mapping of names to values", _mapping),
}
"""Annotation → what it takes in words, and what gives it, or raises."""

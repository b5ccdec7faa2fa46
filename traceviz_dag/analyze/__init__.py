"""Pure functions on tables: intervals, overlap, micro-batches, and what only several ranks show."""

from __future__ import annotations

import sys
from importlib import import_module
from inspect import Signature, signature
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    """Called, it is ``traceviz_dag.analyze`` of the Python API, whose name this package has, too."""

    @property
    def __signature__(self) -> Signature:
        return signature(self._function)

    @property
    def _function(self) -> Any:
        # By name: nothing here may know of what is above.
        return import_module("traceviz_dag.api.job").analyze

    def __call__(self, *paths: Any, **options: Any) -> Any:
        return self._function(*paths, **options)


sys.modules[__name__].__class__ = _Room

"""Imported for its effect, in processes of our own: pyarrow does without pandas, until somebody imports that.

For the first Python list that it takes, pyarrow imports pandas, to know its objects: a fifth of the time of a small
analysis. It asks once; where there is no pandas then, lists are lists, and what needs pandas imports it later.
"""

from __future__ import annotations

import sys

import pyarrow as pa


class _None:
    """Finds no pandas."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


if "pandas" not in sys.modules:
    sys.meta_path.insert(0, _None)
    pa.array([None])
    sys.meta_path.remove(_None)

"""The nesting of host rows, by the name that the classification knows it under; profiles nest theirs when read."""

from __future__ import annotations

from traceviz_dag.read.host_tree import NONE, Bool, HostTree, build_tree, innermost, take

__all__ = ["NONE", "Bool", "HostTree", "build_tree", "innermost", "take"]

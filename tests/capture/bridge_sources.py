"""Single classes out of Megatron Bridge's sources, which cannot be imported without a GPU's packages."""

from __future__ import annotations

import ast
import dataclasses
import sys
import types
import typing
from pathlib import Path
from typing import Any

TRAINING = "megatron/bridge/training"


def profiling_config(sources: Path) -> types.ModuleType:
    """A module that holds Bridge's ``ProfilingConfig``."""
    text = (sources / TRAINING / "config.py").read_text()
    found = next(node for node in ast.parse(text).body if getattr(node, "name", "") == "ProfilingConfig")
    module = types.ModuleType("megatron.bridge.training.config")
    names = {**vars(dataclasses), **vars(typing)}
    module.__dict__.update({name: names[name] for name in ("dataclass", "field", "Optional", "Any")})
    exec(compile(ast.Module([found], []), "config.py", "exec", dont_inherit=True), module.__dict__)
    return module


def dataclass_fields(sources: Path, name: str) -> set[str]:
    """The fields of one of Bridge's NeMo-Run plugins."""
    text = (sources / "megatron/bridge/recipes/run_plugins.py").read_text()
    found = next(node for node in ast.parse(text).body if getattr(node, "name", "") == name)
    assert isinstance(found, ast.ClassDef)
    return {
        node.target.id for node in found.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def callback_manager(sources: Path) -> Any:
    """Bridge's ``CallbackManager``."""
    name = "bridge_callbacks"
    module = types.ModuleType(name)
    sys.modules[name] = module
    try:
        exec(
            compile((sources / TRAINING / "callbacks.py").read_text(), "callbacks.py", "exec", dont_inherit=True),
            module.__dict__,
        )
    finally:
        del sys.modules[name]
    return module.CallbackManager

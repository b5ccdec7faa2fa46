"""traceviz_dag: which rank, stage or link makes a Megatron-LM training step slow, read from its traces.

``import traceviz_dag as tv``, then ``tv.analyze(…)`` or ``tv.open(…)``: docs/python.md. What is here is loaded when it
is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traceviz_dag.api.answers import Answer, Figure, Finding, Gain, Source
    from traceviz_dag.api.iteration import Iteration
    from traceviz_dag.api.job import Job, analyze, diff, open
    from traceviz_dag.api.measures import measures
    from traceviz_dag.errors import BadInputError, IncompleteError, NoEvidenceError, TracevizError, UsageError

__all__ = [
    "Answer",
    "BadInputError",
    "Figure",
    "Finding",
    "Gain",
    "IncompleteError",
    "Iteration",
    "Job",
    "NoEvidenceError",
    "Source",
    "TracevizError",
    "UsageError",
    "analyze",
    "diff",
    "measures",
    "open",
]

_PLACES = {
    **dict.fromkeys(("Answer", "Figure", "Finding", "Gain", "Source"), "api.answers"),
    **dict.fromkeys(("Job", "analyze", "diff", "open"), "api.job"),
    **{"Iteration": "api.iteration", "measures": "api.measures"},
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "analyze":
        # The package of that name, which can be called: what it is must not depend on what was imported before.
        return import_module(f"{__name__}.analyze")
    return getattr(import_module(f"{__name__}.{_PLACES.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    return __all__

"""Which asset draws which kinds of figures."""

from __future__ import annotations

from traceviz_dag.show.registry import FigureKind, Scope, kinds_of

SCOPES = {
    "rank_figures": (Scope.RANK,),
    "pipeline_figures": (Scope.PIPELINE,),
    "replica_figures": (Scope.REPLICA, Scope.ALL_RANKS),
    "across_ranks_figures": (Scope.ACROSS_RANKS,),
    "memory_figures": (Scope.MEMORY_OF_RANK, Scope.MEMORY),
}
"""Asset → of what it draws figures."""


def kinds_drawn_by(asset: str) -> tuple[FigureKind, ...]:
    """The kinds of figures that an asset draws."""
    return kinds_of(*SCOPES[asset])


def asset_of(kind: FigureKind) -> str:
    """The asset that draws a kind of figure."""
    return next(name for name, scopes in SCOPES.items() if kind.scope in scopes)

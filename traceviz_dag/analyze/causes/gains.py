"""Edits and their gains as rows, which tables store and commands and figures show: summed over steps, ranked, named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from traceviz_dag.analyze.wording import capitals, counted, numbered

if TYPE_CHECKING:
    from traceviz_dag.analyze.causes.reordered import Change

TOGETHER = "together"
"""The edit that is all others at once."""

CHANGE_COLUMNS = ("microbatches", "schedule", "chunks", "layers", "no_recompute")
"""What a change of the order of work changes, see ``Change.as_row``."""

EDIT_COLUMNS = ("edit", "rank", "ranks", "dimension", "factor", *CHANGE_COLUMNS)
"""What distinguishes one edit from another; table ``what_if`` has the first five; no usual edit has the others."""

MOST_RANKS = 8
"""Ranks that are fixed at most without being asked for: those of the largest excess."""

FEWEST_ALIKE = 4
"""Like transfers of a rank that show what is usual."""

CONGESTED_TIMES = 1.5
"""What a congested transfer takes to what is usual."""

LEAST_CONGESTED_NS = 20_000
"""What congestion costs a transfer at least; less is latency."""

LEAST_GAIN = 0.01
"""Share of the step that a finding gains at least."""

SUMMED_COLUMNS = ("step_ns", "predicted_step_ns", "gain_ns", "gain_low_ns", "gain_high_ns")
"""Columns that are sums over the steps of an iteration."""

MEAN_COLUMNS = ("microbatch_ns", "predicted_microbatch_ns")
"""Columns that are means over the steps, of edits of the order of work: the step for each micro-batch."""


class NamedEdit(Protocol):
    """What distinguishes one edit from another."""

    @property
    def name(self) -> str:
        """Its word."""

    @property
    def rank(self) -> int | None:
        """The rank that it fixes."""

    @property
    def ranks(self) -> str | None:
        """The ranks that it fixes together, as ``wording.spanned`` writes them."""

    @property
    def dimension(self) -> str | None:
        """The dimension whose communication it changes."""

    @property
    def factor(self) -> float | None:
        """How many times faster it makes communication."""

    @property
    def untouched(self) -> float | None:
        """Share of the time of what it makes faster that it leaves as it is; None where that is no question."""

    @property
    def change(self) -> Change | None:
        """The order of work that it asks for."""


REPLAY_ERROR = 0.05
"""Share of its gain by which a bar reaches beyond it at least: with it, 97 % of the bars of jobs that
``benchmarks/drawn_faults.py`` draws hold what is truly gained."""


REMADE_ERROR = 0.01
"""Share of the step by which the bar of a change reaches further where items are made that no step ran: with it, 39 of
40 bars of ``benchmarks/advise.py`` hold the step of the changed job, without it 28."""


def error_bar(gain_ns: int, free_ns: int, error: float, remade_ns: int = 0) -> tuple[int, int]:
    """The least and the most that edits gain.

    Args:
        gain_ns: with the measured lags. free_ns: without any, as if the host were free.
        error: of a replay, as a share of the step. One that is off by more than the step shows nothing; twice the gain
            says so already.
        remade_ns: the step, where items are made that no step ran; else 0.
    """
    reach = round(max(min(abs(error), 1.0), REPLAY_ERROR) * max(abs(gain_ns), abs(free_ns)) + REMADE_ERROR * remade_ns)
    return min(gain_ns, free_ns) - reach, max(gain_ns, free_ns) + reach


_MOST_NAMED = 6
"""Refused edits that a sentence names."""


def edit_row(edits: Sequence[NamedEdit]) -> dict[str, Any]:
    """What distinguishes edits, one or several together, from others: ``EDIT_COLUMNS``."""
    alone = edits[0] if len(edits) == 1 else None
    change = next((edit.change for edit in edits if edit.change is not None), None)
    return {
        "edit": alone.name if alone else TOGETHER,
        "rank": alone.rank if alone else None,
        "ranks": alone.ranks if alone else None,
        "dimension": alone.dimension if alone else None,
        "factor": alone.factor if alone else None,
        **(change.as_row() if change else dict.fromkeys(CHANGE_COLUMNS)),
    }


def gain_row(
    edits: Sequence[NamedEdit], step_ns: int, gain_ns: int, bar: tuple[int, int], microbatches: tuple[int, int] | None
) -> dict[str, Any]:
    """What edits, one or several together, gain in one step.

    Args:
        bar: see ``error_bar``. microbatches: of the step as it was and with the edits; None where the order stays.
    """
    predicted_ns = step_ns - gain_ns
    before, after = microbatches or (None, None)
    return {
        **edit_row(edits),
        "step_ns": step_ns,
        "predicted_step_ns": predicted_ns,
        "gain_ns": gain_ns,
        "gain_low_ns": bar[0],
        "gain_high_ns": bar[1],
        "untouched_share": edits[0].untouched if len(edits) == 1 else None,
        "microbatch_ns": round(step_ns / before) if before else None,
        "predicted_microbatch_ns": round(predicted_ns / after) if after else None,
    }


def refusals(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Edits that were refused in some step, each once, with the first ``refusal``.

    Args:
        rows: with ``EDIT_COLUMNS`` and ``refusal``; those without an edit or a refusal are left out.
    """
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        if row["edit"] is not None and row["refusal"] is not None:
            key = tuple(row.get(name) for name in EDIT_COLUMNS)
            found.setdefault(key, {**dict(zip(EDIT_COLUMNS, key, strict=True)), "refusal": row["refusal"]})
    return list(found.values())


def refused_sentence(refused: Sequence[Mapping[str, Any]]) -> str | None:
    """How many edits are refused, and why most of them are; None where none is.

    Args:
        refused: of ``refusals``.
    """
    if not refused:
        return None
    by_reason: dict[str, list[str]] = {}
    for row in refused:
        by_reason.setdefault(row["refusal"], []).append(named_edit(row))
    reason, names = max(by_reason.items(), key=lambda one: len(one[1]))
    others = f"; {len(refused) - len(names)} for other reasons, see --json" if len(by_reason) > 1 else ""
    named = f"{', '.join(names[:_MOST_NAMED])}{', and others' * (len(names) > _MOST_NAMED)}"
    return f"{counted(len(refused), 'edit is', 'edits are')} refused; {named}: {reason}{others}"


def over_steps(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row for each edit, summed over the steps of the iteration; the largest gain first.

    The error bar of the sum also holds what it would be if every step gained as little, or as much, as any one does.
    """
    of_edit: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        of_edit.setdefault(tuple(row.get(name) for name in EDIT_COLUMNS), []).append(row)
    summed = []
    for key, parts in of_edit.items():
        one: dict[str, Any] = {**dict(zip(EDIT_COLUMNS, key, strict=True)), "steps": len(parts)}
        one |= {name: sum(part[name] for part in parts) for name in SUMMED_COLUMNS}
        gains = [part["gain_ns"] for part in parts]
        one["gain_low_ns"] = min(one["gain_low_ns"], min(gains) * len(parts))
        one["gain_high_ns"] = max(one["gain_high_ns"], max(gains) * len(parts))
        one["untouched_share"] = max((part.get("untouched_share") or 0.0 for part in parts), default=0.0) or None
        for name in MEAN_COLUMNS:
            known = [part[name] for part in parts if part.get(name) is not None]
            one[name] = round(sum(known) / len(known)) if known else None
        summed.append(one)
    return sorted(
        summed,
        key=lambda row: (
            -row["gain_ns"],
            row["edit"],
            -1 if row["rank"] is None else row["rank"],
            str(row["ranks"]),
            str(row["dimension"]),
        ),
    )


def mean_gains(rows: Sequence[Mapping[str, Any]]) -> tuple[int, int, int, int]:
    """The mean step and what one edit gains of it, at least and at most, ns, from its rows of all steps."""
    (row,) = over_steps(rows)
    step_ns, gain, low, high = (
        round(row[name] / len(rows)) for name in ("step_ns", "gain_ns", "gain_low_ns", "gain_high_ns")
    )
    return step_ns, gain, low, high


def named_edit(row: Mapping[str, Any]) -> str:
    """An edit in words."""
    dimension = f"{capitals(row['dimension'] or '')} communication"
    words = {
        "fix_rank": f"fix rank {row['rank']}",
        "hide": f"hide {dimension}",
        "faster": f"{row['factor'] or 0:g} times faster {dimension}",
        "fix_gpu": f"fix the GPU of rank {row['rank']}",
        "fix_ranks": f"fix the GPUs of ranks {row.get('ranks')} together",
        "fix_group": f"fix the GPUs of the tensor-parallel group of ranks {row.get('ranks')}",
        "fix_node": f"fix the GPUs of the node of ranks {row.get('ranks')}",
        "fix_link": f"fix the links of rank {row['rank']}",
        "fix_links": f"fix the links {_shared(row.get('ranks'))}",
        "even_layers": "as many layers in every stage",
        "equal_stages": "equal pipeline stages",
        "equal_ranks": "equal ranks in each pipeline stage",
        "no_jitter": "no jitter between micro-batches",
        "no_pauses": "no pauses of hosts" if row["rank"] is None else f"no pauses of the host of rank {row['rank']}",
        "no_hidden_waits": "no hidden waits of hosts",
        "host_free": f"a host{_of_rank(row)} that takes no time",
        "balanced_experts": "evenly loaded experts",
        "no_congestion": "no congested transfers",
        **dict.fromkeys(CHANGE_COLUMNS, named_change(row)),
        TOGETHER: "all of these together",
    }
    return words[row["edit"]]


def _shared(ranks: str | None) -> str:
    several = ranks is not None and not ranks.isdigit()
    return f"that ranks {ranks} share" if several else f"of rank {ranks}"


def _of_rank(row: Mapping[str, Any]) -> str:
    return "" if row["rank"] is None else f" of rank {row['rank']}"


def named_change(row: Mapping[str, Any]) -> str:
    """A change of the order of work in words, from its columns."""
    count, chunks, off = row.get("microbatches"), row.get("chunks"), row.get("no_recompute")
    size = row.get("microbatch_size")
    words = [f"micro-batches {size:g} times as large"] if size else []
    words += [f"ranks in the order {row['rank_order']}"] if row.get("rank_order") else []
    words += [f"{count} micro-batch{'es' * (count > 1)}"] if count else []
    words += [f"schedule {row['schedule']}"] if row.get("schedule") else []
    words += [f"{chunks} model chunk{'s' * (chunks > 1)} a stage"] if chunks else []
    words += [f"layers {row['layers']}"] if row.get("layers") else []
    words += [f"no recomputation in {numbered('stage', map(int, off.split(',')))}"] if off else []
    return ", ".join(words)

"""Another capture of a job beside one: whether the two differ in the size of their micro-batches alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from traceviz_dag.analyze.causes.gains import mean_gains
from traceviz_dag.analyze.causes.reordered import Change
from traceviz_dag.analyze.causes.resized import TwoSizes
from traceviz_dag.analyze.causes.what_if import WhatIf
from traceviz_dag.analyze.diff.comparable import SETTING, Facts, differences
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.pipeline.causes import ranked_steps
from traceviz_dag.pipeline.diff.facts import facts_of
from traceviz_dag.pipeline.stored_iteration import StoredIteration

_OF_SIZE = ("microbatches", f"{SETTING}micro_batch_size", f"{SETTING}global_batch_size", "shapes")
"""Facts in which micro-batches of another size differ."""

_MESSAGES_SQL = """
SELECT dimension, coalesce(collective, name) AS what, phase, max(greatest(in_elements, out_elements)) AS elements
FROM kernels
WHERE run = $run AND iteration = $iteration AND in_elements IS NOT NULL
    AND (dimension IN ('dp', 'edp') OR microbatch IS NOT NULL AND dimension IN ('pp', 'tp', 'cp'))
GROUP BY ALL
"""


@dataclass(frozen=True, slots=True)
class StepsOfTwoSizes:
    """The training steps of two captures, pair by pair; see ``search.Beside``.

    Attributes:
        unit: the size of a micro-batch of one sample, or of the smaller one where that is not known, over that of now.
    """

    pairs: Sequence[TwoSizes]
    unit: Fraction

    @property
    def sizes(self) -> Sequence[Fraction]:
        """See ``search.Beside``."""
        ratio = self.pairs[0].ratio
        least, most = sorted((ratio, Fraction(1)))
        sizes = (each * self.unit for each in range(1, int(most / self.unit) + 1))
        return [size for size in sizes if size >= least and size != 1]

    def gains(self, change: Change, size: Fraction) -> tuple[int, int, int, int]:
        """See ``search.Beside``."""
        return mean_gains([one.as_row(change, size) for one in self.pairs])


def two_sizes(here: StoredIteration, there: StoredIteration, steps: Sequence[WhatIf]) -> StepsOfTwoSizes:
    """An iteration and one of another capture.

    Args:
        steps: those of ``here``.

    Raises:
        NoEvidenceError: they differ in more than the size of micro-batches, or not in that, or nothing shows it.
    """
    (facts, inputs), (others, their_inputs) = (facts_of([one]) for one in (here, there))
    for one in differences(facts, others, (inputs, their_inputs)):
        if one.fact not in _OF_SIZE:
            raise NoEvidenceError(f"the two captures also differ in {one.what}: {one.a} and {one.b}")
    stated = [_stated(each) for each in (facts, others)]
    shown = _ratio(_messages(here), _messages(there))
    said = Fraction(stated[1], stated[0]) if stated[0] and stated[1] else None
    if shown is not None and said is not None and shown != said:
        raise NoEvidenceError(
            f"micro-batches hold {float(said):g} times as many samples and messages are {float(shown):g} times as "
            "large: the two captures also differ in the length of sequences"
        )
    ratio = shown or said
    if ratio is None:
        raise NoEvidenceError("nothing shows the sizes of their micro-batches")
    if ratio == 1:
        raise NoEvidenceError("the two captures have micro-batches of one size")
    others_steps = ranked_steps(there, there.table("collectives"), there.table("messages"))
    pairs = [TwoSizes(mine, its.what_if(), ratio) for mine, its in zip(steps, others_steps, strict=False)]
    if not pairs:
        raise NoEvidenceError("the other capture has no training step")
    return StepsOfTwoSizes(pairs, Fraction(1, stated[0]) if stated[0] else min(ratio, Fraction(1)))


def _stated(facts: Facts) -> int | None:
    """Samples of a micro-batch, where the traces state them."""
    said = facts.get(f"{SETTING}micro_batch_size", frozenset())
    return int(*said) if len(said) == 1 and all(map(str.isdecimal, said)) else None


def _messages(one: StoredIteration) -> Mapping[tuple[str, str, str], int]:
    rows = one.lake.query_iteration(_MESSAGES_SQL, run=one.run, iteration=one.iteration).to_pylist()
    return {(row["dimension"], row["what"], row["phase"]): row["elements"] for row in rows}


def _ratio(here: Mapping[tuple[str, str, str], int], there: Mapping[tuple[str, str, str], int]) -> Fraction | None:
    """How many times as large messages of activations are there; None where there are none.

    Raises:
        NoEvidenceError: those of gradients or parameters are not equal, or not all of activations are as much larger.
    """
    ratios: dict[Fraction, str] = {}
    for key in here.keys() & there.keys():
        times = Fraction(there[key], here[key]) if here[key] else Fraction(1)
        if key[0] not in ("dp", "edp"):
            ratios[times] = f"{key[0].upper()} {key[1]}"
        elif times != 1:
            raise NoEvidenceError("gradients or parameters are of other sizes, so the two captures are of two models")
    if len(ratios) > 1:
        (one, first), (other, second) = sorted(ratios.items())[:2]
        raise NoEvidenceError(
            f"messages of {first} are {float(one):g} times as large and those of {second} {float(other):g} times: the "
            "two captures differ in more than the size of micro-batches"
        )
    return next(iter(ratios), None)

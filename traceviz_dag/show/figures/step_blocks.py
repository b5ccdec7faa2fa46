"""Micro-batch steps as numbered blocks, equal in all figures: forward blue, backward orange, chunks in two shades."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from traceviz_dag.analyze.intervals import NOTHING, Intervals, intersect, union
from traceviz_dag.show.lanes.words import STEP_KINDS, word_of
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.activity import Steps
from traceviz_dag.show.page.blocks import (
    Band,
    Part,
    Resolution,
    draw_boxes,
    draw_edges,
    draw_numbers,
    draw_shares,
    hairlines,
    number_size,
)
from traceviz_dag.show.page.page import DATA_WIDTH, LegendEntry, TimeScale
from traceviz_dag.vocabulary import Phase

PALE_NOTE = "pale: communication is exposed"
_PALE = f"{palette.PAPER}A8"
_COLUMNS = 960
_SIDES = ((False, Phase.FORWARD.value), (True, Phase.BACKWARD.value))


@dataclass(frozen=True, slots=True)
class StepStyle:
    """How steps are drawn in all rows of a figure, so that its numbers have one size.

    Attributes:
        foot: share of the band, from below, that numbers keep free.
        size: of the numbers in points; None where no number has room.
    """

    foot: float
    size: float | None

    @classmethod
    def of(cls, axes: Axes, every: Sequence[Steps], height: float, foot: float, scale: TimeScale) -> StepStyle:
        """The style that suits all steps of a figure whose bands are so high (inches)."""
        steps = [each for each in every if len(each)]
        if not steps:
            return cls(foot, None)
        lengths = np.concatenate([each.time.ends - each.time.starts for each in steps])
        texts = [text for each in steps for text in _numbers(each)]
        time = scale.on_axis(Intervals(np.zeros(len(lengths), np.int64), lengths), 0)
        room = height * (0.5 if any(each.overlap() for each in steps) else 1 - foot)
        return cls(foot, number_size(axes, time, room, texts))


def draw_steps(
    axes: Axes,
    steps: Steps,
    band: Band,
    style: StepStyle,
    scale: TimeScale,
    zero_ns: int,
    name: str,
    exposed: Intervals = NOTHING,
) -> int:
    """Draw each step as a block from its first start to its last end; returns how many numbers fitted.

    Where forward and backward steps run side by side, forward takes the upper half of the band and backward the lower.
    Chunks with an odd number are lighter. A block is pale as high as the share of its time in which communication is
    exposed: there it waits or transfers, and works on no micro-batch.
    """
    side_by_side = steps.overlap()
    fitted = 0
    for backward, word in _SIDES:
        part = band.part(0.5, 1.0) if side_by_side and backward else band.part(0.0, 0.5) if side_by_side else band
        numbers = part if side_by_side else band.part(0.0, 1 - style.foot)
        for odd in (False, True):
            chosen = steps.take((steps.backward == backward) & (np.maximum(steps.chunk, 0) % 2 == odd))
            if not len(chosen):
                continue
            colour = word_of(STEP_KINDS[backward + 2 * odd]).colour
            widest = Resolution.of(scale.span_ns, DATA_WIDTH).width_ns
            time = scale.on_axis(hairlines(chosen.time, widest), zero_ns)
            draw_boxes(axes, time, part, colour, f"{name}/{word}-{int(odd)}")
            pale = intersect(union(*chosen.time), exposed)
            if len(pale.starts):
                window = (zero_ns, zero_ns + scale.span_ns)
                shown = [Part("exposed", pale, _PALE)]
                draw_shares(axes, shown, window, part, scale, _COLUMNS, f"{name}/{word}-{int(odd)}")
            draw_edges(axes, time, part)
            if style.size is not None:
                ink = palette.text_on(colour)
                fitted += draw_numbers(axes, time, numbers, _numbers(chosen), style.size, ink)
    return fitted


def step_legend(every: Sequence[Steps]) -> Iterator[LegendEntry]:
    """Swatches of the shades that occur; the second half of a swatch is the shade of odd chunks."""
    several = any(len(each) and int(each.chunk.max()) > 0 for each in every)
    for backward, word in _SIDES:
        if any((each.backward == backward).any() for each in every):
            first, second = (word_of(STEP_KINDS[backward + 2 * odd]).colour for odd in (0, 1))
            yield LegendEntry(
                f"{word}, light: odd model chunk" if several else word, first, second if several else None
            )


def entries(categories: Iterable[str]) -> list[LegendEntry]:
    """A swatch a category."""
    return [LegendEntry(palette.LABEL[category], palette.CATEGORY[category]) for category in categories]


def _numbers(steps: Steps) -> list[str]:
    return [str(number) for number in steps.microbatch.tolist()]

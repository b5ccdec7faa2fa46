"""The random numbers of a rank's step: a segment has those that it has in the same job without faults.

A fault can so be left out with the same seed, and all that it does not touch stays as it was, kernel by kernel.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import numpy.typing as npt

from traceviz_dag.simulate.items import Context, Segment
from traceviz_dag.simulate.program.program import step_items
from traceviz_dag.simulate.program.stage import StageProgram
from traceviz_dag.simulate.settings import JobSettings
from traceviz_dag.simulate.templates import Template

Floats = npt.NDArray[np.float64]
_Place = tuple[str, Context]
"""What kind of work a segment is, and to what it belongs."""


@dataclass(frozen=True, slots=True)
class _Drawn:
    """The numbers of a segment of the job without faults: stretch of its host work, noise of its kernels."""

    template: Template
    stretch: float
    noise: Floats


class Draws:
    """The random numbers of one step of one rank."""

    def __init__(self, settings: JobSettings, rank: int, number: int, undisturbed: StageProgram | None) -> None:
        """Prepare a step.

        Args:
            undisturbed: the program without the faults that change what the rank runs; None where none does, and the
                numbers are drawn as they are asked for.
        """
        self.settings = settings
        self._generator = np.random.default_rng((settings.seed, 5, rank, number))
        self._drawn: defaultdict[_Place, list[_Drawn]] | None = None
        if undisturbed is None:
            return
        self._drawn = defaultdict(list)
        for item in step_items(undisturbed, rank, number):
            if isinstance(item, Segment):
                drawn = _Drawn(item.template, *self._draw(item.template))
                self._drawn[_place(item.template, item.context)].append(drawn)
        for segments in self._drawn.values():
            segments.reverse()
        self._seed = settings.seed, 6, rank, number
        self._added: Counter[_Place] = Counter()

    def of(self, template: Template, context: Context) -> tuple[float, Floats]:
        """By how much a segment's host work takes longer, and the noise of its kernels, in the program's order."""
        if self._drawn is None:
            return self._draw(template)
        place = _place(template, context)
        segments = self._drawn.get(place)
        drawn = segments.pop() if segments else None
        if drawn and drawn.template.kernels == template.kernels:
            return drawn.stretch, drawn.noise
        # What faults add depends on no other fault.
        self._added[place] += 1
        kind = crc32(f"{place}:{self._added[place]}".encode())
        self._generator = np.random.default_rng((*self._seed, kind))
        stretch, noise = self._draw(template)
        return (drawn.stretch, _matched(template, drawn, noise)) if drawn else (stretch, noise)

    def _draw(self, template: Template) -> tuple[float, Floats]:
        jitter = self.settings.jitter
        stretch = 1.0 + abs(float(self._generator.normal(0.0, 2 * jitter)))
        return stretch, self._generator.normal(1.0, jitter, len(template.kernels)).clip(0.8, 1.4)


def _matched(template: Template, drawn: _Drawn, noise: Floats) -> Floats:
    """The noise of a segment that has other kernels than without faults: of a name, the first is the first."""
    known = dict(zip(_ordinals(drawn.template), drawn.noise.tolist(), strict=True))
    return np.array([known.get(kernel, own) for kernel, own in zip(_ordinals(template), noise.tolist(), strict=True)])


def _place(template: Template, context: Context) -> _Place:
    kind = template.key.partition(":")[0]
    return kind, Context(context.phase, context.microbatch, context.chunk, context.layer)


def _ordinals(template: Template) -> Iterator[tuple[str, int]]:
    """Name of each kernel, and how many of this name are before it in the segment."""
    counts: defaultdict[str, int] = defaultdict(int)
    for kernel in template.kernels:
        yield kernel.name, counts[kernel.name]
        counts[kernel.name] += 1

"""What faults do to the kernels that a rank runs: others instead of its own, or the same ones that take longer.

Settings by which kernels of one name do different work are no faults, and act here, too, on every rank.

``disturbed`` is asked for each segment, before any time is known. Faults that depend on the clock act where a kernel
starts (``timing.clock_faults``), those of links where a communication is carried (``durations.Link``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from traceviz_dag.simulate.durations import Shape
from traceviz_dag.simulate.items import Context
from traceviz_dag.simulate.rank_grids import dense_grid
from traceviz_dag.simulate.settings import JobSettings
from traceviz_dag.simulate.templates import FlatRow, Library, Template
from traceviz_dag.simulate.tree import Bound, Collective, Kernel
from traceviz_dag.simulate.work.kernels import gives_weights
from traceviz_dag.vocabulary import Dimension, Kind

_LENGTHS = 8
"""Lengths that sequences have: so many at most, so that few templates are made."""

_PERSISTENT = "nvjet_hsh_128x256_64x4_2x1_v_bz_coopB_TNN"
_PROCESSORS = 132
_OTHER_TILE = "64x128_64x8_1x1_v_bz_splitK"
_WITH_TOKENS = (Dimension.TP, Dimension.CP)
"""Dimensions whose communication inside layers carries a micro-batch's tokens."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What faults and settings do to the kernels of one rank.

    Attributes:
        settings: the job. replica: place of the rank along data parallelism, whose ranks load sequences of their own.
    """

    settings: JobSettings
    rank: int
    replica: int

    @classmethod
    def of(cls, settings: JobSettings, rank: int) -> Disturbance | None:
        """What is done to a rank's kernels; None where no fault is of that kind."""
        f = settings.faults
        of_all = f.varying_sequences or settings.persistent or settings.wide_layers
        if rank not in (f.slow_clock, f.slow_memory, f.other_algorithm) and not of_all:
            return None
        return cls(settings, rank, dense_grid(settings).place(rank)["dp"])

    def apply(self, library: Library, template: Template, context: Context, step: int) -> Template:
        """The template that the rank runs instead of one of a healthy job; the same kernels in the same order."""
        f = self.settings.faults
        changes: dict[str, Callable[[Template], Template]] = {}
        if f.slow_clock == self.rank:
            bounds = (Bound.PRODUCT, Bound.ATTENTION)
            changes["clock"] = partial(_slowed, bounds=bounds, factor=f.slow_clock_factor)
        if f.slow_memory == self.rank:
            changes["memory"] = partial(_slowed, bounds=(Bound.MEMORY,), factor=f.slow_memory_factor)
        if f.other_algorithm == self.rank:
            changes["algorithm"] = partial(_other_algorithm, factor=f.other_algorithm_factor)
        if f.varying_sequences and context.microbatch >= 0:
            share = sequence_share(self.settings, step, context.microbatch, self.replica)
            changes[f"length {share}"] = partial(_of_length, share=share, tokens=_tokens(self.settings))
        if 0 <= self.settings.layers - self.settings.wide_layers <= context.layer < self.settings.layers:
            changes["wide"] = _wide
        if self.settings.persistent:
            changes["persistent"] = _persistent
        if not changes:
            return template
        return library.changed(template, "|".join(changes), partial(_changed, list(changes.values())))


def sequence_share(settings: JobSettings, step: int, microbatch: int, replica: int) -> float:
    """Length of a micro-batch's sequences over the job's sequence length, with ``Faults.varying_sequences``."""
    spread = settings.faults.varying_sequences
    generator = np.random.default_rng((settings.seed, 78, step, microbatch, replica))
    return 1 - spread * int(generator.integers(_LENGTHS)) / (_LENGTHS - 1)


def _changed(changes: list[Callable[[Template], Template]], template: Template) -> Template:
    for change in changes:
        template = change(template)
    return template


def _with_kernels(template: Template, change: Callable[[Kernel], Kernel]) -> Template:
    kernels = [change(kernel) for kernel in template.kernels]
    return replace(template, kernels=kernels, base_ns=np.array([kernel.base_ns for kernel in kernels], np.int64))


def _slowed(template: Template, bounds: tuple[Bound, ...], factor: float) -> Template:
    def slowed(kernel: Kernel) -> Kernel:
        return replace(kernel, base_ns=int(kernel.base_ns * factor)) if kernel.bound in bounds else kernel

    return _with_kernels(template, slowed)


def _other_algorithm(template: Template, factor: float) -> Template:
    """The gradients of weights by another algorithm: another kernel on another grid."""

    def other(kernel: Kernel) -> Kernel:
        if not gives_weights(kernel):
            return kernel
        duration = int(kernel.base_ns * factor)
        return replace(kernel, name=f"nvjet_hsh_{_OTHER_TILE}_NTN", base_ns=duration, grid=264, registers=128)

    return _with_kernels(template, other)


def _wide(template: Template) -> Template:
    """Products with matrices that are twice as wide."""

    def wider(kernel: Kernel) -> Kernel:
        if kernel.bound is not Bound.PRODUCT:
            return kernel
        *others, (last, width) = kernel.sizes
        return replace(kernel, base_ns=2 * kernel.base_ns, sizes=(*others, (last, 2 * width)))

    return _with_kernels(template, wider)


def _persistent(template: Template) -> Template:
    """One block per processor, and one name for all products."""

    def one(kernel: Kernel) -> Kernel:
        own = _OTHER_TILE not in kernel.name and kernel.bound is not Bound.NONE
        if not own or kernel.kind is not Kind.COMPUTATION:
            return kernel
        name = _PERSISTENT if kernel.bound is Bound.PRODUCT else kernel.name
        return replace(kernel, name=name, call="cuLaunchKernelEx", grid=_PROCESSORS, block=384)

    return _with_kernels(template, one)


def _tokens(settings: JobSettings) -> tuple[int, int]:
    """Tokens of a micro-batch on a rank, and of its shard of the sequence."""
    shape = Shape.of(settings)
    return shape.tokens, shape.shard


def _of_length(template: Template, share: float, tokens: tuple[int, int]) -> Template:
    """The same work on shorter sequences: attention follows the square of their length, all else the tokens."""

    def shorter_size(size: tuple[int, ...]) -> tuple[int, ...]:
        if len(size) == 1:
            return (round(size[0] * share),)
        return tuple(round(each * share) if each in tokens else each for each in size)

    def shorter(kernel: Kernel) -> Kernel:
        what = kernel.collective
        if what is not None:
            carries = what.dimension in _WITH_TOKENS and what.role != "batch"
            return replace(kernel, collective=_shorter_message(what, share)) if carries else kernel
        if kernel.bound is Bound.NONE or kernel.kind is not Kind.COMPUTATION:
            return kernel
        power = 2 if kernel.bound is Bound.ATTENTION else 1
        # Products run as many blocks as there are processors, whatever their shape.
        grid = kernel.grid if kernel.bound is Bound.PRODUCT else max(round(kernel.grid * share), 1)
        sizes = tuple(shorter_size(size) for size in kernel.sizes)
        return replace(kernel, base_ns=int(kernel.base_ns * share**power), grid=grid, sizes=sizes)

    def row(flat: FlatRow) -> FlatRow:
        facts = flat.facts
        if facts is not None and facts.dimension in _WITH_TOKENS and facts.role != "batch":
            facts = _shorter_message(facts, share)
        return replace(flat, facts=facts)

    return replace(_with_kernels(template, shorter), rows=[row(flat) for flat in template.rows])


def _shorter_message(what: Collective, share: float) -> Collective:
    inside, outside = round(what.in_elements * share), round(what.out_elements * share)
    return replace(what, in_elements=inside, out_elements=outside, nbytes=int(what.nbytes * share))

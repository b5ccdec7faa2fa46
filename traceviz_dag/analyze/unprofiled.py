"""How much longer a step takes while it is profiled, from what the training logged of other steps."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from statistics import median_low
from typing import NamedTuple

from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.read.training_log import LoggedSteps

PERTURBED = 0.03
"""How much longer a profiled step takes before its times are not to be relied on."""

FEWEST = 5
"""Lines of other iterations that show what is usual."""


class Unprofiled(NamedTuple):
    """Median time of steps that were not profiled, ns, and over how many lines of the log."""

    step_ns: int
    lines: int


def unprofiled_step(logged: Sequence[LoggedSteps], profiled: Collection[int]) -> Unprofiled:
    """The usual time of the steps that were not profiled.

    The first line is left out, since a job starts slowly, and so are the neighbours of profiled iterations: the
    profiler is prepared in the one before, and writes its file in the one after.

    Args:
        profiled: numbers of the iterations with traces, as the job logs them.

    Raises:
        NoEvidenceError: too few other iterations were logged.
    """
    near = {number + by for number in profiled for by in (-1, 0, 1)}
    usual = [one.mean_ns for one in logged[1:] if not any(one.first <= number <= one.last for number in near)]
    if len(usual) < FEWEST:
        raise NoEvidenceError(
            f"the log has {len(usual)} lines of iterations without the profiler, after its first; it takes {FEWEST}"
        )
    return Unprofiled(median_low(usual), len(usual))

"""Even layers where not all layers are alike: what the edit must not take for more or fewer layers of one kind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.accuracy import SMALL
from benchmarks.what_if import what_if_of
from tests.sets import fast
from traceviz_dag.errors import NoEvidenceError

JOB = replace(SMALL, pp=2, microbatches=2)
JOBS = {
    "further tokens": (replace(JOB, mtp_layers=1), "nothing shows how to share out multi-token prediction"),
    "further tokens, stacks off": (replace(JOB, mtp_layers=1, stacks=False), "multi-token prediction: kernels alone"),
    "hybrid": (replace(JOB, hybrid_pattern="MM*-"), "layers of several kinds: as many in each stage"),
    "hybrid, stacks off": (replace(JOB, hybrid_pattern="MM*-", stacks=False), "layers of several kinds: kernels alone"),
}


@pytest.mark.parametrize("name", fast(JOBS, "further tokens, stacks off"))
def test_layers_that_are_not_alike_are_not_evened(tmp_path, name):
    settings, why = JOBS[name]
    what_if = what_if_of(settings, tmp_path / "job")
    with pytest.raises(NoEvidenceError, match=why):
        what_if.edits.even_layers(what_if.times)
    assert what_if.edits.equal_stages(what_if.times)

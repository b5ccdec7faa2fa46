"""Windows under glibc's heap checker: a slice of benchmarks/capture_windows.py, in real training."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest

from tests.capture.windows import CASES, CHECKED, run

pytestmark = pytest.mark.long
SLICE = ["record_function around epochs", "DataLoader, list, no stacks", "torchrun, 3,6-7", "Megatron, optimizer steps"]


@pytest.mark.parametrize("name", SLICE)
def test_a_job_with_windows_that_follow_each_other_lives_and_records_them_all(
    name, capture_python, plugin_folder, tmp_path
):
    [case] = [case for case in CASES if case.name == name]
    if case.ways is None:
        case = replace(case, wanted="2-6", count=7)
    outcome = run(case, capture_python, plugin_folder, tmp_path)
    assert outcome.fault is None, outcome.said
    assert outcome.windows == len(case.expected)


CUT = """
import sys
import torch
from torch.profiler import ProfilerActivity, profile, record_function

def window():
    made = profile(activities=[ProfilerActivity.CPU])
    made.prepare_trace()
    made.start_trace()
    for _ in range(50):
        torch.randn(8, 8) @ torch.randn(8, 8)
    return made

for _ in range(60):
    first = window()
    function = record_function("open")
    function.__enter__()
    first.stop_trace()
    if sys.argv[1] == "after the first window":
        function.__exit__(None, None, None)
    del first
    second = window()
    if sys.argv[1] == "in the second window":
        function.__exit__(None, None, None)
    second.stop_trace()
"""


def test_the_checker_sees_what_killed_jobs_before_and_what_does_not(capture_python, tmp_path):
    """torch by itself: a recorded function that outlives its window must not close in another one."""

    def ends(when: str) -> int:
        return subprocess.run(
            [capture_python, "-c", CUT, when], env=CHECKED, cwd=tmp_path, capture_output=True, timeout=120, check=False
        ).returncode

    assert ends("after the first window") == 0
    assert ends("in the second window") < 0

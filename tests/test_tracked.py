"""The comparison of benchmarks/tracked.py: what counts as worse, and what is written about it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from benchmarks import tracked
from benchmarks.nsys import run_once
from benchmarks.tracked import BEGIN, END, KEPT, PAGE, TASKS, Figure, figure_of, is_worse, table, verdict, with_section

HELP = next(task for task in TASKS if task.name == "traceviz --help")
READING = TASKS[0]
KEPT_HELP = Figure(0.9, "s", "start, empty query", 0.3, 3.0, 0.02, 20)


def test_a_ratio_does_not_move_with_the_load():
    quiet = [(0.9 + wobble, 0.3) for wobble in (0.0, 0.01, 0.02)]
    assert figure_of(HELP, [(2 * cost, 2 * bare) for cost, bare in quiet]).ratio == figure_of(HELP, quiet).ratio


def test_the_median_of_the_ratios_counts_and_one_disturbed_pair_does_not():
    found = figure_of(HELP, [(0.9, 0.3), (0.9, 0.3), (2.7, 0.3), (0.9, 0.3)])
    assert (found.value, found.yardstick_value, found.ratio, found.noise) == (0.9, 0.3, 3.0, 0.0)


def test_reading_is_megabytes_per_second_and_its_ratio_still_one_of_times():
    found = figure_of(READING, [(0.1, 0.05)] * 3, megabytes=20)
    assert (found.value, found.unit, found.ratio) == (200, "MB/s", 2.0)


def test_imports_add_up_without_those_inside_them(monkeypatch, tmp_path):
    told = (
        "import time: self [us] | cumulative | imported package\n"
        "import time:       200 |        200 |   inner\nimport time:      1300 |       1500 | outer\na warning: 9 | 9\n"
    )
    done = subprocess.CompletedProcess([], 0, "", told)
    monkeypatch.setattr(tracked.subprocess, "run", lambda *_, **__: done)
    assert tracked.Imports("imports", "--help", times=2).pairs(tmp_path, tmp_path) == [(0.0015, 0.0015)] * 2


def test_over_ten_percent_is_worse_and_less_is_not():
    assert not is_worse(replace(KEPT_HELP, ratio=3.29), KEPT_HELP)
    assert is_worse(replace(KEPT_HELP, ratio=3.31), KEPT_HELP)
    assert not is_worse(replace(KEPT_HELP, ratio=1.0), KEPT_HELP)
    assert not is_worse(KEPT_HELP, None)


def test_a_change_within_the_noise_of_both_ratios_is_not_named():
    noisy = replace(KEPT_HELP, ratio=3.6, noise=0.15)
    assert is_worse(noisy, KEPT_HELP)
    assert not is_worse(noisy, replace(KEPT_HELP, noise=0.15))


def test_two_pairs_do_not_show_the_noise():
    assert figure_of(HELP, [(0.9, 0.3)] * 2).noise == 1
    assert figure_of(HELP, [(0.9, 0.3)] * 3).noise == 0


def test_what_got_worse_is_named_with_both_ratios():
    now = {"traceviz --help": replace(KEPT_HELP, value=1.05, ratio=3.5), "new": KEPT_HELP}
    kept = {"traceviz --help": KEPT_HELP}
    assert verdict(now, kept) == ["worse: traceviz --help costs 17% more than kept (3.5 × start, empty query, was 3)"]
    assert [line.split(" | ")[-1] for line in table(now, kept)[2:]] == ["+17% |", "new |"]


def test_only_the_generated_part_of_the_page_is_replaced():
    record = {"commit": "abc", "date": "2026-01-01", "machine": "2 cores"}
    once = with_section(f"above\n{BEGIN}\nold\n{END}\nbelow\n", record, {"traceviz --help": KEPT_HELP})
    assert once.startswith("above\n") and once.endswith("\nbelow\n") and "old" not in once
    assert "| traceviz --help | 0.9 s | start, empty query | 0.3 s | 3 | ± 2% |" in once
    assert with_section(once, record, {"traceviz --help": KEPT_HELP}) == once


def test_the_page_shows_the_kept_figures():
    record = json.loads(KEPT.read_text())
    figures = {name: Figure(**figure) for name, figure in record["figures"].items()}
    assert list(figures) == [task.name for task in TASKS]
    assert with_section(PAGE.read_text(), record, figures) == PAGE.read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody can wait for them")
def test_processes_that_outlive_their_parent_count():
    burn = "import time; begun = time.process_time()\nwhile time.process_time() < begun + 0.5: pass"
    leave = f"import os\nif os.fork() == 0:\n    exec({burn!r})\n    os._exit(0)"
    done = run_once([sys.executable, "-c", leave], dict(os.environ))
    assert done.ok and done.processor >= 0.5

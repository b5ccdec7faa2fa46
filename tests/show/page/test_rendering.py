"""Files: the same bytes for the same data, whatever the user's settings; small previews; whole files or none."""

from __future__ import annotations

import hashlib
import os
import re
import struct
import subprocess
import sys
from functools import cache
from itertools import cycle
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from tests.sets import fast
from tests.show.across_ranks import gain_rows, path_job, period_job, pipeline_job, waiting_job
from tests.show.job import MemorySource, job
from traceviz_dag.errors import UsageError
from traceviz_dag.show.figures.bubble_waterfall import draw_bubble_waterfall
from traceviz_dag.show.figures.clock_residuals import draw_clock_residuals
from traceviz_dag.show.figures.critical_path import draw_critical_path
from traceviz_dag.show.figures.model_replica import draw_model_replica
from traceviz_dag.show.figures.overlap_bars import draw_overlap_bars
from traceviz_dag.show.figures.period_distribution import draw_period_distribution
from traceviz_dag.show.figures.pipeline_group import draw_pipeline_group
from traceviz_dag.show.figures.predicted_gains import draw_predicted_gains
from traceviz_dag.show.figures.rank_timeline import draw_rank_timeline
from traceviz_dag.show.figures.wait_map import draw_wait_map
from traceviz_dag.show.page.rendering import FORMATS, MOST_PREVIEW_BYTES, encode, preview, write_figure
from traceviz_dag.system.whole_files import write_atomically

PATH = [
    (0, None, "host", None, 2_000_000),
    (0, 0, "work", "fwd_computation", 6_000_000),
    (1, 0, "transfer", "pp_communication", 1_000_000),
    (1, 0, "work", "bwd_computation", 20_000_400),
]
GAINS = [
    {"edit": "fix_rank", "rank": rank, "gain_ns": gain, "gain_low_ns": gain - 900_000, "gain_high_ns": gain + 100_000}
    for rank, gain in enumerate((8_000_000, 3_000_000, 0))
]

FIGURES = {
    "timeline": lambda: draw_rank_timeline(job(chunks=2), 1),
    "bars": lambda: draw_overlap_bars(job(chunks=2), 1),
    "pipeline": lambda: draw_pipeline_group(job(missing=[2]), 0),
    "replica": lambda: draw_model_replica(job(ranks=8), 0),
    "waits": lambda: draw_wait_map(waiting_job()),
    "bubbles": lambda: draw_bubble_waterfall(pipeline_job()),
    "periods": lambda: draw_period_distribution(period_job()),
    "clocks": lambda: draw_clock_residuals(waiting_job()),
    "path": lambda: draw_critical_path(path_job(PATH, {0: 0, 1: 1})),
    "gains": lambda: draw_predicted_gains(MemorySource({"what_if": {None: gain_rows(GAINS)}})),
    "stages": lambda: draw_model_replica(job(ranks=96, stages=4, microbatches=2), 0),
}
_IN_A_NEW_PROCESS = """
import hashlib
from tests.show.page.test_rendering import FIGURES
from traceviz_dag.show.page.rendering import FORMATS, encode
print(*(hashlib.sha256(encode(FIGURES["pipeline"](), kind)).hexdigest() for kind in FORMATS))
"""


@cache
def drawn(name: str) -> Figure:
    """A figure, drawn once for all tests."""
    return FIGURES[name]()


CASES = list(zip(FIGURES, cycle(FORMATS), strict=False))


@pytest.mark.parametrize(
    ("name", "file_format"),
    fast(CASES, *CASES[::4]),
)
def test_equal_data_give_equal_bytes_whatever_the_users_settings(name, file_format):
    first = encode(drawn(name), file_format)
    with mpl.rc_context({"font.size": 31, "axes.facecolor": "red", "svg.hashsalt": None, "savefig.facecolor": "blue"}):
        assert encode(FIGURES[name](), file_format) == first


@pytest.mark.long
def test_another_process_on_another_day_gives_the_same_bytes():
    environment = {**os.environ, "PYTHONHASHSEED": "7", "SOURCE_DATE_EPOCH": "86400", "PYTHONPATH": str(Path.cwd())}
    found = subprocess.run(
        [sys.executable, "-c", _IN_A_NEW_PROCESS], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == [hashlib.sha256(encode(drawn("pipeline"), kind)).hexdigest() for kind in FORMATS]


def test_no_file_shows_when_or_where_it_was_made():
    for file_format in ("svg", "pdf"):
        text = encode(drawn("pipeline"), file_format).decode("latin-1")
        assert not re.search(r"CreationDate|ModDate|<dc:date>|/home/|/tmp/", text)


def test_the_page_prints_on_a_sheet_and_the_png_is_sharp_enough():
    image = encode(drawn("pipeline"))
    width, height = struct.unpack(">II", image[16:24])
    assert width == 2200 and height < 2200


@pytest.mark.parametrize("name", fast(FIGURES, *list(FIGURES)[::4]))
def test_previews_are_small_and_legible(name):
    image = preview(drawn(name))
    assert len(image) <= MOST_PREVIEW_BYTES
    assert struct.unpack(">I", image[16:20])[0] >= 500, "still legible"


def test_the_preview_of_64_rows_fits():
    assert len(preview(draw_model_replica(job(ranks=64, stages=8, microbatches=8), 0))) <= MOST_PREVIEW_BYTES


def test_files_are_written_whole_or_not_at_all(tmp_path: Path, monkeypatch):
    paths = write_figure(drawn("pipeline"), tmp_path / "deep" / "er", "picture")
    assert {path.name for path in (tmp_path / "deep/er").iterdir()} == {f"picture.{kind}" for kind in FORMATS}
    before = paths["png"].read_bytes()

    def broken(*_):
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", broken)
    with pytest.raises(OSError, match="no space"):
        write_atomically(paths["png"], b"half")
    assert paths["png"].read_bytes() == before
    assert len(list((tmp_path / "deep/er").iterdir())) == len(FORMATS), "no temporary is left"


def test_an_unknown_format_is_refused():
    with pytest.raises(UsageError, match="gif"):
        encode(drawn("bars"), "gif")

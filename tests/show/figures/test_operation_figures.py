"""The roofline and the module tree against their tables: every value is drawn where it belongs."""

from __future__ import annotations

import io
import math

import pyarrow as pa
import pytest
from matplotlib.collections import PathCollection

from tests.analyze.across_ranks import simulated
from tests.show.drawn import collections, texts, title
from tests.show.job import MS, MemorySource
from traceviz_dag.pipeline.lake_source import LakeSource
from traceviz_dag.show.figures.module_tree import MOST_ROWS, draw_module_tree
from traceviz_dag.show.figures.roofline import MOST_PANELS, draw_roofline
from traceviz_dag.simulate import JobSettings

PEAK, BANDWIDTH = 10**15, 4 * 10**12


def operation(**values) -> dict:
    """100 calls of 2 · 10⁹ FLOPs and 10⁷ bytes on an imagined GPU, whose roofline is 2 µs each."""
    row = {"rank": 0, "stage": 0, "operation": "aten::mm", "kernel": "gemm", "shapes": "[[1]]", "phase": "forward"}
    row |= {"operation_class": "gemm", "number_format": "bf16", "count": 100, "kernel_ns": 400_000}
    row |= {"flops": 2 * 10**9, "bytes": 10**7, "gpu": "G", "peak_flops_per_s": PEAK, "memory_bytes_per_s": BANDWIDTH}
    row |= {"forward_shapes": None, "types": "['c10::BFloat16']"}
    row |= values
    known = row["flops"] is not None
    row["roofline_ns"] = 250_000 if known else None
    row["headroom_ns"] = row["kernel_ns"] - 250_000 if known else None
    return row


def source_of(rows: list[dict]) -> MemorySource:
    return MemorySource({"operations": {None: pa.Table.from_pylist(rows)}})


def points(figure) -> list[tuple[str, list[tuple[float, float]]]]:
    """(class/phase, (intensity, FLOP/s) of its points), panel by panel."""
    return [
        (artist.get_gid(), [(round(x, 6), round(y)) for x, y in artist.get_offsets().tolist()])
        for axes in figure.axes[1:]
        for artist in axes.collections
        if isinstance(artist, PathCollection) and artist.get_gid()
    ]


def test_operations_are_at_their_intensity_and_rate_below_the_roofs_of_their_stage():
    rows = [
        operation(),
        operation(rank=1, kernel_ns=600_000),
        operation(operation="flash", operation_class="attention", phase="backward", kernel_ns=900_000, flops=10**9),
        operation(operation="aten::copy_", operation_class="copy", flops=0, kernel_ns=10_000),
        operation(operation="aten::topk", operation_class="other", flops=None, bytes=None, kernel_ns=30_000),
        operation(stage=1, rank=2, operation="aten::add", operation_class="elementwise", phase="other"),
        operation(stage=1, rank=2, operation="nccl", operation_class="communication", kernel_ns=10**9),
    ]
    figure = draw_roofline(source_of(rows))
    # Ranks of a stage are one point: 200 calls in 1 ms.
    drawn = dict(points(figure)[:2])
    assert drawn == {
        "products/forward": [(200.0, round(200 * 2e9 / 1e-3))],
        "attention/backward": [(100.0, round(100 * 1e9 / 0.9e-3))],
    }
    assert points(figure)[2:] == [("memory-bound/other phases", [(200.0, round(100 * 2e9 / 0.4e-3))])]
    assert title(figure) == "flash, backward on stage 0: 28 % of the roof; perfect kernels save at most 325 µs per rank"
    shown = texts(figure)
    assert {"stage 0", "stage 1", "1  flash backward: 28 % of the roof, headroom 325 µs"} <= set(shown)
    assert any("not drawn: 1.7 % of the kernel time" in text for text in shown)
    # The slope ends where the peak begins.
    slope, flat = (line.get_xydata().tolist() for line in figure.axes[1].lines[:2])
    assert slope[1] == flat[0] == [PEAK / BANDWIDTH, PEAK]
    assert math.isclose(slope[0][1] / slope[0][0], BANDWIDTH)


def test_of_many_stages_those_with_the_most_headroom_have_a_panel_and_tiny_operations_no_point():
    rows = [operation(stage=stage, rank=stage, kernel_ns=(stage + 3) * 100_000) for stage in range(12)]
    rows += [operation(stage=11, rank=11, operation="tiny", kernel_ns=100)]
    figure = draw_roofline(source_of(rows))
    shown = texts(figure)
    assert [text for text in shown if text.startswith("stage ")] == [f"stage {n}" for n in range(4, 4 + MOST_PANELS)]
    assert any("stages 0–3 with less headroom left out" in text for text in shown)
    assert sum(len(each) for _, each in points(figure)) == MOST_PANELS
    without = source_of([operation(flops=None, bytes=None), operation(flops=0)])
    assert draw_roofline(without) is None and draw_roofline(MemorySource()) is None


def test_an_operation_is_one_point_whatever_its_main_kernel_is_on_each_rank():
    rows = [operation(rank=rank, kernel=f"kernel {rank % 2}", kernel_ns=400_000 + 100_000 * rank) for rank in range(4)]
    # Two operations, which only the sizes of the forward pass tell apart, have less headroom each.
    rows += [operation(operation="B", forward_shapes=sizes, kernel_ns=1_000_000) for sizes in ("[[1]]", "[[2]]")]
    figure = draw_roofline(source_of(rows))
    ((_, drawn),) = points(figure)
    assert len(drawn) == 3 and (200.0, round(400 * 2e9 / 2.2e-3)) in drawn
    # 150, 250, 350 and 450 µs of four ranks.
    assert title(figure).startswith("aten::mm, forward: 45 % of the roof; perfect kernels save at most 300 µs")


def test_ranks_of_different_gpus_have_their_own_panels_and_roofs():
    fast = {"gpu": "F", "peak_flops_per_s": 4 * PEAK, "memory_bytes_per_s": 2 * BANDWIDTH}
    figure = draw_roofline(source_of([operation(), operation(rank=1, **fast)]))
    shown = texts(figure)
    assert {"stage 0 · F", "stage 0 · G"} <= set(shown)
    flats = [axes.lines[1].get_ydata()[0] for axes in figure.axes[1:]]
    assert flats == [4 * PEAK, PEAK]
    assert " (F): " in title(figure) or " (G): " in title(figure)


def test_operations_of_few_elements_do_not_stretch_the_axes():
    rows = [operation(), operation(operation="aten::div", operation_class="elementwise", flops=1, bytes=12)]
    figure = draw_roofline(source_of(rows))
    low, high = figure.axes[1].get_ylim()
    assert low > PEAK / 100 and high < 10 * PEAK
    assert any("outside the axes: 1 operation of few elements" in text for text in texts(figure))


def test_names_with_dollar_signs_are_drawn_as_they_are():
    name = "b<$\\frac{x$>::$_1"
    figure = draw_roofline(source_of([operation(operation=name)]))
    assert any(f"1  {name} forward" in text for text in texts(figure))
    figure.savefig(io.BytesIO())


def module(path: str, time: int, rank: int = 0, **values) -> dict:
    row = {"rank": rank, "module_class": path, "depth": path.count("/") + 1, "name": path.rpartition("/")[2]}
    row |= {"part": None, "layer": None, "step_share": time / (100 * MS), "ratio": None, "kernel_ns": time}
    row |= {"forward_ns": time // 4, "backward_ns": time // 2, "recompute_ns": 0, "unknown_ns": 0}
    row |= {"roofline_ns": time // 2, "headroom_ns": time // 2, "exposed_ns": None}
    return row | values


def modules_source(rows: list[dict], ranks: int = 2) -> MemorySource:
    overlap = pa.table({"rank": pa.array(range(ranks), pa.int64())})
    return MemorySource({"modules": {None: pa.Table.from_pylist(rows)}, "overlap": {None: overlap}})


def test_modules_are_bars_of_their_phases_with_headroom_below_and_exposed_communication_behind():
    layer = {"part": "layer", "layer": 3, "ratio": 1.25}
    unknown = {"part": "embedding", "roofline_ns": None, "headroom_ns": None, "unknown_ns": 8 * MS}
    rows = [
        *(module("Wrapper", 40 * MS, rank) for rank in (0, 1)),
        *(module("Wrapper/Model", 40 * MS, rank) for rank in (0, 1)),
        module("Wrapper/Model/Embedding", 8 * MS, **unknown),
        *(module("Wrapper/Model/Layer", 16 * MS, rank, exposed_ns=4 * MS, **layer) for rank in (0, 0, 1, 1)),
    ]
    figure = draw_module_tree(modules_source(rows))
    boxes = collections(figure)
    spans = {name: (box.starts[0] / MS, box.ends[0] / MS) for name, box in boxes.items() if name.endswith("/Layer")}
    name = "Wrapper/Model/Layer"
    # Means of two ranks with two layers each.
    assert {key: pytest.approx(value) for key, value in spans.items()} == {
        f"forward/{name}": (0, 8),
        f"backward/{name}": (8, 24),
        f"other phases/{name}": (24, 32),
        f"exposed/{name}": (32, 40),
        f"headroom/{name}": (16, 32),
    }
    assert "headroom/Wrapper/Model/Embedding" not in boxes
    shown = texts(figure)
    # What only wraps the model is no row; the longest child comes first; a mean over ranks that lack it, too.
    tree = [text for text in shown if text in ("Wrapper", "Model", "Layer", "Embedding")]
    assert tree == ["Model", "Layer", "Embedding"]
    assert {"32.0 ms", "32 %", "50 %", "16.0 ms", "8.00 ms", "4.00 ms"} <= set(shown)
    assert any("layer 3 of rank 0 takes 1.25 times its equals" in text for text in shown)
    assert title(figure).startswith("Embedding takes 4.00 ms per rank, 4.0 % of the step")


def test_of_many_modules_the_longest_are_drawn_and_how_many_are_left_out_is_said():
    rows = [module("Model", 100 * MS), *(module(f"Model/M{number}", (number + 1) * MS) for number in range(40))]
    figure = draw_module_tree(modules_source(rows, 1))
    shown = texts(figure)
    assert {"M39", f"M{41 - MOST_ROWS}"} <= set(shown) and f"M{40 - MOST_ROWS}" not in shown
    assert any(f"{41 - MOST_ROWS} shorter modules are left out" in text for text in shown)
    assert draw_module_tree(modules_source([module("Model", 0)])) is None


def test_the_figures_of_a_simulated_job_show_its_stages_and_its_parts():
    model = {"layers": 4, "hidden": 1024, "heads": 8, "feed_forward": 2048, "sequence": 512, "vocabulary": 4096}
    iteration, _ = simulated(JobSettings(**model, pp=2, microbatches=2, shapes=True))
    source = LakeSource(iteration.lake, iteration.run, iteration.iteration)
    assert {"stage 0", "stage 1"} <= set(texts(draw_roofline(source)))
    shown = texts(draw_module_tree(source))
    assert {"GPTModel", "TransformerLayer", "MLP", "SelfAttention"} <= set(shown)
    blind, _ = simulated(JobSettings(**model, microbatches=2, stacks=False))
    blind_source = LakeSource(blind.lake, blind.run, blind.iteration)
    assert draw_module_tree(blind_source) is None and draw_roofline(blind_source) is None

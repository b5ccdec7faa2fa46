"""Pictures of GPU memory from the tables of an iteration: of each rank with a snapshot, and of all of them."""

from __future__ import annotations

from matplotlib.figure import Figure

from traceviz_dag.pipeline.lake_source import LakeSource
from traceviz_dag.pipeline.memory_schedule import host_steps, memory_by_stage
from traceviz_dag.show.memory.peak import draw_memory_peak
from traceviz_dag.show.memory.recording import recording_of
from traceviz_dag.show.memory.stages import draw_stage_memory
from traceviz_dag.show.memory.timeline import draw_memory_segments, draw_memory_timeline


def draw_timeline(source: LakeSource, rank: int) -> Figure | None:
    """Draw requested memory over the iteration, below its micro-batches; over the whole recording where the clocks do
    not allow to join them."""
    recording = recording_of(source, rank)
    if recording is None:
        return None
    host = host_steps(source.lake, source.run, source.iteration, rank)
    told = "clocks as recorded" if host.refusal is None else f"micro-batches are not drawn: {host.refusal}"
    window = host.window_ns
    if window is not None:
        # What the optimizer does at the end would be under the edge of the picture.
        window = (window[0], window[1] + (window[1] - window[0]) // 100)
    return draw_memory_timeline(recording, host.spans, window, [told])


def draw_peak(source: LakeSource, rank: int) -> Figure | None:
    """Draw who holds the peak of the recording."""
    recording = recording_of(source, rank)
    return None if recording is None else draw_memory_peak(recording)


def draw_segments(source: LakeSource, rank: int) -> Figure | None:
    """Draw the segments at the end of the recording."""
    recording = recording_of(source, rank)
    return None if recording is None else draw_memory_segments(recording)


def draw_stages(source: LakeSource) -> Figure | None:
    """Draw the activations that each stage keeps, against what its schedule implies."""
    ranks = memory_by_stage(source.lake, source.run, source.iteration)
    joined = [(one.rank, one.stage, one.memory) for one in ranks if one.memory is not None]
    return draw_stage_memory(f"{source.run} · iteration {source.iteration}", joined, None)

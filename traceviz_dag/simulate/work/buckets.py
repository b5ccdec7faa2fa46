"""Buckets of parameters: how many each holds, and over which group its gradients are reduced."""

from __future__ import annotations

from traceviz_dag.simulate.settings import JobSettings
from traceviz_dag.simulate.work.job import Job
from traceviz_dag.vocabulary import Dimension


def expert_hidden(settings: JobSettings) -> int:
    """Width of one expert's MLP on one rank: experts are a quarter as wide as the dense MLP."""
    return settings.feed_forward // 4 // settings.expert_tensor


def bucket_parameters(job: Job, bucket: str) -> int:
    """Parameters on one rank of a bucket: ``dense``, ``expert``, ``expert_layer`` (its rest), ``embedding``."""
    settings, shape = job.settings, job.shape
    if bucket == "embedding":
        return settings.vocabulary * settings.hidden // settings.tp
    if bucket == "expert":
        return settings.expert_count // settings.ep * 2 * shape.width * expert_hidden(settings)
    if bucket == "expert_layer":
        return shape.width * (4 * shape.inner + settings.expert_count) + 4 * shape.width
    return shape.layer_parameters


def group_of_bucket(settings: JobSettings, bucket: str) -> tuple[str, Dimension, int]:
    """Group, dimension and size of the group over which a bucket is reduced."""
    if bucket == "expert":
        return "edp", Dimension.EDP, settings.expert_data
    return "dp_cp", Dimension.DP, settings.dp * settings.cp

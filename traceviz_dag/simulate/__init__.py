"""Megatron training, simulated: faithful traces with their ground truth."""

from traceviz_dag.simulate.job import simulate
from traceviz_dag.simulate.settings import JobSettings

__all__ = ["JobSettings", "simulate"]

"""What older versions of PyTorch state of a communication: the inputs of ``record_param_comms``, without any names.

Versions from 2.1 on list sequence number, address of the process group, rank or source, name, splits and size of the
group, behind the tensors that are sent. Texts are left out, so that the name is empty: the kernel tells the operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import msgspec

from traceviz_dag.read.events import MISSING
from traceviz_dag.read.kineto.schema import as_integer, as_text

_INPUTS = 7
"""Inputs behind the tensors: sequence, group, rank, name, input and output splits, size."""


@dataclass(frozen=True, slots=True)
class StatedCommunication:
    """The facts of a communication, under the names of ``CollectiveFacts``; MISSING where the inputs do not say."""

    collective: Any
    sequence: int
    group_address: int
    group_size: int
    in_elements: int
    in_split: Any
    out_split: Any
    group_name: int = MISSING
    group_description: int = MISSING
    group_ranks: int = MISSING
    dtype: int = MISSING
    out_elements: int = MISSING
    source_rank: int = MISSING
    destination_rank: int = MISSING


def stated_communication(arguments: Any) -> Any:
    """What the inputs of ``record_param_comms`` state, if its arguments name neither collective nor group; else the
    arguments.

    The rows of a wait have these inputs, too, but no group.
    """
    if arguments.collective is not MISSING or arguments.group_name is not MISSING:
        return arguments
    inputs = _list_of(arguments.concrete_inputs)
    tensors = len(inputs) - _INPUTS
    if tensors not in (0, 1):
        return arguments
    sequence, address, _, name, in_split, out_split, size = inputs[tensors:]
    numbers = [as_integer(value) for value in (sequence, address, size)]
    splits = [as_text(value) for value in (in_split, out_split)]
    if MISSING in numbers or numbers[1] == 0 or not all(split.startswith("[") for split in splits):
        return arguments
    sizes = _list_of(arguments.input_sizes)
    return StatedCommunication(
        collective=as_text(name) or MISSING,
        sequence=numbers[0],
        group_address=numbers[1],
        group_size=numbers[2],
        in_elements=_elements(sizes[0]) if tensors and sizes else MISSING,
        in_split=splits[0],
        out_split=splits[1],
    )


def _elements(sizes: object) -> int:
    """Elements of a tensor, or of a list of tensors, of these sizes; an empty list stands for what is not recorded."""
    if not isinstance(sizes, list) or not sizes:
        return MISSING
    tensors = sizes if isinstance(sizes[0], list) else [sizes]
    if not all(isinstance(tensor, list) and all(type(size) is int for size in tensor) for tensor in tensors):
        return MISSING
    count = sum(prod(tensor) for tensor in tensors)
    return count if 0 <= count < 2**63 else MISSING


def _list_of(value: Any) -> list[Any]:
    """The list that a field holds, decoded only now; empty where it is absent or none."""
    if isinstance(value, msgspec.Raw):
        value = msgspec.json.decode(value) if len(value) else None
    return value if isinstance(value, list) else []

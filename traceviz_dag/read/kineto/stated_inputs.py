"""What older versions of PyTorch state of a communication: the inputs of ``record_param_comms``, without any names.

Inside it an annotation, ``nccl:all_reduce``, names the operation, and the sizes and types of what it sends.

Versions from 2.1 on list sequence number, address of the process group, rank or source, name, splits and size of the
group, behind the tensors that are sent. Texts are left out, so that the name is empty: the kernel shows the operation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from math import prod
from typing import Any

import msgspec
import numpy as np

from traceviz_dag.arrays import Int32
from traceviz_dag.read.events import MISSING
from traceviz_dag.read.kineto.schema import as_integer, as_text

_INPUTS = 7
"""Inputs behind the tensors: sequence, group, rank, name, input and output splits, size."""

_COLLECTIVE = re.compile(
    r"nccl:(_?(?:all_?to_?all|all_?gather|reduce_?scatter|all_?reduce|broadcast|reduce|gather|scatter|barrier)\w*)"
)
_LIST = "TensorList"
"""What represents the types of a list of tensors."""

_SIZES = re.compile(rb"[\[\]0-9,-]*")
_LONGEST_SIZES = 240


@dataclass(frozen=True, slots=True)
class StatedCommunication:
    """The facts of a communication, under the names of ``CollectiveFacts``; MISSING where the inputs do not say."""

    collective: Any
    in_elements: int
    sequence: int = MISSING
    group_address: int = MISSING
    group_size: int = MISSING
    in_split: Any = MISSING
    out_split: Any = MISSING
    group_name: int = MISSING
    group_description: int = MISSING
    group_ranks: int = MISSING
    dtype: Any = MISSING
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


def annotated_communication(name: str, arguments: Any) -> Any:
    """What an annotation that NCCL's backend writes states of a collective; None for other annotations.

    Messages are left out: of several that run in one kernel each has an annotation.
    """
    given = getattr(arguments, "input_sizes", MISSING), getattr(arguments, "input_types", MISSING)
    return _annotated(name, *(bytes(each) if isinstance(each, msgspec.Raw) else _encoded(each) for each in given))


@lru_cache(maxsize=4096)  # A job repeats its collectives.
def _annotated(name: str, sizes_given: bytes, types_given: bytes) -> StatedCommunication | None:
    found = _COLLECTIVE.fullmatch(name)
    if found is None:
        return None
    sizes = _list_of(msgspec.Raw(sizes_given))
    types = [each for each in _list_of(msgspec.Raw(types_given)) if each != _LIST]
    return StatedCommunication(
        collective=found[1],
        in_elements=_elements(sizes[0]) if sizes else MISSING,
        dtype=types[0].removeprefix("c10::") if types and isinstance(types[0], str) and types[0] else MISSING,
    )


class SizesAsText:
    """The sizes that operators state of their inputs, in the order in which they come; number 0 represents none.

    Numbers and brackets alone are kept, as Kineto writes them but for spaces. Long lists, such as those of all
    parameters, become their digest: they are compared and never computed with.
    """

    def __init__(self) -> None:
        self._texts: dict[str, int] = {"": 0}
        self._known: dict[bytes, int] = {}

    def numbers(self, arguments: Sequence[Any]) -> list[int]:
        """The number of what each operator states, by its arguments."""
        known, found = self._known, []
        for each in arguments:
            given = each.input_sizes
            raw = bytes(given) if isinstance(given, msgspec.Raw) else _encoded(given)
            number = known.get(raw)
            if number is None:
                number = known[raw] = self._texts.setdefault(_plain(raw), len(self._texts))
            found.append(number)
        return found

    def coded(self, numbers: Int32, strings: Mapping[str, int]) -> Int32:
        """Codes of strings instead of the numbers; ``strings`` gives a new one its code."""
        return np.array([strings[text] for text in self._texts], np.int32)[numbers]


def _plain(raw: bytes) -> str:
    """The text of sizes; empty for what is none."""
    text = b"".join(raw.split())
    if not _SIZES.fullmatch(text) or not any(48 <= letter <= 57 for letter in text):
        return ""
    return text.decode() if len(text) <= _LONGEST_SIZES else f"#{blake2b(text, digest_size=8).hexdigest()}"


def _encoded(value: object) -> bytes:
    """The JSON of sizes that were decoded already; empty for what is none."""
    return msgspec.json.encode(value) if isinstance(value, list) else b""


def _elements(sizes: object) -> int:
    """Elements of a tensor, or of a list of tensors, of these sizes; an empty list represents what is not recorded."""
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

"""What older versions of PyTorch state of a communication: the inputs of ``record_param_comms``, without any names.

Inside it an annotation, ``nccl:all_reduce``, names the operation, and the sizes and types of what it sends.

Versions from 2.1 on list sequence number, address of the process group, rank or source, name, splits and size of the
group, behind the tensors that are sent. Texts are left out, so that the name is empty: the kernel shows the operation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import msgspec
import numpy as np

from traceviz_dag.arrays import Int32
from traceviz_dag.read.events import MISSING, OperatorInputs, bounded
from traceviz_dag.read.kineto.repair import repair
from traceviz_dag.read.kineto.schema import as_integer, as_text

COMMUNICATION_OPERATOR = "record_param_comms"
_NCCL = "nccl:"
_INPUTS = 7
"""Inputs behind the tensors: sequence, group, rank, name, input and output splits, size."""

_COLLECTIVE = re.compile(
    r"nccl:(_?(?:all_?to_?all|all_?gather|reduce_?scatter|all_?reduce|broadcast|reduce|gather|scatter|barrier)\w*)"
)
_LIST = "TensorList"
"""What represents the types of a list of tensors."""

_SIZES = re.compile(rb"[\[\]0-9,-]*")
_LONGEST_SIZES = 240
_LONGEST_KEPT = 1 << 16
_BETWEEN = b"\x00"
"""No JSON contains it."""

_TYPE = re.compile(r"[A-Za-z][\w:<> ]{0,40}")
_VALUE = re.compile(r"-?[0-9][0-9.e+-]{0,30}|True|False|\[(?:-?[0-9]{1,20}|True|False|, ){0,64}\]")
VALUED = frozenset(
    {
        *("aten::addmm", "aten::_addmm_activation", "aten::baddbmm", "aten::_scaled_mm"),
        *("aten::_softmax", "aten::_log_softmax"),
        *("aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_flash_attention_backward"),
        *("aten::_scaled_dot_product_efficient_attention", "aten::_scaled_dot_product_efficient_attention_backward"),
        *("aten::_scaled_dot_product_cudnn_attention", "aten::_scaled_dot_product_cudnn_attention_backward"),
        *("aten::_scaled_dot_product_fused_attention_overrideable", "aten::_flash_attention_forward"),
        *("aten::_flash_attention_backward", "flash_attn::_flash_attn_forward", "flash_attn::_flash_attn_backward"),
        *("FlashAttnFunc", "flash_attn::_flash_attn_varlen_forward", "flash_attn::_flash_attn_varlen_backward"),
        *("aten::convolution", "aten::_convolution", "aten::cudnn_convolution", "aten::miopen_convolution"),
        *("aten::convolution_backward", "aten::batch_norm", "aten::native_batch_norm", "aten::cudnn_batch_norm"),
        *("aten::miopen_batch_norm", "aten::native_batch_norm_backward", "aten::embedding_dense_backward"),
        *(f"aten::{name}" for name in ("sum", "mean", "prod", "amax", "amin", "logsumexp", "std", "var", "max", "min")),
        *(f"aten::{name}" for name in ("any", "all", "argmax", "argmin", "linalg_vector_norm", "norm")),
    }
)
"""Operators whose numbers and truth values decide how much they compute or move; those of others are not kept, as they
differ from call to call."""


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


def stated_communication(arguments: Any) -> StatedCommunication | None:
    """What the inputs of ``record_param_comms`` state; None where they state none.

    The rows of a wait have these inputs, too, but no group.
    """
    inputs = _list_of(arguments.concrete_inputs)
    tensors = len(inputs) - _INPUTS
    if tensors not in (0, 1):
        return None
    sequence, address, _, name, in_split, out_split, size = inputs[tensors:]
    numbers = [as_integer(value) for value in (sequence, address, size)]
    splits = [as_text(value) for value in (in_split, out_split)]
    if MISSING in numbers or numbers[1] == 0 or not all(split.startswith("[") for split in splits):
        return None
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


def may_state_communication(name: str) -> bool:
    """Whether an annotation of this name may state a communication."""
    return name.startswith(_NCCL)


@lru_cache(maxsize=4096)  # A job repeats its collectives.
def annotated_communication(name: str, sizes_given: bytes, types_given: bytes) -> StatedCommunication | None:
    """What an annotation that NCCL's backend writes states of a collective, from its name and the JSON of its inputs;
    None for other annotations.

    Messages are left out: of several that run in one kernel each has an annotation.
    """
    found = _COLLECTIVE.fullmatch(name)
    if found is None:
        return None
    sizes = _list_of(sizes_given)
    types = [each for each in _list_of(types_given) if each != _LIST]
    return StatedCommunication(
        collective=found[1],
        in_elements=_elements(sizes[0]) if sizes else MISSING,
        dtype=types[0].removeprefix("c10::") if types and isinstance(types[0], str) and types[0] else MISSING,
    )


class InputsOnce:
    """What operators state of their inputs: of many calls few are different, which are decoded and kept once each.

    Of sizes, numbers and brackets alone are kept, of types names of C++ types, of values numbers and truth values.
    """

    def __init__(self) -> None:
        self._number_of: dict[OperatorInputs, int] = {OperatorInputs(): 0}
        self._known: dict[bytes, int] = {input_key(): 0}

    @property
    def distinct(self) -> tuple[OperatorInputs, ...]:
        """The different inputs, in the order in which they come; the first represents none."""
        return tuple(self._number_of)

    def numbers(self, keys: Sequence[bytes]) -> list[int]:
        """The number of what each operator states, by its key: see ``input_keys``."""
        for key in keys:
            if key not in self._known:
                self._known[key] = self._number(key)
        return list(map(self._known.__getitem__, keys))

    def sizes_of(self, numbers: Int32, strings: Mapping[str, int]) -> Int32:
        """Codes of strings, the sizes of what the numbers represent; ``strings`` gives a new one its code.

        Long lists, such as those of all parameters, become their digest: they are compared and never computed with.
        """
        texts = [_shortened(inputs.sizes) for inputs in self._number_of]
        return np.array([strings[text] for text in texts], np.int32)[numbers]

    def _number(self, key: bytes) -> int:
        given, types, strides, *values = key.split(_BETWEEN)
        sizes = _plain(given)
        if not sizes:
            return 0
        inputs = OperatorInputs(
            sizes, _texts(types, _TYPE), _plain(strides), _texts(values[0], _VALUE) if values else ""
        )
        return self._number_of.setdefault(inputs, len(self._number_of))


def input_keys(operators: Sequence[Any]) -> list[bytes]:
    """What each operator states of its inputs, as ``InputsOnce`` takes it, by its event."""
    given = [each.args for each in operators]
    parts = (
        [each.input_sizes for each in given],
        [each.input_types for each in given],
        [each.input_strides for each in given],
    )
    valued = [place for place, each in enumerate(operators) if each.name in VALUED]
    values: list[Any] = [given[place].concrete_inputs for place in valued]
    # An empty list is none, but states that there are no inputs.
    if not any(parts[0]) and [] not in parts[0]:
        return [input_key()] * len(given)
    try:
        keys = list(map(_BETWEEN.join, zip(*parts, strict=True)))
        values = list(map(bytes, values))
    except TypeError:
        # Decoded already, or of a type that no version of Kineto writes.
        keys = [input_key(*map(raw_list, each)) for each in zip(*parts, strict=True)]
        values = list(map(raw_list, values))
    for place, value in zip(valued, values, strict=True):
        keys[place] = input_key(keys[place], value)
    return keys


def input_key(*parts: bytes) -> bytes:
    """The JSON of sizes, types and strides, and of values if the operator's name is in ``VALUED``, as one key."""
    return _BETWEEN.join(parts)


def _plain(raw: bytes) -> str:
    """The text of sizes or strides without spaces; empty for what is none, and for lists beyond all measure."""
    text = b"".join(raw.split())
    return text.decode() if text[:1] == b"[" and len(text) <= _LONGEST_KEPT and _SIZES.fullmatch(text) else ""


def _shortened(sizes: str) -> str:
    """Sizes of a bounded length; empty where no tensor has any."""
    if not any(letter.isdigit() for letter in sizes):
        return ""
    return bounded(sizes, _LONGEST_SIZES)


def _texts(given: Any, pattern: re.Pattern[str]) -> str:
    """A JSON list of words, or of lists of them, that match; others become empty. Empty text for what is no list."""
    try:
        words = _list_of(given)
    except (msgspec.DecodeError, RecursionError):
        return ""
    kept = [
        [_matching(part, pattern) for part in word] if isinstance(word, list) else _matching(word, pattern)
        for word in words
    ]
    return msgspec.json.encode(kept).decode() if any(kept) else ""


def _matching(word: Any, pattern: re.Pattern[str]) -> str:
    return word if isinstance(word, str) and pattern.fullmatch(word) else ""


def raw_list(value: Any) -> bytes:
    """The JSON of a list that may be decoded already; empty for what is none."""
    if isinstance(value, msgspec.Raw):
        return bytes(value)
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


def _decoded(text: bytes) -> Any:
    """A value that was only skipped so far; None where it has a number that no double holds."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        return msgspec.json.decode(text)
    with suppress(msgspec.DecodeError):
        # As it would be elsewhere in the file: it does not break off here.
        return msgspec.json.decode(repair(text + b"    "))
    return None


def _list_of(value: Any) -> list[Any]:
    """The list that a field holds, decoded only now; empty where it is absent or none."""
    if isinstance(value, msgspec.Raw | bytes):
        value = _decoded(bytes(value)) if len(value) else None
    return value if isinstance(value, list) else []

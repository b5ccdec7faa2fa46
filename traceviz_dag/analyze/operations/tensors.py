"""What a profiler records of the inputs of an operator, as tensors with sizes, strides and an element type."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from traceviz_dag.read.events import OperatorInputs

ELEMENT_BYTES = {
    "bool": 1,
    "unsigned char": 1,
    "signed char": 1,
    "char": 1,
    "short": 2,
    "int": 4,
    "long": 8,
    "long int": 8,
    "long long": 8,
    "c10::Half": 2,
    "c10::BFloat16": 2,
    "float": 4,
    "double": 8,
    "c10::complex<float>": 8,
    "c10::complex<double>": 16,
    "c10::Float8_e4m3fn": 1,
    "c10::Float8_e4m3fnuz": 1,
    "c10::Float8_e5m2": 1,
    "c10::Float8_e5m2fnuz": 1,
    "c10::Float8_e8m0fnu": 1,
}
"""Element type, as Kineto writes C++ types → its bytes."""

NUMBER_FORMATS = {
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "float": "fp32",
    "double": "fp64",
    **{name: "fp8" for name in ELEMENT_BYTES if "Float8" in name},
}
"""Element type → the number format whose peak limits products of it."""

_TYPE_OF_CODE = {
    **{"0": "unsigned char", "1": "signed char", "2": "short", "3": "int", "4": "long int", "5": "c10::Half"},
    **{"6": "float", "7": "double", "11": "bool", "15": "c10::BFloat16"},
    **{"23": "c10::Float8_e5m2", "24": "c10::Float8_e4m3fn"},
}
"""Number of a ``ScalarType`` of PyTorch, as concrete inputs have it → element type."""

_NO_TENSOR = ("", "Scalar", "ScalarList", "TensorList", "GenericList")
_PROMOTION = (
    *("bool", "unsigned char", "signed char", "char", "short", "int", "long", "long int", "long long"),
    *("c10::Half", "c10::BFloat16", "float", "double"),
)
_FIRST_FLOAT = _PROMOTION.index("c10::Half")
WHOLE_TYPES = frozenset(_PROMOTION[:_FIRST_FLOAT])
"""Element types of truth values and whole numbers."""


class UnknownWorkError(Exception):
    """The recorded inputs do not show the work of an operation; its text says why."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor.

    Attributes:
        sizes: of its dimensions; none for a single number on the GPU.
        type: element type as recorded; empty where it is not.
        strides: in elements; None where they are not recorded.
    """

    sizes: tuple[int, ...]
    type: str = ""
    strides: tuple[int, ...] | None = None

    @property
    def elements(self) -> int:
        """Elements, those that an expanded dimension repeats included."""
        return prod(self.sizes)

    @property
    def bytes(self) -> int:
        """Bytes of its distinct elements: a dimension of stride 0 repeats the same ones.

        Raises:
            UnknownWorkError: the type is not recorded, or has no known size.
        """
        if self.type not in ELEMENT_BYTES:
            raise UnknownWorkError(
                f"the size of type {self.type} is not known"
                if self.type
                else "the types of its inputs are not recorded"
            )
        sizes = self.sizes
        if self.strides is not None and len(self.strides) == len(sizes) and 0 not in sizes:
            sizes = tuple(size for size, stride in zip(sizes, self.strides, strict=True) if stride != 0)
        return prod(sizes) * ELEMENT_BYTES[self.type]

    def shaped(self, *sizes: int, type: str | None = None) -> Tensor:
        """A dense tensor of other sizes, of this type unless another is given."""
        return Tensor(sizes, self.type if type is None else type)


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of one call of an operator, in the order of its arguments.

    Attributes:
        arguments: of each argument its tensor, the tensors of a list, or None for what is no tensor.
        values: of each argument the number or list that it is, as text; empty for tensors, and where not recorded.
        shards: how many ranks' shards of the activation the call gathers before it multiplies; its sizes are of one.
        gradient: that of the first result, of which a backward pass starts; None where it is not recorded.
    """

    arguments: tuple[Tensor | tuple[Tensor, ...] | None, ...]
    values: tuple[str, ...] = ()
    shards: int = 1
    gradient: Tensor | None = None

    def gathered(self, activation: Tensor) -> Tensor:
        """The activation of all shards."""
        return activation.shaped(activation.sizes[0] * self.shards, *activation.sizes[1:])

    @property
    def tensors(self) -> list[Tensor]:
        """The arguments that are single tensors."""
        return [each for each in self.arguments if isinstance(each, Tensor)]

    def tensor(self, index: int) -> Tensor:
        """The tensor at a position.

        Raises:
            UnknownWorkError: there is none.
        """
        found = self.optional(index)
        if found is None:
            raise UnknownWorkError(f"no sizes of its input {index + 1} are recorded that a tensor can have")
        return found

    def matrix(self, index: int, dimensions: int = 2) -> Tensor:
        """The tensor at a position, which has to have so many dimensions."""
        found = self.tensor(index)
        if len(found.sizes) != dimensions:
            raise UnknownWorkError(f"its input {index + 1} has {len(found.sizes)} dimensions, not {dimensions}")
        return found

    def optional(self, index: int) -> Tensor | None:
        """The tensor at a position, None where there is none."""
        found = self.arguments[index] if index < len(self.arguments) else None
        return found if isinstance(found, Tensor) else None

    def value(self, index: int) -> str:
        """The concrete input at a position; empty where it is not recorded."""
        return self.values[index] if index < len(self.values) else ""

    def flag(self, index: int, what: str) -> bool:
        """A concrete input that is true or false.

        Raises:
            UnknownWorkError: it is not recorded; ``what`` says what it decides.
        """
        value = self.value(index).lower()
        if value not in ("true", "false", "1", "0"):
            raise UnknownWorkError(f"not recorded: {what}")
        return value in ("true", "1")

    def integers(self, index: int, what: str) -> list[int]:
        """A concrete input that is a list of integers, or one.

        Raises:
            UnknownWorkError: it is not recorded; ``what`` says what it is.
        """
        value = _decoded(self.value(index))
        numbers = value if isinstance(value, list) else [value]
        if not all(type(number) is int for number in numbers):
            raise UnknownWorkError(f"not recorded: {what}")
        return numbers

    def type_of_code(self, index: int) -> str | None:
        """The element type that a concrete input names by its number; None where it names none."""
        return _TYPE_OF_CODE.get(self.value(index))


def parse_inputs(given: OperatorInputs) -> Inputs:
    """The inputs of an operator from the JSON lists that a profiler writes.

    Raises:
        UnknownWorkError: no sizes are recorded, or they are no sizes.
    """
    all_sizes = _decoded(given.sizes)
    if not isinstance(all_sizes, list):
        raise UnknownWorkError("the sizes of its inputs are not recorded")
    all_types, all_strides, all_values = (_list_of(text, len(all_sizes)) for text in given[1:])
    arguments = tuple(_argument(*each) for each in zip(all_sizes, all_types, all_strides, strict=False))
    return Inputs(arguments, tuple(value if isinstance(value, str) else "" for value in all_values))


def promoted(tensors: Sequence[Tensor]) -> str:
    """The element type of what PyTorch computes from tensors of several types; empty where one is not recorded.

    A tensor without dimensions counts only where no other tensor is of its kind (integer or floating point).
    """
    if any(tensor.type not in _PROMOTION for tensor in tensors) or not tensors:
        types = {tensor.type for tensor in tensors if tensor.sizes} or {tensor.type for tensor in tensors}
        return types.pop() if len(types) == 1 else ""
    rank = {
        sized: max((_PROMOTION.index(each.type) for each in tensors if bool(each.sizes) == sized), default=-1)
        for sized in (True, False)
    }
    halves = {each.type for each in tensors if each.sizes} & {"c10::Half", "c10::BFloat16"}
    if len(halves) == 2 and rank[True] <= _PROMOTION.index("c10::BFloat16"):
        return "float"
    if rank[True] < 0:
        return _PROMOTION[rank[False]]
    if rank[False] >= _FIRST_FLOAT > rank[True]:
        return "float"
    return _PROMOTION[rank[True]]


def broadcast(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """The sizes of what an elementwise operation on these tensors gives.

    Raises:
        UnknownWorkError: their sizes do not go together.
    """
    sizes: list[int] = []
    for tensor in tensors:
        for place, size in enumerate(reversed(tensor.sizes)):
            if place == len(sizes):
                sizes.append(size)
            elif sizes[place] == 1:
                sizes[place] = size
            elif size not in (1, sizes[place]):
                raise UnknownWorkError("the sizes of its inputs do not go together")
    return tuple(reversed(sizes))


def _argument(sizes: Any, kind: Any, strides: Any) -> Tensor | tuple[Tensor, ...] | None:
    if not isinstance(sizes, list):
        return None
    if sizes and all(isinstance(each, list) for each in sizes):
        # Most versions name the types of a list's tensors with one word, which is none of theirs.
        kinds = kind if isinstance(kind, list) and len(kind) == len(sizes) else [""] * len(sizes)
        steps = strides if isinstance(strides, list) and len(strides) == len(sizes) else [None] * len(sizes)
        parts = map(_tensor, sizes, kinds, steps)
        return tuple(part for part in parts if part is not None)
    # An input without sizes and without the type of an element is a number, a list or nothing.
    return None if kind in _NO_TENSOR and not (sizes and kind == "") else _tensor(sizes, kind, strides)


def _tensor(sizes: Any, kind: Any, strides: Any) -> Tensor | None:
    if not all(type(size) is int and size >= 0 for size in sizes):
        return None
    steps = tuple(strides) if isinstance(strides, list) and all(type(step) is int for step in strides) else None
    return Tensor(tuple(sizes), kind if isinstance(kind, str) else "", steps)


def _list_of(text: str, count: int) -> list[Any]:
    value = _decoded(text)
    return value + [""] * (count - len(value)) if isinstance(value, list) else [""] * count


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None

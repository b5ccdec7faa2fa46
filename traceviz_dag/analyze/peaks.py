"""What a GPU can do at most: dense operations a second by number format, and bytes a second of its memory.

The table is ``peaks.toml`` beside this file; a home extends it (``[peaks]`` in its settings).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Annotated

import msgspec
import xxhash

_TERA = 10**12
_Rate = Annotated[float, msgspec.Meta(gt=0, lt=10**6)]
"""In 10^12 a second; TOML also has inf and nan, which are no rates."""


class GpuRates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The peaks of one GPU as a TOML table states them, in 10^12 a second; None where it does not.

    Attributes:
        bf16, fp16, fp8, fp4, tf32, fp32, fp64: dense operations in the number format; fp16 is bf16 where not stated.
        memory: bytes that its memory moves.
    """

    bf16: _Rate | None = None
    fp16: _Rate | None = None
    fp8: _Rate | None = None
    fp4: _Rate | None = None
    tf32: _Rate | None = None
    fp32: _Rate | None = None
    fp64: _Rate | None = None
    memory: _Rate | None = None


@dataclass(frozen=True, slots=True)
class GpuPeaks:
    """The peaks of one GPU.

    Attributes:
        gpu: words of the most specific table that fits.
        flops_per_s: number format → operations a second.
        memory_bytes_per_s: None where unknown.
    """

    gpu: str
    flops_per_s: Mapping[str, int]
    memory_bytes_per_s: int | None


@dataclass(frozen=True, slots=True)
class Peaks:
    """The peaks of all known GPUs.

    Attributes:
        added: those that a home adds or replaces; its name → its rates.
    """

    added: Mapping[str, GpuRates] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """That of what is added: other peaks give another one."""
        return xxhash.xxh3_64_hexdigest(msgspec.json.encode(sorted(self.added.items())))

    def of(self, name: str | None) -> GpuPeaks | None:
        """The peaks of a GPU by its name; None for an unknown one, and for a part of a GPU (MIG) of which
        nothing is stated."""
        words = _words(name or "")
        tables = [*_built_in().items(), *self.added.items()]
        # A part of a GPU has the peaks that are stated of such a part.
        tables = [one for one in tables if "mig" in _words(one[0]) or "mig" not in words]
        # Later ones win; of equally many words those of the home.
        fitting = sorted((one for one in tables if _words(one[0]) <= words), key=lambda one: len(_words(one[0])))
        if not fitting:
            return None
        rates: dict[str, float] = {}
        for _, stated in fitting:
            rates |= {each: rate for each, rate in msgspec.structs.asdict(stated).items() if rate is not None}
        rates |= {"fp16": rates["bf16"]} if "fp16" not in rates and "bf16" in rates else {}
        memory = rates.pop("memory", None)
        return GpuPeaks(
            gpu=fitting[-1][0],
            flops_per_s={each: round(rate * _TERA) for each, rate in rates.items()},
            memory_bytes_per_s=None if memory is None else round(memory * _TERA),
        )


BUILT_IN = Peaks()
"""The peaks of the package alone."""


def peak_of(name: str | None, number_format: str = "bf16", peaks: Peaks = BUILT_IN) -> int | None:
    """The peak of a GPU by its name, operations a second.

    Args:
        number_format: bf16, fp16, fp8, fp4, tf32, fp32 or fp64.

    Returns:
        None for a GPU or a format that is not in the table, and for a part of a GPU (MIG) of which nothing is stated.
    """
    found = peaks.of(name)
    return None if found is None else found.flops_per_s.get(number_format)


@cache
def _built_in() -> Mapping[str, GpuRates]:
    text = files(__package__).joinpath("peaks.toml").read_bytes()
    return msgspec.toml.decode(text, type=dict[str, GpuRates])


def _words(name: str) -> frozenset[str]:
    return frozenset(name.replace("-", " ").casefold().split())

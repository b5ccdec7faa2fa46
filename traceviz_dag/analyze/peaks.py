"""What a GPU can do at most: dense operations a second on its matrix units, by its maker's data sheet."""

from __future__ import annotations

from collections.abc import Mapping

_TERA = 10**12

PEAKS: Mapping[str, Mapping[str, int]] = {
    "A100": {"bf16": 312},
    "H100": {"bf16": 989, "fp8": 1979},
    "H100 PCIe": {"bf16": 756, "fp8": 1513},
    "H100 NVL": {"bf16": 835, "fp8": 1671},
    "H200": {"bf16": 989, "fp8": 1979},
    "H200 NVL": {"bf16": 835, "fp8": 1671},
    "H20": {"bf16": 148, "fp8": 296},
    "B200": {"bf16": 2250, "fp8": 4500},
    "L40S": {"bf16": 362, "fp8": 733},
    "MI300X": {"bf16": 1307, "fp8": 2615},
}
"""Words in a GPU's name → number format → 10^12 dense operations a second; a name without a form is the SXM form.

Peaks of fp16 are those of bf16 on all of these.
"""


def peak_of(name: str | None, number_format: str = "bf16") -> int | None:
    """The peak of a GPU by its name, operations a second.

    Args:
        number_format: bf16, fp16 or fp8.

    Returns:
        None for a GPU or a format that is not in ``PEAKS``, and for a part of a GPU (MIG).
    """
    words = (name or "").replace("-", " ").split()
    known = [model for model in PEAKS if set(model.split()) <= set(words)]
    if not known or "MIG" in words:
        return None
    peak = PEAKS[max(known, key=len)].get("bf16" if number_format == "fp16" else number_format)
    return None if peak is None else peak * _TERA

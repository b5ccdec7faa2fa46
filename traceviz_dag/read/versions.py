"""Versions that files state as numbers, in the words that all readers share, so that they can be compared."""

from __future__ import annotations

_LAST = 10**9
"""No version is believed to be a larger number."""


def cuda_version(number: int | None) -> str | None:
    """A version of CUDA, whose number is 1,000 times the major and ten times the minor; None for what is none."""
    if number is None or not 0 < number <= _LAST:
        return None
    return f"CUDA {number // 1000}.{number % 1000 // 10}"


def hip_version(number: int | None) -> str | None:
    """A version of HIP, whose number has five digits of the patch and two of the minor; None for what is none."""
    if number is None or not 0 < number <= _LAST:
        return None
    return f"HIP {number // 10**7}.{number // 10**5 % 100}.{number % 10**5}"

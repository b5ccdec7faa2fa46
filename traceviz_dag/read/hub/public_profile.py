"""The public profile that is fetched where nobody names another: small enough to import anywhere."""

from __future__ import annotations

DATA_SET = "GindaChen/nsys-hero"
PROFILE = "baseline.t128k.host-fs-mbz-gpu-899"

"""Columns of integers as a page carries them: bytes of equal weight side by side, deflated, in base64.

The page's own script takes them apart again (``scripts/columns.js``). Times differ little from their neighbours, and
bytes of equal weight differ even less: a million kernels take some six megabytes.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from traceviz_dag.arrays import Int64

HIGHEST = (1 << 53) - 1
"""The largest integer that a script's numbers hold exactly."""

_LEVEL = 6
_WIDEST = 7


@dataclass(slots=True)
class PageColumns:
    """Columns that were gathered for a page.

    Attributes:
        described: per column its name, count, bytes a value, whether it holds differences, and whether it has signs.
        parts: the bytes of each.
    """

    described: list[dict[str, Any]] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)

    def add(self, name: str, values: Int64, *, differences: bool = False) -> None:
        """Add a column.

        Args:
            differences: keep each value's difference to the one before it, the first one's to 0.

        Raises:
            ValueError: a value or difference is beyond what a script's numbers hold exactly.
        """
        values = np.asarray(values, dtype=np.int64)
        if differences:
            values = np.diff(values, prepend=0)
        signed = bool(len(values)) and int(values.min()) < 0
        if signed:
            # Small numbers of both signs become small numbers: 0, -1, 1, -2 … are 0, 1, 2, 3 …
            values = (values << 1) ^ (values >> 63)
        highest = int(values.max(initial=0))
        if highest > HIGHEST:
            raise ValueError(f"column {name} holds {highest}, more than a page can")
        width = max((highest.bit_length() + 7) // 8, 1)
        planes = np.ascontiguousarray(values).view(np.uint8).reshape(-1, 8)[:, : min(width, _WIDEST)]
        self.parts.append(np.ascontiguousarray(planes.T).tobytes())
        self.described.append(
            {"name": name, "count": len(values), "bytes": width, "differences": differences, "signed": signed}
        )

    def packed(self, document: dict[str, Any]) -> str:
        """A JSON document with these columns behind it, as base64: length of the document (4 bytes), document, columns.

        The document gets the entry ``columns``, which describes them.
        """
        text = msgspec.json.encode({**document, "columns": self.described})
        deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, -15)
        whole = [len(text).to_bytes(4, "little"), text, *self.parts]
        return base64.b64encode(b"".join([*map(deflate.compress, whole), deflate.flush()])).decode()

"""Driving a screen by keys, and reading what it shows as text."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from html import unescape
from pathlib import Path
from typing import Any

SHOWN = Path(__file__).parent / "shown"
_TEXT = re.compile(
    r'<text class="[^"]*" x="([\d.]+)" y="[\d.]+"[^>]*clip-path="url\(#[^)]*-line-(\d+)\)">([^<]*)</text>'
)
_CELL = 12.2


def text_of(app: Any) -> str:
    """What a screen shows, from its exported picture."""
    width, height = app.size
    cells = [[" "] * width for _ in range(height)]
    for x, line, text in _TEXT.findall(app.export_screenshot()):
        place = round(float(x) / _CELL)
        for letter in unescape(text).replace("\xa0", " "):
            if place < width:
                cells[int(line)][place] = letter
            place += 1
    return "".join(f"{''.join(row).rstrip()}\n" for row in cells)


def drive(app: Any, script: Callable[[Any], Awaitable[Any]], size: tuple[int, int] = (80, 24)) -> Any:
    """Run a screen without a terminal while a script presses its keys; returns what the script does."""

    async def whole() -> Any:
        async with app.run_test(size=size) as pilot:
            await settled(pilot)
            return await script(pilot)

    return asyncio.run(whole())


async def settled(pilot: Any) -> None:
    """Wait until nothing is asked beside the screen any more, and all is drawn."""
    await pilot.pause()
    await pilot.app.workers.wait_for_complete()
    await pilot.pause()


async def press(pilot: Any, *keys: str) -> str:
    """Press keys one by one; what is shown then."""
    for key in keys:
        await pilot.press(key)
        await settled(pilot)
    return text_of(pilot.app)


def held(name: str, text: str) -> None:
    """Compare a screen with its file; TRACEVIZ_WRITE_TERMINALS=1 writes it anew: look at what changed."""
    path = SHOWN / f"{name}.txt"
    if os.environ.get("TRACEVIZ_WRITE_TERMINALS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), f"{path.name}: look at the difference"

"""What changed the peak from one snapshot to another: by call stack, whatever the addresses."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from traceviz_dag.analyze.memory.examination import Examined


@dataclass(frozen=True, slots=True)
class Change:
    """What one stack holds at the peak of either snapshot; bytes are requested bytes."""

    text: str
    category: str
    before_bytes: int
    after_bytes: int
    before_blocks: int
    after_blocks: int

    @property
    def change_bytes(self) -> int:
        """What it holds more."""
        return self.after_bytes - self.before_bytes


def peak_changes(before: Examined, after: Examined, *, whole_stacks: bool = True) -> list[Change]:
    """The change of the peak by stack and category, the largest first; together they are the change of the peak."""
    sides = [
        {
            (holder.text, holder.category): holder
            for holder in one.holders(one.replay.peak_event, whole_stacks=whole_stacks)
        }
        for one in (before, after)
    ]
    found = []
    for key in dict.fromkeys([*sides[0], *sides[1]]):
        held = [side.get(key) for side in sides]
        sizes = [one.requested_bytes if one else 0 for one in held]
        blocks = [one.blocks if one else 0 for one in held]
        found.append(Change(*key, *sizes, *blocks))
    return sorted(found, key=lambda change: (-abs(change.change_bytes), change.text))


def by_category(changes: list[Change]) -> dict[str, int]:
    """Category → how much more of it is in the second peak."""
    found: Counter[str] = Counter()
    for change in changes:
        found[change.category] += change.change_bytes
    return dict(sorted(found.items(), key=lambda entry: -abs(entry[1])))

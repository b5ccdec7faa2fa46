"""What changed the peak from one snapshot or run to another: by call stack, whatever the addresses."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
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


Held = Mapping[tuple[str, str], tuple[int, int]]
"""(stack, category) → requested bytes and blocks at a peak."""


def held_at_peak(one: Examined, *, whole_stacks: bool = True) -> Held:
    """What each stack holds of each category when most is requested; without events, at the end."""
    holders = one.holders(one.replay.peak_event, whole_stacks=whole_stacks)
    return {(holder.text, holder.category): (holder.requested_bytes, holder.blocks) for holder in holders}


def together(peaks: Iterable[Held]) -> Held:
    """What each stack holds at the peaks of several ranks, each at its own time."""
    found: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for held in peaks:
        for key, (size, blocks) in held.items():
            found[key][0] += size
            found[key][1] += blocks
    return {key: (size, blocks) for key, (size, blocks) in found.items()}


def peak_changes(before: Held, after: Held) -> list[Change]:
    """The change of the peak by stack and category, the largest first; together they are the change of the peak."""
    found = []
    for key in dict.fromkeys([*before, *after]):
        (size, blocks), (later_size, later_blocks) = before.get(key, (0, 0)), after.get(key, (0, 0))
        found.append(Change(*key, size, later_size, blocks, later_blocks))
    return sorted(found, key=lambda change: (-abs(change.change_bytes), change.text))


def by_category(changes: list[Change]) -> dict[str, int]:
    """Category → how much more of it is in the second peak."""
    found: Counter[str] = Counter()
    for change in changes:
        found[change.category] += change.change_bytes
    return dict(sorted(found.items(), key=lambda entry: -abs(entry[1])))

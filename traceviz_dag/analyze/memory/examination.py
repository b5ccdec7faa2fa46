"""A snapshot, examined once: what all questions about it start from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from traceviz_dag.analyze.memory.categories import CATEGORIES, EVIDENCES, Categories, categorised
from traceviz_dag.analyze.memory.layout import Fragmentation, fragmentation_at, fragmentation_at_end
from traceviz_dag.analyze.memory.replay import Replay, replayed
from traceviz_dag.analyze.memory.roles import Role, module_of, python_text, roles_of, site_of
from traceviz_dag.analyze.memory.steps import Steps, optimizer_steps
from traceviz_dag.analyze.wording import counted
from traceviz_dag.arrays import Bool
from traceviz_dag.read.memory.snapshot import UNKNOWN, Snapshot

BEFORE = "allocated before the recording"
"""What represents the stack of a block that has none, since it was allocated before the recording."""

FRAMELESS = "no call stack recorded"
"""What represents the stack of a block that was allocated during the recording, but has none."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one category holds at some time, on one evidence."""

    category: str
    evidence: str
    requested_bytes: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Holder:
    """What one site or stack holds at some time."""

    text: str
    category: str
    requested_bytes: int
    blocks: int


@dataclass(frozen=True)
class Examined:
    """One device of a snapshot."""

    replay: Replay
    roles: list[Role]
    steps: Steps
    categories: Categories

    category_names = CATEGORIES

    @property
    def device(self) -> int:
        """Its number."""
        return self.replay.device

    @property
    def snapshot(self) -> Snapshot:
        """The file that it is of."""
        return self.replay.snapshot

    @cached_property
    def at_end(self) -> Fragmentation:
        """The layout when the snapshot was taken."""
        return fragmentation_at_end(self.replay)

    @cached_property
    def at_peak(self) -> Fragmentation:
        """The layout when most was requested."""
        if self.replay.peak_event == len(self.replay.action) - 1:
            return self.at_end
        return fragmentation_at(self.replay, self.replay.peak_event)

    @property
    def peak_requested_bytes(self) -> int | None:
        """The most that was requested at once; None without events, which alone show other times than the end."""
        return self.replay.peak_requested if len(self.replay.action) else None

    def parts(self, event: int) -> list[Part]:
        """What each category holds after an event, the largest first; together all that is requested then."""
        lives, alive = self.replay.lifetimes, self.replay.lifetimes.alive(event)
        found = []
        for category, name in enumerate(CATEGORIES):
            for evidence, why in enumerate(EVIDENCES):
                which = alive & (self.categories.category == category) & (self.categories.evidence == evidence)
                if which.any():
                    found.append(Part(name, why, int(lives.requested[which].sum()), int(which.sum())))
        return sorted(found, key=lambda part: -part.requested_bytes)

    def holders(self, event: int, *, whole_stacks: bool = False, modules: bool = False) -> list[Holder]:
        """Who holds what after an event, by the site that asked for it, by its whole Python stack, or by the source
        file of the site; largest first."""
        texts = self.stack_texts if whole_stacks else self.modules if modules else self.sites
        held: defaultdict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])
        for stack, category, size, absent in self.rows(self.replay.lifetimes.alive(event)):
            one = held[absent or texts[stack], category]
            one[0] += size
            one[1] += 1
        found = [Holder(text, CATEGORIES[category], *one) for (text, category), one in held.items()]
        return sorted(found, key=lambda holder: (-holder.requested_bytes, holder.text))

    def rows(self, which: Bool) -> Iterator[tuple[int, int, int, str]]:
        """Stack, category and requested bytes of some blocks, and what represents the stack of one without; else ""."""
        lives = self.replay.lifetimes
        columns = (lives.stack[which], self.categories.category[which], lives.requested[which], lives.begin[which])
        for stack, category, size, begin in zip(*(column.tolist() for column in columns), strict=True):
            absent = BEFORE if begin == UNKNOWN else FRAMELESS
            yield stack, category, size, absent if stack == UNKNOWN else ""

    @cached_property
    def sites(self) -> list[str]:
        """Who asked, for each stack."""
        stacks = self.snapshot.stacks
        return [site_of(stacks.of(number)) for number in range(len(stacks))]

    @cached_property
    def modules(self) -> list[str]:
        """The source file of who asked, for each stack."""
        stacks = self.snapshot.stacks
        return [module_of(stacks.of(number)) for number in range(len(stacks))]

    @cached_property
    def stack_texts(self) -> list[str]:
        """The Python frames of each stack, outermost first."""
        stacks = self.snapshot.stacks
        return [python_text(stacks.of(number)) for number in range(len(stacks))]

    def share_of(self, evidence: str, event: int) -> float | None:
        """The share of the requested bytes after an event whose category is known from an evidence."""
        total = int(self.replay.requested[event + 1])
        told = sum(part.requested_bytes for part in self.parts(event) if part.evidence == evidence)
        return told / total if total else None

    @cached_property
    def category_bytes(self) -> dict[str, np.ndarray]:
        """Requested bytes of each category that occurs: before the first event, then after each."""
        lives = self.replay.lifetimes
        found = {}
        for category, name in enumerate(CATEGORIES):
            which = self.categories.category == category
            if not which.any():
                continue
            changes = np.zeros(len(self.replay.action) + 1, np.int64)
            np.add.at(changes, lives.begin[which] + 1, lives.requested[which])
            ended = which & (lives.end != UNKNOWN)
            np.add.at(changes, lives.end[ended] + 1, -lives.requested[ended])
            found[str(name)] = np.cumsum(changes)
        return found


def examined(snapshot: Snapshot) -> list[Examined]:
    """Examine every device of a snapshot, the one with most reserved memory first."""
    roles = roles_of(snapshot.stacks)
    found = []
    for device in snapshot.devices:
        replay = replayed(snapshot, device)
        steps = optimizer_steps(replay, roles)
        found.append(Examined(replay, roles, steps, categorised(replay, roles, steps)))
    return sorted(found, key=lambda one: (-int(one.replay.reserved.max(initial=0)), one.device))


def losses(devices: Sequence[Examined]) -> list[str]:
    """What could not be used of a snapshot, and what contradicts itself, a phrase each."""
    snapshot = devices[0].snapshot
    rows = [f"{counted(count, 'row', 'rows')} of {part} could not be used" for part, count in snapshot.unusable.items()]
    values = [
        f"{counted(count, 'value', 'values')} of {name} could not be used"
        for name, count in snapshot.unusable_values.items()
    ]
    return rows + values + [words for one in devices for words in one.replay.contradictions_in_words]

"""Times, measures and details as lines of text."""

from __future__ import annotations

from collections.abc import Sequence

from traceviz_dag.show.lanes.lane import Window
from traceviz_dag.show.lanes.words import word_of
from traceviz_dag.show.screens.model import Aggregate, Detail, Fact, Filter, GroupMeasures
from traceviz_dag.show.terminal.glyphs import flat

_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns"))
_PARTS = ("compute", "communication", "hidden", "exposed", "memory", "busy", "idle")


def duration(nanoseconds: int) -> str:
    """A duration for a glance: three decimals of the largest unit of which there is one."""
    size = abs(nanoseconds)
    unit, word = next(((unit, word) for unit, word in _UNITS if size >= unit), _UNITS[-1])
    if unit == 1:
        return f"{nanoseconds:,} ns"
    thousandths = (size * 1000 + unit // 2) // unit
    return f"{'-' if nanoseconds < 0 else ''}{thousandths // 1000:,}.{thousandths % 1000:03} {word}"


def instant(nanoseconds: int, step: int) -> str:
    """An instant beside others that are ``step`` apart, with as many decimals as distinguish them."""
    if not nanoseconds:
        return "0"
    unit, word = next(((unit, word) for unit, word in _UNITS if abs(nanoseconds) >= unit), _UNITS[-1])
    whole, rest = divmod(abs(nanoseconds), unit)
    digits = len(str(unit)) - 1
    decimals = f"{rest:0{digits}d}"[: max(digits - (len(str(step)) - 1), 0)]
    sign = "-" if nanoseconds < 0 else ""
    return f"{sign}{whole:,}{'.' if decimals else ''}{decimals} {word}"


def tick_step(length_ns: int, most: int) -> int:
    """1, 2 or 5 times a power of ten, so that at most so many ticks lie in a length."""
    wanted = max(-(-length_ns // max(most, 1)), 1)
    power = 10 ** (len(str(wanted)) - 1)
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= wanted)


def exact(nanoseconds: int) -> str:
    """A duration to the nanosecond."""
    return f"{nanoseconds:,} ns"


def fact_text(fact: Fact) -> str:
    """A fact as words."""
    if isinstance(fact.value, str):
        value = flat(fact.value)
    elif isinstance(fact.value, int):
        value = f"{fact.value:,}"
    else:
        value = f"{fact.value:,.3f}"
    return f"{fact.label} {value}{f' {fact.unit}' if fact.unit else ''}"


def detail_lines(detail: Detail) -> list[tuple[str, str]]:
    """Everything known of a slice, a heading and a line each."""
    lines = [("name", flat(detail.full_name or detail.title))]
    lines += [(fact.label, fact_text(fact).removeprefix(f"{fact.label} ")) for fact in detail.facts]
    lines += [(f"evidence: {fact.label}", fact_text(fact).removeprefix(f"{fact.label} ")) for fact in detail.evidence]
    if detail.launch is not None:
        lines.append(("x goes to", str(detail.launch)))
    lines += [("the same on", str(peer)) for peer in detail.peers]
    lines += [("SQL", line) for line in detail.sql.splitlines()]
    return [*lines, ("command", detail.command)] if detail.command else lines


def measure_lines(found: Aggregate, start_ns: int) -> list[tuple[str, str]]:
    """The measures of a window: a heading and a line each.

    Args:
        start_ns: where the time of the screen begins.
    """
    window = found.window
    lines = [("window", f"{exact(window.length_ns)}, from {exact(window.start_ns - start_ns)}")]
    for one in found.measures:
        if one.dimension == "all":
            lines.append(
                (f"{one.lane}", f"{one.device}, {one.window_start_ns:,} to {one.window_end_ns:,} on its clock")
            )
            lines += [(f"  {part}", _part(one, part)) for part in _PARTS]
            if one.kernels is not None:
                lines.append(("  operations", f"{one.kernels:,}"))
        elif one.communication_ns:
            words = f"{exact(one.exposed_ns)} exposed of {exact(one.communication_ns)}"
            lines.append((f"  {one.dimension}", words))
    lines += [
        (f"{one.lane}", f"{exact(one.total_ns)}  {one.share:.1%}  {one.count:,} × {flat(one.name)}  ({one.kind})")
        for one in found.top
    ]
    return [*lines, *(("command", command) for command in found.commands)]


def _part(one: GroupMeasures, part: str) -> str:
    value, whole = getattr(one, f"{part}_ns"), one.window_end_ns - one.window_start_ns
    return f"{exact(value)}{f'  {value / whole:.1%}' if whole > 0 else ''}"


def window_text(window: Window, start_ns: int) -> str:
    """Where a window begins, and how long it is."""
    return f"{duration(window.start_ns - start_ns)} + {duration(window.length_ns)}"


def filter_text(only: Filter) -> str:
    """A filter as one types it; empty for none."""
    unit, word = next((unit, word) for unit, word in _UNITS if only.least_ns % unit == 0)
    least = [f">{only.least_ns // unit}{word}"] if only.least_ns else []
    dimensions = [f"dim:{dimension}" for dimension in sorted(only.dimensions)]
    return " ".join([*least, *sorted(only.kinds), *dimensions, *(f"lane:{lane}" for lane in only.lanes)])


def filter_of(text: str, kinds: Sequence[str], lane: str | None) -> Filter | str:
    """The filter that a user typed, or what is wrong with it.

    Args:
        text: parts of names or words of kinds, ``>20us`` for the shortest slice, ``here`` for the lane of the cursor,
            ``dim:tp`` for hits of a dimension.
        kinds: all words of kinds.
    """
    chosen: set[str] = set()
    dimensions: set[str] = set()
    least, lanes = 0, []
    for word in text.split():
        if word.startswith(">"):
            found = _nanoseconds(word[1:])
            if found is None:
                return f"{flat(word)} is no shortest duration; write >20us, >3ms or >500"
            least = found
        elif word.startswith("dim:"):
            dimensions.add(word.removeprefix("dim:"))
        elif word == "here" and lane is not None:
            lanes.append(lane)
        elif word.startswith("lane:"):
            lanes.append(word.removeprefix("lane:"))
        else:
            wanted = word.lower()
            matching = [kind for kind in kinds if wanted in kind.lower() or wanted in word_of(kind).label.lower()]
            if not matching:
                return f"no kind is named {flat(word)}; there are {', '.join(kinds)}"
            chosen.update(matching)
    return Filter(frozenset(chosen), frozenset(dimensions), tuple(lanes), least)


def _nanoseconds(text: str) -> int | None:
    """A whole number of a unit, nanoseconds by default."""
    for unit, word in sorted(_UNITS, key=lambda each: -len(each[1])):
        plain = {"µs": ("us", "µs")}.get(word, (word,))
        for ending in plain:
            if text.endswith(ending) and text.removesuffix(ending).isdecimal():
                return int(text.removesuffix(ending)) * unit
    return int(text) if text.isdecimal() else None

"""Numbers, durations and names as sentences write them."""

from __future__ import annotations

from collections.abc import Iterable

from traceviz_dag.spans import spanned
from traceviz_dag.vocabulary import Category


def numbered(word: str, numbers: Iterable[int]) -> str:
    """What some numbers are of, and these: ``rank 3``, ``ranks 0–3, 6``."""
    known = set(numbers)
    return f"{word}{'s' if len(known) > 1 else ''} {spanned(known).replace('-', '–')}"


def ranks_of(ranks: int, expected: int | None) -> str:
    """A number of ranks, and that of the job where it has more: ``8 of 64``."""
    return f"{ranks} of {expected}" if expected is not None and expected > ranks else str(ranks)


def counted(count: int, one: str, many: str) -> str:
    """A number with its noun: "1 row", "1,200 rows"."""
    return f"{count:,} {one if count == 1 else many}"


ABSENT = "–"
"""What tables print for a value that is not known."""


def milliseconds(nanoseconds: int | None) -> str:
    """A duration as tables print it: milliseconds with three decimals."""
    return ABSENT if nanoseconds is None else f"{nanoseconds / 1e6:z,.3f}"


def changed(nanoseconds: int) -> str:
    """A change as tables print it: milliseconds with sign, three decimals."""
    return f"{nanoseconds / 1e6:+,.3f}" if abs(nanoseconds) > 500 else "0.000"


def microseconds(nanoseconds: float) -> str:
    """A duration as tables print it where it is short: microseconds with one decimal."""
    return f"{nanoseconds / 1e3:z,.1f}"


def seconds(nanoseconds: int | None) -> str:
    """An instant as tables print it: seconds of the capture's clock, to the microsecond."""
    return ABSENT if nanoseconds is None else f"{nanoseconds / 1e9:z,.6f}"


def mebibytes(count: int | None) -> str:
    """Bytes as tables print them: MiB with two decimals."""
    return ABSENT if count is None else f"{count / (1 << 20):z,.2f}"


def binary(count: int) -> str:
    """A size in the largest binary unit of which there is at least one."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    index = min(max(count.bit_length() - 1, 0) // 10, len(units) - 1)
    return f"{count:,} B" if not index else f"{count / 1024**index:,.2f} {units[index]}"


def shortened(name: str, most: int = 90) -> str:
    """A name for a table: templates make kernel names longer than a screen."""
    flat = " ".join(name.split())
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"


def duration(nanoseconds: float) -> str:
    """A duration with three significant digits and its unit."""
    for factor, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if abs(nanoseconds) >= factor:
            value = nanoseconds / factor
            return f"{value:.{0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2}f} {unit}"
    return f"{nanoseconds:z.0f} ns"


def signed(nanoseconds: int) -> str:
    """A duration with its sign."""
    return f"+{duration(nanoseconds)}" if nanoseconds > 0 else duration(nanoseconds)


def share(part: float, whole: float = 1) -> str:
    """A share in percent, without decimals from 10 % on."""
    if whole <= 0:
        return "0 %"
    percent = 100 * part / whole
    return f"{percent:.0f} %" if percent >= 9.95 or percent == 0 else f"{percent:z.1f} %"


def percent(part: float | None) -> str:
    """A share in percent with one decimal, as sentences write it; tables leave no space."""
    return ABSENT if part is None else f"{100 * part:z.1f} %"


def signed_percent(part: float) -> str:
    """A share in percent with its sign and one decimal; what rounds to 0 has none."""
    rounded = f"{100 * part:z.1f}"
    return f"{'+' * (part > 0 and rounded != '0.0')}{rounded} %"


_ACRONYMS = frozenset({"tp", "cp", "ep", "etp", "dp", "edp", "pp"})


def capitals(dimensions: str) -> str:
    """Names of dimensions, separated by commas, as sentences write them: ``TP``, ``gradient norm``."""
    names = (name.strip().replace("grad_norm", "gradient_norm") for name in dimensions.split(","))
    return ", ".join(name.upper() if name in _ACRONYMS else name.replace("_", " ") for name in names)


_ACTIVITIES = {
    Category.FWD_COMPUTATION: "forward computation",
    Category.FWD_COMMUNICATION: "forward communication",
    Category.BWD_COMPUTATION: "backward computation",
    Category.BWD_COMMUNICATION: "backward communication",
    Category.BWD_COMPUTATION_RECOMPUTE: "recomputation",
    Category.BWD_COMMUNICATION_RECOMPUTE: "communication of recomputation",
    Category.PP_COMMUNICATION: "PP communication",
    Category.DP_COMMUNICATION: "DP communication",
    "launch": "launch lag",
    "unexplained": "unexplained lag",
}


def activity(name: str) -> str:
    """A category of kernels, or another cause of time on the critical path, as sentences write it."""
    return _ACTIVITIES.get(name, name.replace("_", " "))


def own_delay(time: str, category: str | None) -> str:
    """How long a rank delayed its peers by itself, and by what (``late_category``).

    Communication is what it did longest meanwhile, not what its own delay is.
    """
    name = category or Category.UNCLASSIFIED
    meanwhile = "meanwhile mostly " if "communication" in name else ""
    return f"{time} of its own ({meanwhile}{activity(name)})"


def capitalised(text: str) -> str:
    """A text with a capital letter, the rest as it is."""
    return text[:1].upper() + text[1:]

"""What runs automatically, and how: one TOML file, HOME/traceviz.toml, and a few environment variables over it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from traceviz_dag.analyze.nights.verdicts import Tolerances
from traceviz_dag.analyze.peaks import GpuRates, Peaks
from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.read.toml_file import parse_toml, read_text, read_toml
from traceviz_dag.system.whole_files import write_atomically

REMEDY = "see docs/automation.md for what it may hold"
_Whole = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
_Counted = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
_Span = Annotated[float, msgspec.Meta(ge=0, le=10**9)]
"""Numbers of things and lengths of time; TOML also has inf and nan, which are neither."""

_LARGEST_TOLERANCE = 10**18

FILE_NAME = "traceviz.toml"
FILE_VARIABLE = "TRACEVIZ_SETTINGS"
ROOTS_VARIABLE = "TRACEVIZ_ROOTS"
WEBHOOK_VARIABLE = "TRACEVIZ_WEBHOOK"
_FORMER_RULES_VARIABLE = "TRACEVIZ_RULES"
_RULES_LINE = re.compile(r"\s*rules\s*=")


class WatchedRoot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One folder, or fsspec URL, below which runs appear.

    Attributes:
        expected_ranks: ranks that every iteration has; None takes those of the run's earlier iterations, else the
            world size that the traces state.
    """

    path: str
    expected_ranks: _Counted | None = None


class SensorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the folders are looked at.

    Attributes:
        interval_seconds: least time between two looks; a folder is settled when two looks agree.
        deadline_minutes: a folder that is incomplete and unchanged for so long is taken as it is.
        rest_hours: a registered folder without a change for so long is listed only once in ``look_again_hours``.
        look_again_hours: see ``rest_hours``.
        budget_seconds: a look that takes longer goes on where it stopped at the next tick.
        folders_per_run: folders that one registering run takes at most.
        attempts: registering runs that may fail on one state of a folder before it is left to the nightly look.
        at_once_megabytes: traces of new iterations that a registering run computes itself at most; the rest is left to
            automation, and 0 leaves all to it.
    """

    interval_seconds: _Counted = 15
    deadline_minutes: _Span = 15.0
    rest_hours: _Span = 6.0
    look_again_hours: _Span = 6.0
    budget_seconds: _Span = 20.0
    folders_per_run: _Counted = 50
    attempts: _Whole = 3
    at_once_megabytes: _Whole = 256


class NightlySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When nights are judged, and against what.

    Attributes:
        cron, time_zone: when the night ends.
        series: globs over run ids; the runs that match one of them are one series, in the order of their traces. A run
            that matches none is a series of its own.
        wait_minutes: how long the verdict waits for iterations that are still being computed.
        warmup_steps: training steps with a lower number are compared with such alone: caches are still cold in them.
        history: accepted iterations whose median guards against many small steps.
        tolerances: what counts as worse.
    """

    cron: str = "0 2 * * *"
    time_zone: str = "UTC"
    series: tuple[str, ...] = ()
    wait_minutes: _Span = 120.0
    warmup_steps: _Whole = 3
    history: _Whole = 10
    tolerances: Tolerances = msgspec.field(default_factory=Tolerances)


class RetentionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long iterations are kept; by default for ever.

    Attributes:
        keep_days: an iteration whose newest trace is older goes; 0 keeps all.
        keep_newest: the last iterations of each run, which stay however old they are.
        cron: when that is looked at, in the time zone of the night.
    """

    keep_days: _Span = 0.0
    keep_newest: _Whole = 1
    cron: str = "0 5 * * *"


class FigureSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which pictures are drawn by themselves.

    Attributes:
        automatic: whether automation draws figures and the Perfetto trace of each iteration.
        ranks: of which ranks: ``outliers`` (all of a job with at most ``most_ranks`` ranks, of a larger one those that
            stand out), ``all`` or ``none``.
        most_ranks: see ``ranks``.
        formats: files of each figure: png, svg, pdf.
    """

    automatic: bool = True
    ranks: Literal["outliers", "all", "none"] = "outliers"
    most_ranks: Annotated[int, msgspec.Meta(ge=0)] = 16
    formats: tuple[Literal["png", "svg", "pdf"], ...] = ("png", "svg", "pdf")


class NotifySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where failed runs and failed gates are reported.

    Attributes:
        webhook: an http or https URL that takes a JSON object by POST; empty notifies nobody. TRACEVIZ_WEBHOOK comes
            before it.
        file: a file that gets one JSON object a line.
    """

    webhook: str = ""
    file: str = ""


class HomeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that may be set; nothing is watched without a root.

    Attributes:
        automation_seconds: least time between two looks at what has to be computed.
        peaks: words in a GPU's name → its peaks, beside and before those of ``analyze/peaks.toml``.
        rules: a TOML file of rules that are tried before the built-in ones, for everything that is computed in the
            home; empty has the built-in ones alone. ``traceviz analyze --rules`` sets it.
    """

    watch: tuple[WatchedRoot, ...] = ()
    automation_seconds: _Counted = 15
    rules: str = ""
    peaks: dict[str, GpuRates] = msgspec.field(default_factory=dict)
    sensor: SensorSettings = msgspec.field(default_factory=SensorSettings)
    nightly: NightlySettings = msgspec.field(default_factory=NightlySettings)
    retention: RetentionSettings = msgspec.field(default_factory=RetentionSettings)
    notify: NotifySettings = msgspec.field(default_factory=NotifySettings)
    figures: FigureSettings = msgspec.field(default_factory=FigureSettings)


def load_settings(home: Path, environment: Mapping[str, str] = os.environ) -> HomeSettings:
    """Read the settings in force: TRACEVIZ_SETTINGS names the file, else HOME/traceviz.toml, else none is needed.

    TRACEVIZ_ROOTS adds roots to those of the file, comma-separated; TRACEVIZ_WEBHOOK comes before the file's.

    Raises:
        BadInputError: the file that TRACEVIZ_SETTINGS names is missing, or a file says something unknown.
    """
    named, path = environment.get(FILE_VARIABLE), settings_file(home, environment)
    settings = HomeSettings()
    if named and not path.exists():
        raise BadInputError(path, "no such file", f"correct {FILE_VARIABLE}")
    if path.exists():
        document = read_toml(path, REMEDY)
        try:
            settings = msgspec.convert(document, HomeSettings)
        except (msgspec.ValidationError, OverflowError) as error:
            raise BadInputError(path, str(error), REMEDY) from None
        _check_times(settings, path)
        if settings.rules and not Path(settings.rules).is_absolute():
            raise BadInputError(path, f"rules = {settings.rules!r} is relative", "give its absolute path")
    for root in settings.watch:
        _refuse_relative(root.path, path)
    roots = [WatchedRoot(root.strip()) for root in environment.get(ROOTS_VARIABLE, "").split(",") if root.strip()]
    for root in roots:
        _refuse_relative(root.path, Path(ROOTS_VARIABLE))
    watched = {root.path: root for root in (*roots, *settings.watch)}
    webhook = environment.get(WEBHOOK_VARIABLE) or settings.notify.webhook
    _refuse_other_schemes(webhook, path if webhook == settings.notify.webhook else Path(WEBHOOK_VARIABLE))
    notify = NotifySettings(webhook, settings.notify.file)
    return msgspec.structs.replace(settings, watch=tuple(watched.values()), notify=notify)


def home_rules(home: Path, environment: Mapping[str, str] = os.environ) -> Path | None:
    """The file of rules of a home, for command, step and automation; None where the built-in ones are all.

    Raises:
        UsageError: TRACEVIZ_RULES is set, which some of them once read and others did not.
        BadInputError: as :func:`load_settings`.
    """
    if environment.get(_FORMER_RULES_VARIABLE):
        raise UsageError(
            f"{_FORMER_RULES_VARIABLE} is not read, as rules belong to a home: unset it, and set them once with "
            "traceviz analyze --rules FILE"
        )
    rules = load_settings(home, environment).rules
    return Path(rules) if rules else None


def home_peaks(home: Path, environment: Mapping[str, str] = os.environ) -> Peaks:
    """The peaks of GPUs that hold in a home.

    Raises:
        BadInputError: as :func:`load_settings`.
    """
    return Peaks(load_settings(home, environment).peaks)


def set_home_rules(home: Path, rules: Path | None) -> None:
    """Write into the settings in force which file of rules the home has; all else in that file stays as it is.

    Args:
        rules: absolute; None goes back to the built-in ones.

    Raises:
        BadInputError: the file says something unknown, or cannot be changed in one line.
    """
    wanted = str(rules) if rules is not None else ""
    if home_rules(home) == rules:
        return
    path = settings_file(home)
    text = read_text(path) if path.exists() else ""
    lines = text.splitlines(keepends=True)
    first_table = next((number for number, line in enumerate(lines) if line.lstrip().startswith("[")), len(lines))
    head = [line for line in lines[:first_table] if not _RULES_LINE.match(line)]
    new = f"rules = {json.dumps(wanted, ensure_ascii=False)}\n" if wanted else ""
    changed = new + "".join([*head, *lines[first_table:]])
    try:
        said = msgspec.convert(parse_toml(changed, path, REMEDY), HomeSettings).rules
    except (BadInputError, msgspec.ValidationError):
        said = None
    if said != wanted:
        remedy = f"write the line there yourself: rules = {json.dumps(wanted)}"
        raise BadInputError(path, "cannot be changed in one line", remedy)
    write_atomically(path, changed.encode())


def settings_file(home: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """The file of the settings in force, which need not exist."""
    named = environment.get(FILE_VARIABLE)
    return Path(named) if named else home / FILE_NAME


def _check_times(settings: HomeSettings, path: Path) -> None:
    for name, value in msgspec.structs.asdict(settings.nightly.tolerances).items():
        if not 0 <= value < _LARGEST_TOLERANCE:
            raise BadInputError(path, f"{name} = {value} is no tolerance", REMEDY)
    zone = settings.nightly.time_zone
    try:
        ZoneInfo(zone)
    except (ValueError, OSError, ZoneInfoNotFoundError):
        raise BadInputError(path, f"time_zone = {zone[:40]!r} is no time zone", "write one as Europe/Zurich") from None


def _refuse_other_schemes(webhook: str, source: Path) -> None:
    """Python would open file:// and ftp:// as well."""
    if webhook and not webhook.lower().startswith(("http://", "https://")):
        raise BadInputError(source, "webhook is no address of http or https", REMEDY)


def _refuse_relative(root: str, source: Path) -> None:
    """A code server runs in a folder of its own, so a relative path would mean another one there."""
    if "://" not in root and not Path(root).is_absolute():
        raise BadInputError(source, f"watched folder {root!r} is relative", "give its absolute path, or a URL")

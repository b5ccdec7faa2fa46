"""The sensor over the watched folders: it lists them, and asks for a registering run where one has settled."""

import time
from collections.abc import Callable, Mapping, Sequence

import dagster as dg
import msgspec
import xxhash

from assets.conventions import DATA_VERSION_TAG, IN_FLIGHT
from assets.raw_traces import classification_rules
from assets.resources import TracevizHome
from sensors.busy_storage import once_free
from sensors.folder_changes import Due, Patience, Pending, advance, asked
from sensors.ledger import FolderRecord, FolderState, read_ledger
from sensors.listing import FolderLook, Unreadable, is_url, open_folders, walk
from sensors.register_traces import (
    JOB_NAME,
    OP_NAME,
    FolderConfig,
    RegisterConfig,
    last_automation_look,
    let_automation_ask,
    register_traces,
    unseen_at_once,
)
from traceviz_dag.errors import TracevizError
from traceviz_dag.pipeline.home_settings import HomeSettings, SensorSettings, WatchedRoot
from traceviz_dag.system.json_bytes import decoded

_LONGEST_WAIT_SECONDS = 300
"""For a look of automation; if it takes longer, something is wrong with it, and folders do not wait."""


class WatchCursor(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the sensor remembers from tick to tick: only what is unsettled; what is done is in the ledger.

    Attributes:
        pending: folder → how it looked.
        resume: the folder at which a tick ran out of time; empty when the last walk was whole.
        rules: digest of the rule table that was last observed.
    """

    pending: dict[str, Pending] = {}
    resume: str = ""
    rules: str = ""


def trace_folders_sensor(settings: HomeSettings) -> dg.SensorDefinition:
    """The sensor ``trace_folders``; it runs unless switched off, where there is a root to watch."""

    @dg.sensor(
        name="trace_folders",
        job=register_traces,
        minimum_interval_seconds=settings.sensor.interval_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING if settings.watch else dg.DefaultSensorStatus.STOPPED,
        description="Watches folders for new iterations, changed ranks and late ranks.",
    )
    def trace_folders(context: dg.SensorEvaluationContext, traceviz: TracevizHome) -> dg.SensorResult:
        return once_free(lambda: look_once(context, traceviz, time.time()))

    return trace_folders


def look_once(context: dg.SensorEvaluationContext, traceviz: TracevizHome, now: float) -> dg.SensorResult:
    """One tick: list what need be listed, and ask for one registering run, unless one is under way.

    Args:
        now: seconds since the epoch.
    """
    settings = traceviz.settings()
    cursor = read_cursor(context.cursor)
    ledger = read_ledger(traceviz.folder)
    looks, faults, resume = _look_at_all(settings, ledger, cursor.resume, now)
    patience = Patience(
        deadline_seconds=settings.sensor.deadline_minutes * 60,
        attempts=settings.sensor.attempts,
        expected_ranks={root.path.rstrip("/"): root.expected_ranks for root in settings.watch if root.expected_ranks},
    )
    pending, due = advance(cursor.pending, looks, ledger, now, patience)
    requests: list[dg.RunRequest] = []
    if due and not _is_registering(context.instance, time.time()):
        due = due[: settings.sensor.folders_per_run]
        pending = asked(pending, due)
        requests.append(_request(due, settings.watch))
    rules, observations = _rules_observation(context, traceviz, cursor.rules)
    reason = None if requests else _reason(settings, faults, pending)
    for fault in faults:
        context.log.warning("%s cannot be listed: %s", fault.folder, fault.reason)
    return dg.SensorResult(
        run_requests=requests,
        skip_reason=reason,
        cursor=msgspec.json.encode(WatchCursor(pending, resume, rules)).decode(),
        asset_events=observations,
    )


def read_cursor(text: str | None) -> WatchCursor:
    """The cursor of the last tick; an empty one at the first, or where another version wrote it."""
    if not text:
        return WatchCursor()
    try:
        return decoded(text.encode("utf-8", "replace"), WatchCursor)
    except msgspec.DecodeError:
        return WatchCursor()


def rests(
    settings: SensorSettings, ledger: Mapping[str, FolderRecord], root: str, now: float
) -> Callable[[str, int], bool]:
    """Which folders need not be listed at this tick: registered, long without a change, and not their turn.

    A local folder in which a name came or went shows it by its own time of change. The turns of all other changes are
    spread evenly over the ticks.
    """
    turns = max(1, int(settings.look_again_hours * 3600 / settings.interval_seconds))
    turn = int(now / settings.interval_seconds) % turns
    remote = is_url(root)

    def rests_now(folder: str, changed_ns: int) -> bool:
        record = ledger.get(folder)
        if record is None or not record.is_leaf or record.state is FolderState.WAITING:
            return False
        settled = now - record.newest_ns / 1e9 > settings.rest_hours * 3600
        untouched = remote or changed_ns == record.changed_ns
        return settled and untouched and xxhash.xxh3_64_intdigest(folder.encode()) % turns != turn

    return rests_now


def _look_at_all(
    settings: HomeSettings, ledger: Mapping[str, FolderRecord], resume: str, now: float
) -> tuple[list[FolderLook], list[Unreadable], str]:
    """Looks, folders that could not be listed, and where to go on when the time for a tick is over."""
    looks: dict[str, FolderLook] = {}
    faults: list[Unreadable] = []
    end = time.monotonic() + settings.sensor.budget_seconds
    for root in sorted(settings.watch, key=lambda one: one.path):
        start = resume if resume.startswith(root.path) else ""
        if resume and not start and root.path < resume:
            continue
        for look in walk(open_folders(root.path), root.path, rests(settings.sensor, ledger, root.path, now), start):
            if isinstance(look, Unreadable):
                faults.append(look)
            else:
                looks[look.folder] = look
            if time.monotonic() > end:
                return list(looks.values()), faults, look.folder
    return list(looks.values()), faults, ""


def _is_registering(instance: dg.DagsterInstance, now: float) -> bool:
    """Whether a registering run is under way, or automation has not looked since one computed what it registered.

    Args:
        now: seconds since the epoch.
    """
    if instance.get_runs_count(dg.RunsFilter(job_name=JOB_NAME, statuses=IN_FLIGHT)):
        return True
    looked = last_automation_look(instance)
    if looked is None:
        return False
    return instance.get_runs_count(unseen_at_once(max(looked, now - _LONGEST_WAIT_SECONDS))) > 0


def _request(due: Sequence[Due], roots: Sequence[WatchedRoot]) -> dg.RunRequest:
    folders = [
        FolderConfig(
            folder=one.look.folder, root=_root_of(one.look.folder, roots), digest=one.look.digest, overdue=one.overdue
        )
        for one in due
    ]
    # The same state of the same folders is asked for once, even where a crash lost the cursor that says so.
    manifest = "\n".join(f"{one.look.folder} {one.look.digest} {one.overdue} {one.attempt}" for one in due)
    return dg.RunRequest(
        run_key=xxhash.xxh3_64_hexdigest(manifest.encode()),
        run_config=dg.RunConfig(ops={OP_NAME: RegisterConfig(folders=folders)}),
        tags={"traceviz/folders": str(len(folders))},
    )


def _root_of(folder: str, roots: Sequence[WatchedRoot]) -> str:
    holding = [
        root.path for root in roots if folder == root.path.rstrip("/") or folder.startswith(root.path.rstrip("/") + "/")
    ]
    return max(holding, key=len)


def _rules_observation(
    context: dg.SensorEvaluationContext, traceviz: TracevizHome, known: str
) -> tuple[str, list[dg.AssetObservation]]:
    """The rule table is no trace: it is small, and one file for all; a tick may read it."""
    try:
        digest = traceviz.load_rules().digest
    except TracevizError as error:
        context.log.warning("the rules stay as they were: %s", error)
        return known, []
    if digest == known:
        return known, []
    let_automation_ask(context.instance)
    return digest, [dg.AssetObservation(classification_rules.key, tags={DATA_VERSION_TAG: digest})]


def _reason(settings: HomeSettings, faults: Sequence[Unreadable], pending: Mapping[str, Pending]) -> str:
    if not settings.watch:
        return "no folder is watched: set TRACEVIZ_ROOTS, or watch.path in traceviz.toml"
    if faults:
        return f"{len(faults)} folders cannot be listed, so nothing is concluded from them: {faults[0].folder}"
    return f"{len(pending)} folders are not settled" if pending else "nothing changed"

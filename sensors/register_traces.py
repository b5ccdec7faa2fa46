"""The job that registers watched folders: it opens their files, adds partitions, observes what changed, and computes
new iterations that are small."""

import time
from collections.abc import Collection, Sequence
from datetime import UTC, datetime

import dagster as dg
from pydantic import Field

from assets.automation import AUTOMATION
from assets.conventions import AT_ONCE_TAG
from assets.partitions import iteration_partitions, register_partitions
from assets.raw_traces import new_observations
from assets.resources import TracevizHome
from assets.step_faults import told_in_a_line
from assets.unreported import unreported
from sensors.ledger import FolderRecord, read_ledger, update_ledger
from sensors.listing import FolderLook, Unreadable, open_folders, walk
from sensors.registration import FolderTask, Registration, register_folder
from traceviz_dag.errors import TracevizError
from traceviz_dag.lake.conversion import DAMAGED
from traceviz_dag.lake.inputs import IterationInputs, registered
from traceviz_dag.pipeline.analysis import AnalysisSettings, analyse
from traceviz_dag.pipeline.home_settings import HomeSettings

JOB_NAME = "register_traces"
OP_NAME = "register_folders"
_SETTLED_SECONDS = 60


class FolderConfig(dg.Config):
    """One folder that the sensor found due; see ``FolderTask``."""

    folder: str
    root: str
    digest: str = ""
    overdue: bool = False


class RegisterConfig(dg.Config):
    """What to register.

    Attributes:
        folders: those that the sensor found due.
        everything: look at every folder below every root, however long it has been at rest.
    """

    folders: list[FolderConfig] = Field(default_factory=list)
    everything: bool = False


@dg.op(name=OP_NAME)
@told_in_a_line
def register_folders(context: dg.OpExecutionContext, config: RegisterConfig, traceviz: TracevizHome) -> None:
    """Register folder by folder, then compute what is new and small: the stages of automation take longer than that.

    A crash in the middle keeps what was done, and the sensor asks for the rest again.
    """
    settings = traceviz.settings()
    expected = {root.path: root.expected_ranks for root in settings.watch}
    tasks = [
        FolderTask(one.folder, one.root, one.digest, one.overdue, expected.get(one.root)) for one in config.folders
    ]
    if config.everything:
        tasks += _everything_unregistered(context, settings, traceviz)
    known = set(context.instance.get_dynamic_partitions(str(iteration_partitions.name)))
    new: dict[str, IterationInputs] = {}
    done: dict[str, FolderRecord] = {}
    counts = {"folders": len(tasks), "iterations": 0, "observations": 0, "computed": 0}
    for task in tasks:
        try:
            outcome = register_folder(traceviz.folder, task)
        except (OSError, TracevizError) as error:
            # The others go on; the sensor asks for this one again, a bounded number of times.
            context.log.error("%s cannot be registered: %s", task.folder, error)
            continue
        # Of an iteration with several folders, each finds more.
        new |= {one.key: one for one in outcome.iterations if one.key not in known}
        counts["observations"] += _publish(context, [one for one in outcome.iterations if one.key in known], known=True)
        counts["iterations"] += len(outcome.iterations)
        if outcome.record is not None:
            _say(context, task.folder, outcome, outcome.record)
            if any(one.key in new for one in outcome.iterations):
                done[task.folder] = outcome.record
            else:
                update_ledger(traceviz.folder, {task.folder: outcome.record})
    at_once = _at_once(context.instance, settings, list(new.values()))
    counts["observations"] += _publish(context, [one for key, one in new.items() if key not in at_once])
    for key in at_once:
        counts["observations"] += _compute(context, traceviz, new[key])
        counts["computed"] += 1
    update_ledger(traceviz.folder, done)
    context.add_output_metadata(dict(counts))


@dg.job(name=JOB_NAME, description="Registers iterations and ranks of watched folders, and computes small new ones.")
def register_traces() -> None:
    """One step; what it does not compute is computed by the automation conditions."""
    register_folders()


def last_automation_look(instance: dg.DagsterInstance, *, though_off: bool = False) -> float | None:
    """When automation began to look the last time, seconds since the epoch; None where it is off, or never did.

    Args:
        though_off: report it where automation is off, too.
    """
    if instance.is_ephemeral:
        # It keeps nothing of sensors.
        return None
    for state in instance.all_instigator_state():
        if state.instigator_name == AUTOMATION:
            looked: float | None = getattr(state.instigator_data, "last_tick_timestamp", None)
            return looked if though_off or state.status.value != "STOPPED" else None
    return None


def unseen_at_once(since: float) -> dg.RunsFilter:
    """The runs that computed what they registered, and ended after a look, or have not ended.

    Args:
        since: when automation began to look, seconds since the epoch.
    """
    at = datetime.fromtimestamp(since, UTC)
    return dg.RunsFilter(job_name=JOB_NAME, tags={AT_ONCE_TAG: "true"}, updated_after=at)


def let_automation_ask(instance: dg.DagsterInstance) -> None:
    """Call before a change becomes known: what was computed at once, and automation has not seen yet, answers no need
    any more. A look that saw both would take the tables for the answer to the change. What is current costs it a run,
    which makes nothing anew."""
    looked = last_automation_look(instance, though_off=True)
    if looked is not None:
        for run in instance.get_runs(unseen_at_once(looked)):
            instance.add_run_tags(run.run_id, {AT_ONCE_TAG: "changed since"})


def _at_once(instance: dg.DagsterInstance, settings: HomeSettings, new: Sequence[IterationInputs]) -> Collection[str]:
    """Keys of the new iterations that this run computes itself, smallest first; none while automation is off.

    What is larger waits for its turn, beside that of others, and the looks of automation matter less to it.
    """
    if last_automation_look(instance) is None:
        return []
    left, chosen = settings.sensor.at_once_megabytes * 1_000_000, []
    for size, key in sorted((_bytes(one), one.key) for one in new):
        left -= size
        if left < 0:
            break
        chosen.append(key)
    return chosen


def _bytes(inputs: IterationInputs) -> int:
    """Of its files; several ranks may be in one."""
    return sum({entry.path: entry.size_bytes for entry in inputs.files}.values())


def _compute(context: dg.OpExecutionContext, traceviz: TracevizHome, inputs: IterationInputs) -> int:
    """Compute an iteration and record all of it; what fails is left to automation, whose run says why.

    Returns:
        How many observations it took.
    """
    context.instance.add_run_tags(context.run.run_id, {AT_ONCE_TAG: "true"})
    try:
        (result,) = analyse(AnalysisSettings(traceviz.folder, workers=traceviz.workers), [inputs])
        for line in result.failures:
            context.log.warning("%s", line)
    except (OSError, TracevizError) as error:
        context.log.warning("%s is not computed: %s", inputs.key, error)
    now = registered(traceviz.folder, inputs.key)
    observations = _publish(context, [now])
    try:
        for event in unreported(context.instance, traceviz, now):
            if isinstance(event, dg.AssetCheckEvaluation):
                # A step may log those alone that it was planned for.
                context.instance.report_runless_asset_event(event)
            else:
                context.log_event(event)
    except (OSError, TracevizError, *DAMAGED) as error:
        context.log.warning("%s is not recorded whole: %s", inputs.key, error)
    return observations


def _publish(context: dg.OpExecutionContext, iterations: Sequence[IterationInputs], *, known: bool = False) -> int:
    """Observations first, then partitions: automation sees a new iteration with all of its ranks, or not at all.

    Args:
        known: they were registered before, so that what is observed is a change.
    """
    observations = list(new_observations(context.instance, iterations))
    if known and observations:
        let_automation_ask(context.instance)
    for observation in observations:
        context.log_event(observation)
    register_partitions(context.instance, iterations)
    return len(observations)


def _say(context: dg.OpExecutionContext, folder: str, outcome: Registration, record: FolderRecord) -> None:
    context.log.info("%s: %s, %d ranks %s", folder, record.state.value, record.ranks, record.reason)
    for line in outcome.warnings:
        context.log.warning("%s", line)


def _everything_unregistered(
    context: dg.OpExecutionContext, settings: HomeSettings, traceviz: TracevizHome
) -> list[FolderTask]:
    """Folders that look different from what was registered, and have not changed within the last minute.

    Those that are gone leave the ledger, unless something of their root could not be listed.
    """
    now, ledger = time.time(), read_ledger(traceviz.folder)
    deadline = settings.sensor.deadline_minutes * 60
    tasks = []
    for root in settings.watch:
        found, readable = set(), True
        for look in walk(open_folders(root.path), root.path):
            if isinstance(look, Unreadable):
                readable = False
                context.log.error("%s cannot be listed: %s", look.folder, look.reason)
                continue
            found.add(look.folder)
            if _is_news(look, ledger.get(look.folder)) and _age(look, now) > _SETTLED_SECONDS:
                overdue = _age(look, now) > deadline
                tasks.append(FolderTask(look.folder, root.path, look.digest, overdue, root.expected_ranks))
        below = f"{root.path.rstrip('/')}/"
        gone = {folder for folder in ledger if folder.startswith(below) and folder not in found}
        if readable and gone:
            update_ledger(traceviz.folder, {}, gone)
    return tasks


def _is_news(look: FolderLook, record: FolderRecord | None) -> bool:
    return record is None or record.digest != look.digest


def _age(look: FolderLook, now: float) -> float:
    """Seconds since the last change of a file in it; a store without times counts as old."""
    return now - look.newest_ns / 1e9 if look.newest_ns else float("inf")

"""The job that registers watched folders: it opens their files, adds partitions and observes what changed."""

import time

import dagster as dg
from pydantic import Field

from assets.partitions import register_partitions
from assets.raw_traces import new_observations
from assets.resources import TracevizHome
from assets.step_faults import told_in_a_line
from sensors.ledger import FolderRecord, read_ledger, update_ledger
from sensors.listing import FolderLook, Unreadable, open_folders, walk
from sensors.registration import FolderTask, Registration, register_folder
from traceviz_dag.errors import TracevizError
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
    """Register folder by folder: a crash in the middle keeps what was done, and the sensor asks for the rest again."""
    settings = traceviz.settings()
    expected = {root.path: root.expected_ranks for root in settings.watch}
    tasks = [
        FolderTask(one.folder, one.root, one.digest, one.overdue, expected.get(one.root)) for one in config.folders
    ]
    if config.everything:
        tasks += _everything_unregistered(context, settings, traceviz)
    counts = {"folders": len(tasks), "iterations": 0, "observations": 0}
    for task in tasks:
        try:
            outcome = register_folder(traceviz.folder, task)
        except (OSError, TracevizError) as error:
            # The others go on; the sensor asks for this one again, a bounded number of times.
            context.log.error("%s cannot be registered: %s", task.folder, error)
            continue
        counts["observations"] += _publish(context, outcome)
        counts["iterations"] += len(outcome.iterations)
        if outcome.record is not None:
            update_ledger(traceviz.folder, {task.folder: outcome.record})
            _say(context, task.folder, outcome, outcome.record)
    context.add_output_metadata(dict(counts))


@dg.job(name=JOB_NAME, description="Registers iterations and ranks of watched folders.")
def register_traces() -> None:
    """One step; what it finds is computed by the automation conditions."""
    register_folders()


def _publish(context: dg.OpExecutionContext, outcome: Registration) -> int:
    """Observations first, then partitions: automation sees a new iteration with all of its ranks, or not at all."""
    observations = list(new_observations(context.instance, outcome.iterations))
    for observation in observations:
        context.log_event(observation)
    register_partitions(context.instance, outcome.iterations)
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

"""The night: a schedule looks at every folder once, and a sensor asks for the verdict when the rest is computed."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import dagster as dg
import xxhash

from assets.conventions import IN_FLIGHT, ONLY_STALE_TAG, RANGE_END_TAG, RANGE_START_TAG
from assets.partitions import rank_trace_key, register_partitions
from assets.resources import TracevizHome
from sensors.busy_storage import once_free
from sensors.jobs import JUDGE_NIGHT, STAGES
from sensors.register_traces import JOB_NAME, OP_NAME, RegisterConfig, register_traces
from traceviz_dag.lake.inputs import IterationInputs, all_registered, registered_before
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partition_keys import iteration_key, rank_key
from traceviz_dag.lake.under_way import analyses
from traceviz_dag.pipeline.home_settings import HomeSettings
from traceviz_dag.pipeline.iteration import unread_ranks
from traceviz_dag.pipeline.nights.judged import unjudged
from traceviz_dag.pipeline.staleness import contiguous, pending_stage, topology_is_current
from traceviz_dag.vocabulary import StaleCause

NIGHT_TAG = "traceviz/night"
RUN_KEY_TAG = "dagster/run_key"

_FIRST_LOOK, _SEEN = "first look", "nothing is left of what was stale at first"

_AUTOMATION_LOOKS = 4
"""So many looks after the last run, automation has asked for all that it is going to ask for."""


def nightly_schedule(settings: HomeSettings) -> dg.ScheduleDefinition:
    """The schedule ``nightly``: registers what the sensor missed, and opens the night for its verdict."""

    @dg.schedule(
        name="nightly",
        job=register_traces,
        cron_schedule=settings.nightly.cron,
        execution_timezone=settings.nightly.time_zone,
        default_status=dg.DefaultScheduleStatus.RUNNING if settings.watch else dg.DefaultScheduleStatus.STOPPED,
        description="Lists every folder, however long at rest; nightly_verdict judges what is there then.",
    )
    def nightly(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        night = context.scheduled_execution_time.isoformat()
        return dg.RunRequest(
            run_key=night,
            run_config=dg.RunConfig(ops={OP_NAME: RegisterConfig(everything=True)}),
            tags={NIGHT_TAG: night},
        )

    return nightly


def nightly_verdict_sensor(settings: HomeSettings) -> dg.SensorDefinition:
    """The sensor ``nightly_verdict``: after the nightly look it asks for what is missing, then for the verdict."""

    @dg.sensor(
        name="nightly_verdict",
        jobs=[*STAGES.values(), JUDGE_NIGHT],
        minimum_interval_seconds=max(30, settings.automation_seconds),
        default_status=dg.DefaultSensorStatus.RUNNING if settings.watch else dg.DefaultSensorStatus.STOPPED,
        description="Once the nightly listing is done and nothing is under way: computes what is missing, then judges. "
        "When it first runs, it computes what was stale before automation started.",
    )
    def nightly_verdict(
        context: dg.SensorEvaluationContext, traceviz: TracevizHome
    ) -> Iterator[dg.RunRequest | dg.SkipReason]:
        def asked() -> list[dg.RunRequest | dg.SkipReason]:
            now = time.time()
            if context.cursor != _SEEN:
                # Automation may ask for the same at its own first looks, and sees what is registered after them.
                began = float(context.cursor or now)
                context.update_cursor(str(began))
                looking = began + _AUTOMATION_LOOKS * traceviz.settings().automation_seconds
                requests = None if now < looking else left_at_first(context.instance, traceviz, now, looking)
                if requests is None:
                    return [dg.SkipReason("what was stale at first is asked for once nothing is under way")]
                if requests:
                    return list(requests)
                context.update_cursor(_SEEN)
            return list(judge_open_night(context.instance, traceviz, now))

        yield from once_free(asked)

    return nightly_verdict


def left_at_first(
    instance: dg.DagsterInstance, traceviz: TracevizHome, now: float, looking: float
) -> Sequence[dg.RunRequest] | None:
    """Requests for what is stale, and was so before automation began to look: its conditions ask for changes alone.

    Args:
        now: seconds since the epoch.
        looking: since when automation looks for sure.

    Returns:
        None while something is under way, or may be asked for; nothing once all that could be computed is.
    """
    if under_way(instance, traceviz, now):
        return None
    before = registered_before(traceviz.folder, looking)
    return list(what_is_missing(instance, traceviz, before, _FIRST_LOOK, {}))


def judge_open_night(
    instance: dg.DagsterInstance, traceviz: TracevizHome, now: float
) -> Iterator[dg.RunRequest | dg.SkipReason]:
    """The next requests of an open night, if there is one.

    What is stale and not under way is asked for once a night and state; when nothing of that is left, or the wait is
    over, the verdict is asked for. No state is kept: runs show which night is open and what was tried.

    Args:
        now: seconds since the epoch.
    """
    night = _latest_night(instance)
    looks = instance.get_run_records(dg.RunsFilter(job_name=JOB_NAME, tags={NIGHT_TAG: night or ""}), limit=1)
    if night is None or not looks:
        yield dg.SkipReason("no night is open")
        return
    if not looks[0].dagster_run.is_finished or looks[0].end_time is None:
        yield dg.SkipReason(f"the listing of {night} is under way")
        return
    verdict_key = f"verdict {night}"
    if was_tried(instance, verdict_key):
        yield dg.SkipReason(f"the night of {night} is judged")
        return
    settings = traceviz.settings()
    waited = now - looks[0].end_time
    if waited < settings.nightly.wait_minutes * 60:
        busy = under_way(instance, traceviz, now)
        if busy:
            yield dg.SkipReason(busy)
            return
        unfinished = _unfinished(traceviz.lake())
        requests = list(what_is_missing(instance, traceviz, unfinished, night, {NIGHT_TAG: night}))
        if requests:
            yield from requests
            return
    ends = _to_judge(instance, traceviz.lake())
    if not ends:
        yield dg.SkipReason("there is no iteration to judge")
        return
    yield dg.RunRequest(
        run_key=verdict_key, job_name=JUDGE_NIGHT.name, tags={NIGHT_TAG: night, ONLY_STALE_TAG: "true", **ends}
    )


def _to_judge(instance: dg.DagsterInstance, lake: Lake) -> dict[str, str]:
    """The range of partitions that holds what has no verdict, as tags; of the last one where all have, so that the gate
    says so. Nothing without any partition."""
    keys = list(instance.get_dynamic_partitions("iteration"))
    wanted = {iteration_key(partition.run, partition.iteration) for partition in unjudged(lake)}
    places = [place for place, key in enumerate(keys) if key in wanted] or [len(keys) - 1]
    return {RANGE_START_TAG: keys[places[0]], RANGE_END_TAG: keys[places[-1]]} if keys else {}


def _latest_night(instance: dg.DagsterInstance) -> str | None:
    """The night that was opened last; at the end of daylight saving time, the same hour comes with two offsets."""
    nights = [
        night for tag, values in instance.get_run_tags(tag_keys=[NIGHT_TAG]) if tag == NIGHT_TAG for night in values
    ]
    return max(nights, default=None, key=datetime.fromisoformat)


def under_way(instance: dg.DagsterInstance, traceviz: TracevizHome, now: float) -> str:
    """Why it is too early to ask for what is stale: it may be on its way; empty where it is not."""
    analysed = [one.key for one in analyses(traceviz.folder) if not one.cut_off]
    if analysed:
        return f"{analysed[0]} is being analysed"
    in_flight = instance.get_runs_count(dg.RunsFilter(statuses=IN_FLIGHT))
    if in_flight:
        return f"{in_flight} runs are under way"
    since = datetime.fromtimestamp(now - _AUTOMATION_LOOKS * traceviz.settings().automation_seconds, UTC)
    if instance.get_runs_count(dg.RunsFilter(updated_after=since)):
        return "a run ended just now, and automation may ask for what follows from it"
    return ""


def what_is_missing(
    instance: dg.DagsterInstance,
    traceviz: TracevizHome,
    among: Iterable[IterationInputs],
    occasion: str,
    tags: Mapping[str, str],
) -> Iterator[dg.RunRequest]:
    """Requests for the next stage of every iteration that is not current, each once an occasion and state."""
    lake, rules_digest = traceviz.lake(), traceviz.load_rules().digest
    for inputs in among:
        stage = pending_stage(lake, inputs, rules_digest)
        if stage is None or (stage[0] == "iterations" and unread_ranks(lake, inputs)):
            continue
        # Of an analysis that was killed before its first table, Dagster knows nothing yet.
        register_partitions(instance, [inputs])
        for request in _requests_of(inputs, stage[0], stage[1], occasion, tags):
            if not was_tried(instance, str(request.run_key)):
                yield request


def _unfinished(lake: Lake) -> Iterator[IterationInputs]:
    """Iterations without a verdict, and those of which tables could not be made anew, or whose topology was made of
    something else: their traces may be back."""
    to_judge = {(partition.run, partition.iteration) for partition in unjudged(lake)}
    for inputs in all_registered(lake.home):
        has_measures = lake.exists("iterations", run=inputs.run, iteration=inputs.iteration)
        outdated = any(row.cause == StaleCause.OUTDATED for row in lake.stale(inputs.run, inputs.iteration))
        is_judged = has_measures and (inputs.run, inputs.iteration) not in to_judge
        if outdated or not is_judged or not topology_is_current(lake, inputs):
            yield inputs


def _requests_of(
    inputs: IterationInputs, stage: str, ranks: list[int], occasion: str, of_occasion: Mapping[str, str]
) -> Iterator[dg.RunRequest]:
    versions = xxhash.xxh3_64_hexdigest(" ".join(entry.version for entry in inputs.ranks).encode())
    tags = {ONLY_STALE_TAG: "true", **of_occasion}
    if stage != "ranks":
        yield dg.RunRequest(
            run_key=f"{occasion} {stage} {inputs.key} {versions}",
            job_name=STAGES[stage].name,
            partition_key=inputs.key,
            tags=tags,
        )
        return
    for first, last in contiguous(ranks):
        ends = {
            RANGE_START_TAG: str(rank_trace_key(inputs.key, rank_key(first))),
            RANGE_END_TAG: str(rank_trace_key(inputs.key, rank_key(last))),
        }
        yield dg.RunRequest(
            run_key=f"{occasion} {stage} {inputs.key} {first}-{last} {versions}",
            job_name=STAGES[stage].name,
            tags={**tags, **ends},
        )


def was_tried(instance: dg.DagsterInstance, run_key: str) -> bool:
    """Whether a run was asked for by this key."""
    return instance.get_runs_count(dg.RunsFilter(tags={RUN_KEY_TAG: run_key})) > 0

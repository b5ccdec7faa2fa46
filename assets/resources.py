"""The one resource: the home folder that holds everything written, and how many processes may work on it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import dagster as dg

from traceviz_dag.classify.rules import Rules, load_rules
from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.pipeline.cluster.opening import CLUSTER_VARIABLE, open_cluster
from traceviz_dag.pipeline.engines import Engine
from traceviz_dag.pipeline.home_settings import REMEDY, HomeSettings, home_rules, load_settings, settings_file
from traceviz_dag.system.objects import local_home
from traceviz_dag.vocabulary import DEFAULT_HOME


class TracevizHome(dg.ConfigurableResource):
    """Where the lake, its catalogue and the list of inputs are.

    Attributes:
        home: the folder; empty takes TRACEVIZ_HOME, else ./traceviz_home.
        workers: processes that ranks fan out over; 0 = as many as cores and memory allow.
        rules: a TOML file with rules that come before the built-in ones; empty takes that of the home's settings.
        cluster: where ranks are analysed, as ``traceviz analyze --cluster`` takes it; empty takes TRACEVIZ_CLUSTER, and
            without it processes of this machine.
    """

    home: str = ""
    workers: int = 0
    rules: str = ""
    cluster: str = ""

    @property
    def folder(self) -> Path:
        """The home folder, absolute."""
        return local_home(Path(self.home or os.environ.get("TRACEVIZ_HOME") or DEFAULT_HOME))

    def lake(self) -> Lake:
        """The lake of this home."""
        return open_lake(self.folder)

    def engine(self, tell: Callable[[str], None]) -> AbstractContextManager[Engine | None]:
        """Where ranks are analysed, for as long as that takes; see ``open_cluster``."""
        return open_cluster(self.cluster or os.environ.get(CLUSTER_VARIABLE), self.folder, self.workers, tell)

    def settings(self) -> HomeSettings:
        """What runs automatically in this home, and how.

        Raises:
            BadInputError: as ``load_settings``, and for times that Dagster would refuse when it loads its schedules:
                then nothing at all would run.
        """
        settings = load_settings(self.folder)
        for cron in (settings.nightly.cron, settings.retention.cron):
            try:
                dg.ScheduleDefinition("checked", cron_schedule=cron, target="*")
            except (dg.DagsterInvalidDefinitionError, ValueError, OverflowError):
                path, fault = settings_file(self.folder), f"cron = {cron[:40]!r} is no time that comes back"
                raise BadInputError(path, fault, REMEDY) from None
        return settings

    def load_rules(self) -> Rules:
        """The rule table in force."""
        return load_rules(Path(self.rules) if self.rules else home_rules(self.folder))

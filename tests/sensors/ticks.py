"""Ticks of the sensor of trace folders and the runs that they ask for, without a daemon."""

from __future__ import annotations

from pathlib import Path

import dagster as dg

from assets.resources import TracevizHome
from sensors.register_traces import register_traces
from sensors.trace_folders import look_once

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


class Sensor:
    """Ticks of trace_folders; ``restart`` forgets all but what Dagster keeps."""

    def __init__(self, home: Path, *roots: Path, settings: str = "") -> None:
        home.mkdir()
        watched = "".join(f'[[watch]]\npath = "{root}"\n' for root in roots)
        (home / "traceviz.toml").write_text(settings + watched)
        self.traceviz = TracevizHome(home=str(home))
        self.instance = dg.DagsterInstance.ephemeral()
        self.cursor: str | None = None
        self.now = 2_000_000_000.0

    def tick(self, seconds: float = 30) -> dg.SensorResult:
        self.now += seconds
        result = look_once(dg.build_sensor_context(self.instance, cursor=self.cursor), self.traceviz, self.now)
        self.cursor = result.cursor
        return result

    def asked(self, seconds: float = 30) -> list[str]:
        return [
            Path(folder["folder"]).name for request in self.tick(seconds).run_requests for folder in folders(request)
        ]

    def register(self, request: dg.RunRequest) -> None:
        register_traces.execute_in_process(
            run_config={**request.run_config, **QUIET}, instance=self.instance, resources={"traceviz": self.traceviz}
        )


def folders(request: dg.RunRequest) -> list[dict]:
    return request.run_config["ops"]["register_folders"]["config"]["folders"]

"""A message reaches a webhook and a file; a webhook out of reach is an error and no silence."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import dagster as dg
import pytest

from assets.resources import TracevizHome
from sensors.notifications import notify_sensor, send
from traceviz_dag.pipeline.home_settings import NotifySettings, load_settings


def test_a_message_is_posted_and_written(tmp_path):
    posted = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        settings = NotifySettings(f"http://127.0.0.1:{server.server_port}/hook", str(tmp_path / "deep/told.jsonl"))
        send(settings, {"text": "größer"})
        send(settings, {"text": "again"})
    finally:
        server.shutdown()
        server.server_close()
    assert posted == [{"text": "größer"}, {"text": "again"}]
    assert [json.loads(line) for line in (tmp_path / "deep/told.jsonl").read_text().splitlines()] == posted


def test_a_webhook_out_of_reach_is_an_error():
    with pytest.raises(OSError):
        send(NotifySettings("http://127.0.0.1:9/hook"), {"text": "x"})


def _failed_run(instance: dg.DagsterInstance, tags: dict[str, str]) -> dg.ExecuteInProcessResult:
    @dg.op
    def checked(context):
        for severity in dg.AssetCheckSeverity:
            told = dg.AssetCheckEvaluation(
                asset_key=dg.AssetKey("kernels"),
                check_name=severity.value.lower(),
                passed=False,
                severity=severity,
                description=f"says {severity.value}",
                metadata={},
            )
            context.log_event(told)
        raise dg.Failure("the step", allow_retries=False)

    @dg.job
    def nightly() -> None:
        checked()

    return nightly.execute_in_process(instance=instance, raise_on_error=False, tags=tags)


@pytest.mark.parametrize(("retried", "told"), [("true", []), ("false", ["traceviz: nightly failed: says ERROR"])])
def test_a_run_that_fails_for_good_is_known_from_its_failed_checks_and_not_by_warnings(tmp_path, retried, told):
    (tmp_path / "traceviz.toml").write_text(f"[notify]\nfile = '{tmp_path / 'told.jsonl'}'\n")
    with dg.DagsterInstance.ephemeral() as instance:
        run = _failed_run(instance, {"dagster/will_retry": retried})
        context = dg.build_run_status_sensor_context(
            sensor_name="notify",
            dagster_event=run.get_run_failure_event(),
            dagster_instance=instance,
            dagster_run=run.dagster_run,
            resources={"traceviz": TracevizHome(home=str(tmp_path))},
        ).for_run_failure()
        notify_sensor(load_settings(tmp_path))(context)
    written = tmp_path / "told.jsonl"
    lines = written.read_text().splitlines() if written.exists() else []
    assert [json.loads(line)["text"] for line in lines] == told

"""A home with a run registered in it, the command line as a user calls it, and a real Dagster beside it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from tests.damage import call
from tests.reported import informed_instance
from traceviz_dag.pipeline.staleness import ITERATION_TABLES

RANK_ASSETS = (
    *("traces", "kernels", "microbatches", "synchronizations", "gpu_gaps", "operations"),
    *("contention", "overlap_savings", "overlap"),
)
RANK_STEP = (*RANK_ASSETS, "nvtx_ranges")
TOPOLOGY_ASSETS = ("topology", "process_groups")
ITERATION_ASSETS = ITERATION_TABLES
ALL_ASSETS = (*TOPOLOGY_ASSETS, *RANK_ASSETS, *ITERATION_ASSETS)
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
]


def traceviz(*arguments: str | Path, code: int | None = 0) -> subprocess.CompletedProcess[str]:
    """Run the program in this process, which saves its imports, and check its exit code; None takes any."""
    answer = call(*arguments)
    return _checked(subprocess.CompletedProcess(arguments, answer.code, answer.out, answer.err), code)


def program(*arguments: str | Path, code: int | None = 0) -> subprocess.CompletedProcess[str]:
    """As :func:`traceviz`, in a process of its own: for what else reaches its output, and for its environment."""
    command = [sys.executable, "-m", "traceviz_dag.commands.main", *map(str, arguments)]
    return _checked(subprocess.run(command, capture_output=True, text=True, check=False, timeout=900), code)


def _checked(result: subprocess.CompletedProcess[str], code: int | None) -> subprocess.CompletedProcess[str]:
    assert code in (None, result.returncode), f"exit {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result


def materialised(home: Path) -> set[tuple[str, str]]:
    """The set of (asset, partition) that Dagster has recorded."""
    with informed_instance(home) as instance:
        return {
            (asset, partition)
            for asset in ALL_ASSETS
            for partition in instance.get_materialized_partitions(dg.AssetKey(asset))
        }


def expected(ranks_by_iteration: dict[str, list[int]]) -> set[tuple[str, str]]:
    """What must be recorded for these iterations and ranks, and nothing else."""
    by_rank = {
        (asset, f"{key}|{rank:04d}")
        for key, ranks in ranks_by_iteration.items()
        for rank in ranks
        for asset in RANK_ASSETS
    }
    return by_rank | {(asset, key) for key in ranks_by_iteration for asset in (*TOPOLOGY_ASSETS, *ITERATION_ASSETS)}


class DagsterServer:
    """A running webserver with its daemon, spoken to by GraphQL as the UI does."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def graphql(self, query: str, **variables: Any) -> dict[str, Any]:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)
        assert "errors" not in answer, answer["errors"]
        return answer["data"]

    def launch(self, assets: tuple[str, ...], tags: dict[str, str], config: dict[str, Any] | None = None) -> str:
        """Launch a run of these assets as the UI's launchpad does; returns its status when it has ended."""
        query = """
        mutation($params: ExecutionParams!) {
          launchPipelineExecution(executionParams: $params) {
            __typename
            ... on LaunchRunSuccess { run { runId } }
            ... on PythonError { message }
            ... on RunConfigValidationInvalid { errors { message } }
          }
        }"""
        params = {
            "selector": {
                "repositoryName": "__repository__",
                "repositoryLocationName": "traceviz_dag.definitions",
                "pipelineName": "__ASSET_JOB",
                "assetSelection": [{"path": [asset]} for asset in assets],
                "assetCheckSelection": None,
            },
            "mode": "default",
            "runConfigData": config or {},
            "executionMetadata": {"tags": [{"key": key, "value": value} for key, value in tags.items()]},
        }
        answer = self.graphql(query, params=params)["launchPipelineExecution"]
        assert answer["__typename"] == "LaunchRunSuccess", answer
        return self._wait_for_run(answer["run"]["runId"])

    def backfill(self, assets: tuple[str, ...], partitions: list[str]) -> str:
        """Launch a backfill; returns its status when it has ended."""
        query = """
        mutation($params: LaunchBackfillParams!) {
          launchPartitionBackfill(backfillParams: $params) {
            __typename
            ... on LaunchBackfillSuccess { backfillId }
            ... on PythonError { message }
          }
        }"""
        params = {"assetSelection": [{"path": [asset]} for asset in assets], "partitionNames": partitions}
        answer = self.graphql(query, params=params)["launchPartitionBackfill"]
        assert answer["__typename"] == "LaunchBackfillSuccess", answer
        status_query = (
            "query($id: String!) { partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill { status } } }"
        )
        return self._poll(
            lambda: self.graphql(status_query, id=answer["backfillId"])["partitionBackfillOrError"]["status"],
            {"REQUESTED", "CANCELING", "FAILING"},
        )

    def _wait_for_run(self, run_id: str) -> str:
        query = "query($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"
        return self._poll(
            lambda: self.graphql(query, id=run_id)["runOrError"]["status"],
            {"QUEUED", "NOT_STARTED", "STARTING", "STARTED", "MANAGED", "CANCELING"},
        )

    @staticmethod
    def _poll(status: Any, going_on: set[str], seconds: float = 180) -> str:
        deadline = time.monotonic() + seconds
        while (found := status()) in going_on:
            assert time.monotonic() < deadline, f"still {found} after {seconds} s"
            time.sleep(0.5)
        return found


@contextmanager
def running_dagster(home: Path, log: Path) -> Iterator[DagsterServer]:
    """``traceviz dev`` on a free port, ended with its whole process group."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "traceviz_dag.commands.main", "dev", "--home", str(home), "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    server = DagsterServer(port)
    try:
        deadline = time.monotonic() + 120
        while True:
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            try:
                server.graphql("{ version }")
                loaded = server.graphql(
                    "{ workspaceOrError { ... on Workspace { locationEntries { loadStatus locationOrLoadError "
                    "{ __typename } } } } }"
                )["workspaceOrError"]["locationEntries"]
                if loaded and loaded[0]["loadStatus"] == "LOADED":
                    assert loaded[0]["locationOrLoadError"]["__typename"] == "RepositoryLocation", loaded
                    break
            except (urllib.error.URLError, ConnectionError):
                pass
            time.sleep(0.5)
        yield server
    finally:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty home."""
    return tmp_path / "home"


@pytest.fixture(scope="module")
def browser():
    """A real browser, headless; a test that makes a page closes it, or its context.

    Not for longer than a module: while Playwright runs, so does an event loop in this thread, and steps of Dagster that
    other tests run here would not end theirs.
    """
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        if os.environ.get("TRACEVIZ_REQUIRE_BROWSER"):
            pytest.fail("Chromium is required here and missing: apt-get install chromium")
        pytest.skip("Chromium is not installed: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()

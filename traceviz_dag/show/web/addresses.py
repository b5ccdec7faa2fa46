"""Where ``traceviz serve`` shows what: paths of its pages, and their addresses on its usual port."""

from __future__ import annotations

from urllib.parse import quote

from traceviz_dag.lake.partitions import escape
from traceviz_dag.vocabulary import REPORTS_FOLDER

TIMELINE = "timeline"
"""First part of the addresses of live timelines of iterations."""
OPENED = "opened"
"""First part of those of what the command was given."""
LOOPBACK = "127.0.0.1"
PORT = 3210
"""Of ``traceviz serve`` unless another is named."""


def run_path(run: str) -> str:
    """Path of the page that lists a run's iterations."""
    return f"/runs/{quote(escape(run))}"


def iteration_path(run: str, iteration: int) -> str:
    """Path of an iteration's page."""
    return f"{run_path(run)}/{iteration}"


def report_path(run: str, iteration: int) -> str:
    """Path of an iteration's report."""
    return f"/{REPORTS_FOLDER}/{quote(escape(run))}/{iteration}.html"


def timeline_path(run: str, iteration: int) -> str:
    """Path of the live timeline of an iteration."""
    return f"/{TIMELINE}/{quote(escape(run))}/{iteration}"


def opened_path(number: int) -> str:
    """Path of the live timeline of what the command was given."""
    return f"/{OPENED}/{number}"


def usual_address(path: str) -> str:
    """The address of a page while ``traceviz serve`` runs on its usual port, for who opened it in this browser."""
    return f"http://{LOOPBACK}:{PORT}{path}"

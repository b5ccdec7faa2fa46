"""One number, one name: whatever a surface says of a step under a measure's name is what all others say of it."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.commands.jobs import home_of, traces_of
from tests.end_to_end.conftest import traceviz
from tests.sets import fast
from tests.show.report.pages import text_of as page_of
from traceviz_dag.analyze.wording import duration, milliseconds, share
from traceviz_dag.show.web.site import site

TOKEN = "t" * 32
_EXPOSED = """
SELECT dimension, coalesce(sum(exposed_wait_ns), 0)::BIGINT AS wait,
    coalesce(sum(exposed_transfer_ns), 0)::BIGINT AS transfer
FROM collectives WHERE fault IS NULL GROUP BY ROLLUP (dimension)
"""
EXPOSED_PIECES = {
    "wait": "exposed wait for other ranks",
    "transfer": "exposed transfer",
    "unknown": "exposed, wait or transfer unknown",
}
PARTS = ("computation", "exposed communication", "idle")


def text_of(page: str) -> str:
    """What a reader sees of a page, in one line."""
    page = re.sub(r"<(script|style).*?</\1>", " ", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", page)))


def answer(home: Path, *command: str) -> list[dict]:
    return json.loads(traceviz(*command, "--home", home, "--json", code=None).stdout)


@pytest.mark.parametrize(
    "job",
    fast(
        ["slow_rank", "bad_split", "slow_link", "two_steps", "without_stacks", "dp_only"],
        *("slow_rank", "two_steps"),
    ),
)
def test_every_surface_says_the_same_of_a_step(job):
    home = home_of(job)
    (measures,) = answer(home, "iterations")
    dimensions = answer(home, "overlap")
    rows = [row for row in dimensions if row["dimension"] == "all"]

    def mean(name: str, dimension: str = "all") -> float:
        each: dict[int, list[int]] = {}
        for row in dimensions:
            if row["dimension"] == dimension:
                each.setdefault(row["rank"], []).append(row[name])
        return sum(sum(one) / len(one) for one in each.values()) / len(each)

    for row in rows:
        row["window_ns"] = row["window_end_ns"] - row["window_start_ns"]
    # The tables: means over ranks, and the longest step.
    assert measures["step_ns"] == max(row["window_ns"] for row in rows)
    for name in ("compute_ns", "exposed_ns", "idle_ns"):
        assert measures[name] == pytest.approx(mean(name), abs=1)
    findings = [row for row in answer(home, "findings") if row["severity"] != "not_looked_at"]
    gains, (path,) = answer(home, "what-if"), answer(home, "critical-path")
    replayed = {path["step_ns"], *(row["step_ns"] for row in gains if row["gain_ns"] is not None and row["steps"] > 0)}
    assert max(replayed) == path["step_ns"] and len({row["step_ns"] for row in findings}) == 1
    whole, measured = findings[0]["step_ns"], findings[0]["measured_ns"]
    apart = whole != measured
    assert whole in (path["step_ns"], measured) and (job == "two_steps" or measured == measures["step_ns"])

    # The verdict: the step of which savings are, and shares of the mean step.
    said = " ".join(traceviz("analyze", traces_of(job), "--home", home, code=None).stdout.split())
    step = duration(whole if apart and job != "two_steps" else measures["step_ns"])
    assert f"ranks · step {step}" in said
    (analysed,) = answer(home, "analyze", str(traces_of(job)))
    exact = [mean(name) / mean("window_ns") for name in ("compute_ns", "exposed_ns", "idle_ns")]
    known = [analysed["windows"][f"{name}_share"] for name in ("computation", "exposed", "idle")]
    assert known == pytest.approx(exact, rel=1e-9), "shares of means, which add up, not means of shares"
    shares = [share(part) for part in exact]
    lead = f"Of the hosts' {duration(measured)}: " if apart and job != "two_steps" else "Step: "
    words = [f"{part} {name}" for part, name in zip(shares, PARTS, strict=True)]
    assert f"{lead}{words[0]}, {words[1]}" in said

    # The page.
    page = text_of(page_of(job))
    assert f"Longest step {duration(measures['step_ns'])}" in page
    assert f"exposed communication {shares[1]} · " in page
    for known in answer(home, "sql", _EXPOSED):
        dimension = known.pop("dimension") or "all"
        whole = sum(row["exposed_ns"] for row in dimensions if row["dimension"] == dimension)
        known["unknown"] = max(whole - sum(known.values()), 0)
        for name, sum_ns in known.items():
            if sum_ns:
                # Of the last piece, what is left: rounding moves a nanosecond.
                length = mean("exposed_ns", dimension) * sum_ns / sum(known.values())
                nearly = {duration(round(length) + off) for off in (-1, 0, 1)}
                assert any(f"{EXPOSED_PIECES[name]}: {one} " in page for one in nearly), (dimension, name)
    if measures["idle_ns"]:
        assert f"idle {shares[2]} · " in page

    # The site.
    client = TestClient(site(home, TOKEN, 80), base_url="http://127.0.0.1:80")
    client.get(f"/?token={TOKEN}")
    index = text_of(client.get("/").text)
    assert f" {duration(measures['step_ns'])} " in index and f" {duration(measures['exposed_ns'])} " in index

    # Headings of the commands that replay the step.
    for command in ("what-if", "critical-path"):
        assert f"{milliseconds(path['step_ns'])} ms" in traceviz(command, "--home", home, code=None).stdout

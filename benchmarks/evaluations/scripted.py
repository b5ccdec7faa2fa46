"""A client without a language model: it maps kinds of questions to tools of ``traceviz mcp``, and holds no answers.

echo 'In run slow, which rank computes slowly? … home /tmp/x …' | python -m benchmarks.evaluations.scripted
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import anyio
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

UNKNOWN, NONE = "unknown", "none"
Ask = Callable[..., Any]

_COUNTED = {
    "ranks were read": "SELECT count(*) AS n FROM traces WHERE run = $run AND status = 'read'",
    "pipeline stages are there": "SELECT count(DISTINCT stage) AS n FROM topology WHERE run = $run",
    "micro-batches does a step run": "SELECT count(DISTINCT microbatch) AS n FROM microbatches WHERE run = $run",
    "kernels ran on rank": "SELECT count(*) AS n FROM kernels WHERE run = $run AND rank = $rank",
    "communication ran on rank": (
        "SELECT count(*) AS n FROM kernels WHERE run = $run AND rank = $rank AND kind = 'communication' "
        "AND dimension = $dimension"
    ),
}
"""What a question counts → the query."""


async def answer(question: str, ask: Ask) -> str:  # noqa: PLR0911, PLR0912 - one per kind of question
    """The answer to a question of a kind that is known.

    Args:
        ask: calls a tool by its name, with its arguments, and gives its answer, or None where it refuses.
    """
    text = question.partition("\n")[0]
    listed = re.match(r"Of the runs ([\w, ]+), (.*)", text)
    if listed is not None:
        names = re.split(r", | and ", listed[1])
        return ", ".join(sorted([name for name in names if await _is_so(listed[2], name, ask)])) or NONE
    runs = re.findall(r"\brun (\w+)", text)
    run = runs[0] if runs else ""
    numbers = re.findall(r"\brank (\d+)", text)
    dimension = next(iter(re.findall(r"\b([A-Z]{2}) communication", text)), "").lower()
    if text.startswith("From run"):
        return _changed(await ask("diff", a=runs[0], b=runs[1]))
    if any(words in text for words in _CULPRITS):
        return await _at_fault(text, run, ask)
    if "would fixing" in text:
        edit = "fix_link" if "the links of" in text else "fix_rank"
        gains = _rows(await ask("what_if", run=run, **{edit: [int(numbers[0])]}))
        return str(gains[0]["gain_ns"] / 1e6) if gains and gains[0]["gain_ns"] is not None else UNKNOWN
    for words, sql in _COUNTED.items():
        if words in text:
            for name, value in (("run", f"'{run}'"), ("dimension", f"'{dimension}'"), ("rank", "".join(numbers[:1]))):
                sql = sql.replace(f"${name}", value)  # noqa: PLW2901
            return str(_rows(await ask("sql", query=sql))[0]["n"])
    if "computes longest" in text:
        what = "stage" if "stage" in text else "rank"
        sql = (
            f"SELECT {what} FROM kernels WHERE run = '{run}' AND kind = 'computation' AND stage IS NOT NULL "
            f"GROUP BY {what} ORDER BY sum(duration_ns) DESC"
        )
        return _first([row[what] for row in _rows(await ask("sql", query=sql))])
    if "kernels added up" in text:
        where = f"run = '{run}' AND rank = {numbers[0]} AND kind = 'computation'"
        sql = f"SELECT sum(duration_ns)::BIGINT AS ns FROM kernels WHERE {where}"
        return str(_rows(await ask("sql", query=sql))[0]["ns"] / 1e6)
    if "has no trace" in text:
        sql = f"SELECT unnest(missing_ranks) AS rank FROM runs WHERE run = '{run}'"
        return _first([row["rank"] for row in _rows(await ask("sql", query=sql))])
    if "was read in part" in text:
        sql = f"SELECT rank FROM traces WHERE run = '{run}' AND status <> 'read'"
        return _first([row["rank"] for row in _rows(await ask("sql", query=sql))])
    if "delayed its peers most" in text:
        waits = await ask("waits", run=run)
        rows = sorted((row for row in _rows(waits) if row["own_ns"]), key=lambda row: -row["own_ns"])
        return str(rows[0]["rank"]) if waits["certain"] and rows else UNKNOWN
    if "is hidden" in text:
        answered = await ask("measure", run=run, measure="hidden_share", rank=int(numbers[0]), dimension=dimension)
        return str(100 * _rows(answered)[0]["hidden_share"])
    return UNKNOWN


_CULPRITS = {
    "computes slowly": ("slow_rank",),
    "host of which rank pauses": ("gc_pause", "host_pauses"),
    "whose host pauses": ("gc_pause", "host_pauses"),
    "slow links": (),
}
"""Words of a question → the rules of findings that answer it; none: table links does."""


async def _at_fault(text: str, run: str, ask: Ask) -> str:
    rules = next(rules for words, rules in _CULPRITS.items() if words in text)
    if rules:
        return _culprit(await ask("findings", run=run), *rules)
    rows = _rows(await ask("waits", run=run, part="links"))
    return _first([row["rank"] for row in rows if row["slow"]])


async def _is_so(question: str, run: str, ask: Ask) -> bool:
    """Whether a run is one of those that a question asks for."""
    if "compared with" in question:
        told = await ask("diff", a=re.findall(r"run (\w+)", question)[0], b=run)
        return told is not None and bool(told["certain"])
    if "not whole" in question:
        return bool((await ask("findings", run=run))["partial"])
    if "who delayed whom" in question:
        return not (await ask("waits", run=run))["certain"]
    if "FLOP utilisation" in question:
        return bool((await ask("measure", run=run, measure="hfu"))["certain"])
    return await _at_fault(question, run, ask) != NONE


def _changed(told: Mapping[str, Any] | None) -> str:
    known = told is not None and told["certain"]
    return str(sum(row["change_ns"] for row in _rows(told)) / 1e6) if known else UNKNOWN


def _culprit(told: Mapping[str, Any], *rules: str) -> str:
    rows = [row for row in _rows(told) if row["rule"] in rules and row["severity"] == "finding"]
    return _first([row["culprit"]["rank"] for row in rows if "rank" in row["culprit"]])


def _first(values: list[Any]) -> str:
    return NONE if not values else str(values[0])


def _rows(told: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    names = [] if told is None else [re.sub("[⟦⟧]", "", name) for name in told["columns"]]
    return [] if told is None else [dict(zip(names, row, strict=True)) for row in told["rows"]]


async def connected(home: str, ask_all: Callable[[Ask], Any]) -> None:
    """Run something with a server of a home."""
    code = "from traceviz_dag.commands.main import main; main()"
    server = StdioServerParameters(command=sys.executable, args=["-c", code, "mcp", home])
    async with Client(stdio_client(server)) as client:

        async def ask(tool: str, **arguments: Any) -> Any:
            result = await client.call_tool(tool, arguments)
            return None if result.is_error else json.loads(result.content[0].text)

        await ask_all(ask)


def main() -> None:
    """Answer the question on standard input."""
    question = sys.stdin.read()
    home = re.findall(r"in the home (\S+)\. ", question)[0]

    async def once(ask: Ask) -> None:
        print(f"ANSWER: {await answer(question, ask)}")

    anyio.run(connected, home, once)


if __name__ == "__main__":
    main()

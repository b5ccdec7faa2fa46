"""A table across ranks that Python computes, with a command: what follows from four files, also in older homes."""

from __future__ import annotations

import os
from shutil import copytree, ignore_patterns

from tests.damage import call
from tests.other_packages import REPOSITORY, traceviz
from tests.small_run import write_run
from traceviz_dag.pipeline.staleness import code_version_of
from traceviz_dag.pipeline.steps import lead_of

DECLARED = """
HANDED_ON = Table(
    "handed_on",
    "One rank: how many messages it sends.",
    BY_ITERATION,
    (Column("rank", BIGINT, "The global rank."), Column("sent", BIGINT, "Messages that it sends.")),
    how="Ranks that send nothing have no row.",
    commands=("handed-on",),
)
"""
COMPUTED = """
import pyarrow as pa

from traceviz_dag.tables import HANDED_ON


def handed_on(messages: pa.Table) -> pa.Table:
    sent = messages.group_by("sender_rank").aggregate([("communication", "count")])
    return HANDED_ON.from_columns({"rank": sent["sender_rank"], "sent": sent["communication_count"]})
"""
COMMAND = '''
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_json
from traceviz_dag.lake.lake import open_lake


def handed_on(home: HomeOption = DEFAULT_HOME, json: JsonOption = False) -> None:
    """Show how many messages each rank sends."""
    print_json(open_lake(home).query("SELECT rank, sent FROM handed_on ORDER BY rank").to_pylist())
'''
ASSET = """
import dagster as dg
from traceviz_dag.definitions import defs
from traceviz_dag.pipeline.staleness import code_version_of
from traceviz_dag.pipeline.steps import lead_of
node = defs().resolve_asset_graph().get(dg.AssetKey("handed_on"))
columns = [(one.name, one.description) for one in node.metadata["dagster/column_schema"].columns]
told = [node.description, columns, lead_of("handed_on"), node.code_version, code_version_of("late_ranks")]
"""


def test_it_has_asset_catalogue_and_command_and_homes_of_before_get_it(tmp_path):
    job, home, added = write_run(tmp_path / "job", world=4), tmp_path / "home", tmp_path / "added"
    analyze = ["analyze", job, "--home", home, "--workers", "1", "--tables"]
    assert call(*map(str, analyze)).code == 0
    for package in ("traceviz_dag", "assets", "sensors"):
        copytree(REPOSITORY / package, added / package, ignore=ignore_patterns("__pycache__"))
    package = added / "traceviz_dag"
    tables, across = package / "tables/across_ranks.py", package / "pipeline/across_ranks.py"
    tables.write_text(tables.read_text() + DECLARED)
    (package / "analyze/handed_on.py").write_text(COMPUTED)
    (package / "commands/handed_on.py").write_text(COMMAND)
    code = across.read_text()
    for before, line in (
        ("import pyarrow as pa\n", "from traceviz_dag.analyze.handed_on import handed_on\n"),
        ('        "messages": messages,\n', '        "handed_on": handed_on(messages),\n'),
    ):
        assert before in code
        code = code.replace(before, before + line)
    across.write_text(code)
    environment = os.environ | {"PYTHONPATH": f"{added}{os.pathsep}{REPOSITORY}", "PYTHONSAFEPATH": "1"}
    sent = "SELECT sender_rank AS rank, count(*) AS sent FROM messages GROUP BY ALL ORDER BY rank"
    comment = "SELECT comment FROM duckdb_columns() WHERE table_name = 'handed_on' AND column_name = 'sent'"
    (again, listed, rows, expected, said), (description, columns, lead, version, of_lead) = traceviz(
        environment,
        analyze,
        ["--help"],
        ["handed-on", "--home", home, "--json"],
        *(["sql", query, "--home", home, "--json"] for query in (sent, comment)),
        look=ASSET,
    )
    assert again.code == 0 and "4 unchanged" in again.out, again.out + again.err
    assert "handed-on" in listed.out and "Show how many messages each rank sends." in listed.out
    assert rows.json == expected.json and rows.json
    assert said.json == [{"comment": "Messages that it sends."}]
    assert description.startswith("One rank: how many messages it sends.\n\n**How to read it.** Ranks that")
    assert "`traceviz handed-on`" in description and ["sent", "Messages that it sends."] in columns
    # What automation compares: the lead's version is another one than that of homes made before.
    assert lead == lead_of("messages") and version == of_lead != code_version_of(lead)

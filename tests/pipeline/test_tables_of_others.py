"""A table of another package: a query and an entry point, known to analysis, catalogue and asset graph."""

from __future__ import annotations

import pytest

from tests.commands.jobs import analysed_at
from tests.made_once import made_once
from tests.other_packages import environment, installed, shown_in, traceviz
from tests.sets import fast
from tests.small_run import write_run
from traceviz_dag.definitions import ASSETS
from traceviz_dag.errors import UsageError
from traceviz_dag.lake.across_ranks_views import VIEWS
from traceviz_dag.pipeline.derived import derive
from traceviz_dag.tables import TABLES, all_tables, derived_tables
from traceviz_dag.tables.derived import NAMES_IN_USE

CODE, POINTS = shown_in("analyze.md")
"""The table that the docs show, and its entry point."""

ASSET = """
from assets.derived_tables import derived_assets
from traceviz_dag.definitions import ASSETS
asset, = (one for one in derived_assets if "category_counts" in one.key.path)
assert asset in ASSETS
key, = asset.keys
columns = [(one.name, one.description) for one in asset.metadata_by_key[key]["dagster/column_schema"].columns]
tables = sorted(dep.to_user_string() for dep in asset.asset_deps[key])
told = [asset.descriptions_by_key[key], tables, columns]
"""


def analyze(job, home):
    return ["analyze", job, "--home", home, "--workers", "1", "--tables"]


def sql(query, home):
    return ["sql", query, "--home", home, "--json"]


FAULTY_QUERIES = {
    "unbound": ("SELECT nothing FROM kernels", "Binder Error"),
    "empty": ("", "one statement that reads is taken"),
    "elsewhere": (
        "SELECT 'a' AS category, 1 AS kernels, 1 AS duration_ns FROM traces",
        "there is no table traces; the tables are",
    ),
    "mistyped": ("SELECT 'a' AS category, 'many' AS kernels, 1 AS duration_ns", "does not fit its columns"),
}
FAULTY = CODE + "import dataclasses\n"
FAULTY += "".join(
    f"{name.upper()} = dataclasses.replace(CATEGORY_COUNTS, name='{name}_counts', sql={query!r})\n"
    for name, (query, _) in FAULTY_QUERIES.items()
)
FAULTY_POINTS = {name: f'\n{name}_counts = "our_tables:{name.upper()}"' for name in FAULTY_QUERIES}


@pytest.mark.long
def test_it_is_made_with_the_others_kept_current_and_asked_like_them_and_one_that_fails_costs_nothing_else(tmp_path):
    job, home = write_run(tmp_path / "job", world=2), tmp_path / "home"
    asked = "SELECT category, count(*) AS kernels, sum(duration_ns)::BIGINT AS duration_ns FROM kernels"
    stored = sql("SELECT category, kernels, duration_ns FROM category_counts ORDER BY 1", home)
    comment = "SELECT comment FROM duckdb_columns() WHERE table_name = 'category_counts' AND column_name = 'kernels'"
    counts = "SELECT (SELECT count(*) FROM iterations) AS n, (SELECT count(*) FROM unbound_counts) AS unbound"
    (done, expected, rows, said, counted), (description, tables, columns) = traceviz(
        environment(tmp_path / "package", FAULTY, POINTS + FAULTY_POINTS["unbound"]),
        analyze(job, home),
        sql(f"{asked} GROUP BY 1 ORDER BY 1", home),
        stored,
        sql(comment, home),
        sql(counts, home),
        look=ASSET,
    )
    assert done.code == 2 and "Traceback" not in done.err
    (line,) = [line for line in done.err.splitlines() if "table unbound_counts of another package: " in line]
    assert "Binder Error" in line
    assert "analyze on its traces again" not in done.err, done.err
    assert counted.json == [{"n": 1, "unbound": 0}]
    assert rows.json == expected.json and len(expected.json) > 1
    assert said.json == [{"comment": "Kernels of all ranks."}]
    # The asset graph shows it with its columns below its tables.
    assert description.startswith("One category: how many kernels")
    assert "kernels" in tables and "nights" not in tables and ["kernels", "Kernels of all ranks."] in columns
    # Another query is another table: it is made anew, and nothing else is.
    changed = environment(tmp_path / "later", CODE.replace("count(*) AS kernels", "2 * count(*) AS kernels"), POINTS)
    (again, rows), _ = traceviz(changed, analyze(job, home), stored)
    assert again.code == 0 and "2 unchanged" in again.out, again.out + again.err
    assert [row["kernels"] for row in rows.json] == [2 * row["kernels"] for row in expected.json]


@pytest.mark.parametrize("name", fast(FAULTY_QUERIES, *list(FAULTY_QUERIES)[::2]))
def test_a_query_that_fails_is_reported_as_the_fault_of_its_table(tmp_path, name):
    traces = made_once("small_run", lambda folder: write_run(folder / "job", world=2) and None)
    (stored,) = analysed_at(traces / "job")
    with installed(tmp_path / "package", FAULTY, POINTS + FAULTY_POINTS[name]):
        with pytest.raises(UsageError, match=f"table {name}_counts of another package: ") as told:
            derive(stored.lake, derived_tables()[f"{name}_counts"], stored.run, stored.iteration)
        assert FAULTY_QUERIES[name][1] in str(told.value)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("BY_ITERATION,", "('run',),", "it has no file for each iteration; partition it by BY_ITERATION"),
        ('made_of=("kernels",)', 'made_of=("kernel",)', "made_of names kernel"),
        ('name="category_counts"', 'name="kernels"', "a table is named 'kernels' already"),
        ('name="category_counts"', 'name="KERNELS"', "'KERNELS' is no name; take lower-case letters"),
        ('name="category_counts"', "name=7", "7 is no name"),
        ('name="category_counts"', 'name="raw_traces"', "raw_traces is the name of a view or an asset"),
        ('Column("category"', 'Column("run"', "column run is there twice"),
        ('Column("category", TEXT', 'Column("category", "text"', "column category has type text, which is none of"),
        ("CATEGORY_COUNTS = ", "import sys; sys.exit('bye'); CATEGORY_COUNTS = ", "cannot be loaded (SystemExit: bye)"),
    ],
)
def test_a_table_that_cannot_be_is_refused_in_one_line(tmp_path, old, new, fault):
    head, definition = CODE.split("CATEGORY_COUNTS = ")
    code = f"{head}{f'CATEGORY_COUNTS = {definition}'.replace(old, new)}"
    with installed(tmp_path / "package", code, POINTS), pytest.raises(UsageError) as refused:
        all_tables()
    assert str(refused.value).startswith("table category_counts of our-tables: ") and fault in str(refused.value)


def test_every_asset_and_view_that_is_no_table_keeps_its_name():
    assets = {key.to_user_string() for asset in ASSETS for key in getattr(asset, "keys", None) or [asset.key]}
    assert {*assets, *(view.name for view in VIEWS)} - set(TABLES) == set(NAMES_IN_USE)

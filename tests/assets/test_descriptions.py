"""What an asset's page says: every asset is described by what exists, and the groups follow the data."""

from __future__ import annotations

import re

import dagster as dg
import pytest

from assets.plotted import PLOTS, plotted
from tests.test_docs import test_every_command_of_a_page_exists_with_its_options as commands_exist
from traceviz_dag.definitions import ASSETS, defs
from traceviz_dag.show.registry import OWN_KINDS
from traceviz_dag.tables import STALE_TABLES, TABLES, all_tables


@pytest.fixture(scope="module")
def described() -> dict[str, str]:
    graph = defs().resolve_asset_graph()
    return {node.key.to_user_string(): node.description or "" for node in graph.asset_nodes}


def test_every_asset_says_how_it_is_read_with_commands_assets_and_columns_that_exist(described, tmp_path):
    # What steps keep is no result of one of them.
    assert [table.name for table in TABLES.values() if not table.how] == [STALE_TABLES.name]
    assert all(kind.how for kind in OWN_KINDS)
    assert len(described) == sum(len(getattr(one, "keys", ["one"])) for one in ASSETS)
    for asset, text in described.items():
        assert len(text) > 60, asset
        (tmp_path / "page.md").write_text(text)
        commands_exist(tmp_path / "page.md")
        assert set(re.findall(r"\(/assets/(\w+)\)", text)) <= set(described), asset
        if asset in TABLES:
            words = set(re.findall(r"`([a-z_]*_[a-z_]+)`", TABLES[asset].how))
            columns = {column.name for table in all_tables().values() for column in table.columns}
            checks = {"sources_agree", "not_looked_at"}
            assert words <= columns | set(described) | checks, asset
            assert "**Ask:** `traceviz " in text


def test_every_asset_has_an_owner():
    graph = defs().resolve_asset_graph()
    assert [node.key.to_user_string() for node in graph.asset_nodes if not node.owners] == []


def test_the_groups_are_numbered_in_the_order_in_which_data_goes_through_them():
    graph: dg.AssetGraph = defs().resolve_asset_graph()
    order = {node.key: int(node.group_name[0]) for node in graph.asset_nodes if node.group_name[0].isdigit()}
    assert len(order) >= len(graph.asset_nodes) - 1
    for node in graph.asset_nodes:
        for parent in node.parent_keys:
            assert order[parent] <= order[node.key], (parent, node.key)


def test_what_the_rows_do_not_show_is_not_plotted():
    for table in PLOTS:
        empty = plotted(table, all_tables()[table].schema.empty_table())
        assert set(empty.values()) <= {0}, table
    assert plotted("kernels", all_tables()["kernels"].schema.empty_table()) == {}

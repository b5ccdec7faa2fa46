"""Ranks that are slow together, in one kind of work or for having more of it: who is named, and who is not."""

from __future__ import annotations

import pyarrow as pa
import pytest

from traceviz_dag.analyze.slow_groups import slow_groups
from traceviz_dag.analyze.slow_ranks import slow_ranks
from traceviz_dag.analyze.slow_words import slow_statement
from traceviz_dag.tables import STAGE_SPEEDS

KERNELS = {"nvjet_fwd": 500, "nvjet_bwd": 900, "flash_fwd": 300, "norm": 60, "add": 40, "adam": 30}
"""What each takes on a healthy GPU."""

BY_MEMORY = ("norm", "add", "adam")
TP = [("tp", (rank, rank + 1)) for rank in range(0, 8, 2)]
NODES = [("node", (0, 1, 2, 3)), ("node", (4, 5, 6, 7))]


def work(factor=lambda rank, name: 1.0, name_of=lambda rank, name: name, blocks=lambda rank, name: 128) -> pa.Table:
    """Eight ranks of one stage, whose times differ by up to 1 % by nature."""
    rows = [
        {"rank": rank, "stage": 0, "step": 1, "phase": "forward", "name": name_of(rank, name), "kernels": 4}
        | {"blocks": blocks(rank, name), "time_ns": round(1000 * time * factor(rank, name) * (1 + rank % 3 / 300))}
        for rank in range(8)
        for name, time in KERNELS.items()
    ]
    return pa.Table.from_pylist(rows)


def named(table: pa.Table, sets=(*TP, *NODES)) -> list[tuple[str, str]]:
    stages = STAGE_SPEEDS.schema.empty_table()
    rows = slow_groups(table, slow_ranks(table), stages, sets).to_pylist()
    return [(row["kind"], row["ranks"]) for row in rows if row["slow"]]


@pytest.mark.parametrize(
    ("slow", "culprit"),
    [
        ((), []),
        ((3,), []),
        ((2, 3), [("tp", "2-3")]),
        ((4, 5, 6, 7), [("node", "4-7")]),
        ((0, 1, 6, 7), [("tp", "0-1"), ("tp", "6-7")]),
        ((1, 2), []),
    ],
)
def test_a_set_is_named_where_all_its_ranks_are_slow_and_no_larger_one_holds_it(slow, culprit):
    found = named(work(lambda rank, _: 1.1 if rank in slow else 1.0))
    assert sorted(found) == culprit


def test_instances_of_an_operator_on_some_ranks_are_not_as_many_ranks():
    """Half of the ranks run two instances of a compiled region, so that there are as many rows as ranks."""
    table = work(lambda rank, _: 1.1 if rank in (2, 3) else 1.0)
    region = {"stage": 0, "step": 1, "phase": "forward", "name": "triton_add", "kernels": 4, "blocks": 128}
    regions = [
        region | {"rank": rank, "operator": f"Torch-Compiled Region: 0/{instance}", "time_ns": 4_000_000}
        for rank in range(4)
        for instance in range(2)
    ]
    plain = table.append_column("operator", pa.nulls(len(table), pa.string()))
    whole = pa.concat_tables([plain, pa.Table.from_pylist(regions, schema=plain.schema)])
    assert named(whole) == named(table) == [("tp", "2-3")]


def test_convolutions_over_a_few_tokens_and_what_frames_the_products_of_attention_are_bound_by_memory():
    """Half of what has the name of a product or attention is as slow as its GPU's memory, and no product is."""
    light = {"add": "causal_conv1d_channellast_fwd_kernel", "adam": "flash::flash_bwd_dot_do_o_kernel"}
    table = work(
        lambda rank, name: 2.0 if rank == 1 and name in BY_MEMORY else 1.0, lambda _, name: light.get(name, name)
    )
    (row,) = [row for row in slow_ranks(table).to_pylist() if row["slow_in"] is not None]
    assert (row["rank"], row["slow_in"], row["slow"]) == (1, "memory", False)
    assert row["slow_ratio"] == pytest.approx(2, rel=0.01)


@pytest.mark.parametrize("go_with_time", [True, False])
def test_messages_excuse_a_slow_memory_only_where_ranks_with_more_of_them_take_longer(go_with_time):
    """Four of eight ranks exchange a seventh more elements; the memory of one of these is slow."""

    def factor(rank: int, name: str) -> float:
        of_work = 8 / 7 if rank < 4 and go_with_time else 1.0
        return of_work * (2.0 if rank == 1 and name in BY_MEMORY else 1.0)

    table = work(factor)
    elements = [8_000 if rank < 4 else 7_000 for rank in table["rank"].to_pylist()]
    rows = slow_ranks(table.append_column("elements", pa.array(elements)))
    rows = {row["rank"]: row for row in rows.to_pylist()}
    assert [row["rank"] for row in rows.values() if row["slow_in"] == "memory"] == ([] if go_with_time else [1])
    assert not any(row["slow"] for row in rows.values())
    told = {(row["work"], row["work_by"]) for row in rows.values() if row["rank"] < 4}
    assert told == {(8 / 7, "messages") if go_with_time else (None, None)}


def test_ranks_that_have_more_to_do_are_not_slow_together_or_alone():
    """The last two ranks run a tenth more tokens: on grids that show it, and in products on grids that do not."""
    table = work(
        lambda rank, _: 1.1 if rank > 5 else 1.0,
        blocks=lambda rank, name: 1100 if rank > 5 and name in BY_MEMORY else 1000,
    )
    rows = {row["rank"]: row for row in slow_ranks(table).to_pylist()}
    assert named(table) == [] and not any(row["slow_in"] for row in rows.values())
    assert rows[6]["work"] == pytest.approx(1.1) and rows[0]["work"] == 1.0


def test_sizes_show_longer_sequences_from_a_slow_gpu():
    """Ranks 1 and 5 also run sequences of lengths that no other has, and rank 5 has a slow GPU."""
    rows = [
        {"rank": rank, "stage": 0, "step": 1, "phase": "forward", "name": name, "input_sizes": f"[[{tokens},8]]"}
        | {
            "operator": "aten::mm",
            "kernels": runs,
            "time_ns": round(runs * tokens * time * (1.3 if rank == 5 else 1.0)),
        }
        for rank in range(6)
        for name, time in KERNELS.items()
        for tokens, runs in ((100, 1 if rank in (1, 5) else 4), *(((150 + rank, 3),) if rank in (1, 5) else ()))
    ]
    compared = {row["rank"]: row for row in slow_ranks(pa.Table.from_pylist(rows)).to_pylist()}
    assert [rank for rank, row in compared.items() if row["slow"]] == [5]
    assert compared[5]["slow_ratio"] == pytest.approx(1.3) and compared[1]["ratio"] == 1.0
    # 100 + 3 * 151 tokens for 4 * 100; the median of the others has 400.
    assert (compared[1]["work_by"], compared[1]["work"]) == ("sizes", pytest.approx(553 / 400, rel=0.02))


@pytest.mark.parametrize(
    ("told", "by", "slow"),
    [
        ({}, None, True),
        ({"blocks": 528, "most_blocks": 132}, None, True),
        ({"blocks": 528, "most_blocks": 132, "elements": 4_000}, "messages", True),
        ({"blocks": 528, "most_blocks": 132, "elements": 5_200}, "messages", False),
    ],
    ids=["nothing", "persistent kernels", "equal messages", "larger messages"],
)
def test_what_does_not_show_the_work_is_said_of_a_slow_rank(told, by, slow):
    """Rank 5 takes 1.3 times as long in all it does, on grids that are those of products."""
    rows = [
        {"rank": rank, "stage": 0, "step": 1, "phase": "forward", "name": name, "kernels": 4}
        | {"time_ns": 4000 * time * (1.3 if rank == 5 else 1.0)}
        | ({**told, "elements": told["elements"] if rank == 5 else 4_000} if "elements" in told else told)
        for rank in range(8)
        for name, time in KERNELS.items()
    ]
    row = next(row for row in slow_ranks(pa.Table.from_pylist(rows)).to_pylist() if row["rank"] == 5)
    assert (row["work_by"], row["slow"]) == (by, slow)
    assert ("may be its work" in slow_statement(row)) == (by is None)


@pytest.mark.parametrize("elements", [None, 4_000], ids=["work unknown", "equal messages"])
def test_a_rank_that_is_slow_in_half_of_its_kernels_is_slow_where_its_work_is_that_of_its_peers(elements):
    rows = [
        {"rank": rank, "stage": 0, "step": 1, "phase": "forward", "name": name, "kernels": 4, "elements": elements}
        | {"time_ns": 4000 * time * (1.3 if rank == 5 and place % 2 == 0 else 1.0)}
        for rank in range(8)
        for place, (name, time) in enumerate(KERNELS.items())
    ]
    table = pa.Table.from_pylist(rows).cast(pa.Table.from_pylist([{**rows[0], "elements": 1, "time_ns": 1.0}]).schema)
    found = [row["rank"] for row in slow_ranks(table).to_pylist() if row["slow_in"] == "all"]
    assert found == ([] if elements is None else [5])


OF_SHARD = {"adam_of_shard": 60, "squares": 11, "scale": 20, "copy": 12, "cast": 8}
"""What kernels of an optimizer take."""


@pytest.mark.parametrize(
    ("slow_in", "found"),
    [(("step_size", *OF_SHARD), [5]), (tuple(OF_SHARD), []), ((), [])],
    ids=["throttled", "larger shard", "healthy"],
)
def test_a_rank_that_is_slow_in_its_optimizer_alone_is_found_and_a_larger_shard_is_not_slow(slow_in, found):
    """A shard's size does not show, but kernels on a single number take as long on any."""
    kernels = [("forward", name, time) for name, time in KERNELS.items()]
    kernels += [("optimizer", name, time) for name, time in {"step_size": 1.8, **OF_SHARD}.items()]
    rows = [
        {"rank": rank, "stage": 0, "step": 1, "phase": phase, "name": name, "kernels": 4, "elements": 4_000}
        | {"time_ns": round(4000 * time * (1.7 if rank == 5 and name in slow_in else 1.0))}
        for rank in range(8)
        for phase, name, time in kernels
    ]
    table = slow_ranks(pa.Table.from_pylist(rows)).to_pylist()
    assert [row["rank"] for row in table if row["slow_in"] == "all"] == found


def test_a_rank_that_is_slow_in_one_step_of_several_is_found_with_the_step():
    rows = [
        {"rank": rank, "stage": 0, "step": step, "phase": "forward", "name": name, "kernels": 4}
        | {"time_ns": 4000 * time * (1.5 if (rank, step) == (5, 2) else 1.0)}
        for rank in range(8)
        for step in (1, 2, 3)
        for name, time in KERNELS.items()
    ]
    (row,) = (row for row in slow_ranks(pa.Table.from_pylist(rows)).to_pylist() if row["slow"])
    assert (row["rank"], row["slow_steps"], row["slow_ratio"]) == (5, [2], pytest.approx(1.5))
    assert row["ratio"] == pytest.approx(3.5 / 3)
    assert slow_statement(row).startswith("rank 5 computes slowly in step 2 alone: the same kernels take 1.50 times")


def test_slow_memory_and_another_algorithm_are_named_as_that():
    memory = slow_ranks(work(lambda rank, name: 2.0 if rank == 5 and name in BY_MEMORY else 1.0)).to_pylist()
    other = work(
        lambda rank, name: 1.5 if rank == 2 and name == "nvjet_bwd" else 1.0,
        lambda rank, name: "nvjet_splitK" if rank == 2 and name == "nvjet_bwd" else name,
    )
    faster = work(name_of=lambda rank, name: "nvjet_splitK" if rank == 2 and name == "nvjet_bwd" else name)
    said = {row["rank"]: (row["slow_in"], round(row["slow_ratio"], 1)) for row in memory if row["slow_in"]}
    assert said == {5: ("memory", 2.0)}
    (row,) = (row for row in slow_ranks(other).to_pylist() if row["slow_in"])
    assert (row["rank"], row["slow_in"], row["kernel"]) == (2, "algorithm", "nvjet_splitK")
    assert row["slow_ratio"] == pytest.approx(1.5, rel=0.01) and row["slow_more_ns"] == pytest.approx(450_000, rel=0.03)
    assert not any(row["slow_in"] for row in slow_ranks(faster).to_pylist())


@pytest.mark.parametrize("known", [True, False], ids=["phases", "no phases"])
@pytest.mark.parametrize(("share", "named"), [(0.02, True), (0.003, False)], ids=["2 %", "0.3 %"])
def test_a_rank_that_runs_more_than_all_its_peers_do_does_extra_work(share, named, known):
    usual = work()
    if not known:
        usual = usual.set_column(usual.column_names.index("phase"), "phase", pa.nulls(usual.num_rows, pa.string()))
    total = sum(row["time_ns"] for row in usual.to_pylist() if row["rank"] == 3)
    one = {**usual.to_pylist()[0], "rank": 3, "name": "decay", "kernels": 400, "time_ns": round(share * total)}
    more = pa.Table.from_pylist([*usual.to_pylist(), one], schema=usual.schema)
    found = [row for row in slow_ranks(more).to_pylist() if row["slow_in"]]
    expected = [(3, "extra", "decay", False)] if named else []
    assert [(row["rank"], row["slow_in"], row["kernel"], row["slow"]) for row in found] == expected


@pytest.mark.parametrize("known", [True, False], ids=["phases", "no phases"])
def test_the_shards_of_a_distributed_optimizer_make_no_extra_work(known):
    usual = [row if known else {**row, "phase": None} for row in work().to_pylist()]
    one = {**usual[0], "phase": "optimizer" if known else None, "name": "norm"}
    norms = [
        {**one, "rank": rank, "kernels": kernels, "time_ns": 25_000 * kernels}
        for rank, kernels in ((0, 40), (1, 40), (2, 40), (3, 440))
    ]
    found = slow_ranks(pa.Table.from_pylist([*usual, *norms], schema=work().schema)).to_pylist()
    assert not any(row["slow_in"] for row in found)

"""Means of what overlap saves: their error bar, verdict and reasons against numbers made by hand."""

from __future__ import annotations

from traceviz_dag.analyze.mean_savings import mean_savings
from traceviz_dag.vocabulary import Savings


def row(net: int | None, rank: int = 0, dimension: str = "dp", error: int = 0, **changed) -> dict:
    known = {} if net is None else {"net_low_ns": net - error, "net_high_ns": net + error}
    told = {"rank": rank, "device": "gpu:0", "window_name": "step", "step": 7, "dimension": dimension}
    told |= {"hidden_ns": 1000, "extra_ns": None if net is None else 1000 - net, "net_ns": net, "judged_share": 1.0}
    return told | {"net_low_ns": None, "net_high_ns": None, "reason": None} | known | changed


def test_the_error_bar_is_two_standard_errors_of_the_mean_over_windows():
    nets = (300, 300, 300 + 150, 300 - 150)
    ((mean,), unknown) = mean_savings([row(net, rank) for rank, net in enumerate(nets)])
    spread = 2 * (2 * 150**2 / 3) ** 0.5 / 2
    assert (mean.net_ns, mean.low_ns, mean.high_ns) == (300, round(300 - spread), round(300 + spread))
    assert (mean.verdict, mean.hidden_ns, mean.extra_ns, unknown) == (Savings.SAVES, 1000, 700, [])


def test_where_windows_agree_by_chance_or_are_one_the_spread_of_kernels_decides():
    ((one,), _) = mean_savings([row(100, error=150)])
    assert (one.low_ns, one.high_ns, one.verdict) == (-50, 250, Savings.UNSURE)
    ((equal,), _) = mean_savings([row(-100, rank, error=80) for rank in range(4)])
    assert (equal.low_ns, equal.high_ns, equal.verdict) == (-140, -60, Savings.COSTS)


def test_each_dimension_has_its_own_reason_and_the_kernels_window_counts_only_without_steps():
    rows = [
        *(row(5, rank, window_name="kernels", step=None) for rank in (0, 1)),
        row(700),
        row(None, dimension="tp", judged_share=0.5, reason="half"),
        row(None, dimension="tp", judged_share=0.2, reason="most"),
        row(None, dimension="all", judged_share=0.3, reason="other"),
    ]
    ((dp,), unknown) = mean_savings(rows)
    assert list(dp.nets) == [5, 700]
    assert [(each.where, each.reason) for each in unknown] == [
        ("of all communication is unknown in 1 of 1 window", "other"),
        ("of TP is unknown in 2 of 2 windows", "most"),
    ]

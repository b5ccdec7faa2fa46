"""``critical-path`` and ``what-if``: what they answer of traces and of records, and how they end where they cannot."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tests.commands.jobs import home_of, traces_of
from tests.sets import fast
from traceviz_dag.analyze.causes.gains import named_edit
from traceviz_dag.commands.main import app
from traceviz_dag.lake.lake import open_lake

FIGURES = ("step_ns", "predicted_step_ns", "gain_ns", "gain_low_ns", "gain_high_ns")


def ask(*words: object) -> tuple[int, str, str]:
    """Exit code, what was printed, and the line on standard error."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    error = result.exception
    known = error is None or isinstance(error, SystemExit) or hasattr(error, "exit_code")
    assert known, f"{words}: {error!r}"
    return getattr(error, "exit_code", result.exit_code), result.stdout, str(error or "")


def rows(*words: object, code: int = 0) -> list[dict]:
    ended, output, line = ask(*words, "--json")
    assert ended == code, line
    return json.loads(output)


def test_fixing_the_slow_rank_gains_most_of_what_can_be_fixed_and_says_so_in_rows():
    (row,) = rows("what-if", "--home", home_of("slow_rank"), "--fix-rank", 5)
    assert (row["edit"], row["rank"], row["steps"], row["reason"]) == ("fix_rank", 5, 1, None)
    assert row["predicted_step_ns"] == row["step_ns"] - row["gain_ns"]
    assert row["gain_low_ns"] <= row["gain_ns"] <= row["gain_high_ns"] and row["gain_ns"] > 0.005 * row["step_ns"]
    others = rows("what-if", "--home", home_of("slow_rank"), *(f"--fix-rank={rank}" for rank in (0, 1, 4)))
    assert all(other["gain_ns"] < row["gain_ns"] / 10 for other in others if other["edit"] == "fix_rank")


def test_ranks_are_fixed_together_by_their_group_or_by_name_and_a_wrong_name_is_one_line():
    home = home_of("slow_rank")
    group, named = (
        rows("what-if", "--home", home, "--fix-group", 5)[0],
        rows("what-if", "--home", home, "--fix-ranks=4-5")[0],
    )
    assert (group["edit"], named["edit"], group["ranks"]) == ("fix_group", "fix_ranks", "4-5")
    assert group["gain_ns"] == named["gain_ns"] > 0.005 * group["step_ns"]
    for option, words in (("--fix-ranks=x", "name ranks, as in 0-3,6"), ("--fix-group=99", "no such rank was read")):
        code, _, line = ask("what-if", "--home", home, option)
        assert code == 2 and words in line and "\n" not in line


def test_edits_that_are_asked_for_give_what_the_table_has_of_them():
    home = home_of("slow_rank")
    stored = open_lake(home).query("SELECT * FROM what_if WHERE refusal IS NULL").to_pylist()
    flags = {"even_layers", "equal_stages", "no_jitter", "no_pauses", "host_free"}
    assert flags <= {row["edit"] for row in stored}
    words = []
    for one in stored:
        valued = {
            "fix_rank": f"--fix-rank={one['rank']}",
            "fix_link": f"--fix-link={one['rank']}",
            "hide": f"--hide={one['dimension']}",
            "faster": f"--faster={one['dimension']}={one['factor']}",
        }
        words.append(valued.get(one["edit"], f"--{one['edit'].replace('_', '-')}"))
    told = {_edit(row): row for row in rows("what-if", "--home", home, *words) if row["edit"] != "together"}
    assert len(told) == len(stored)
    for one in stored:
        row = told[_edit(one)]
        assert {name: row[name] for name in FIGURES} == {name: one[name] for name in FIGURES}
        assert named_edit(row)


def _edit(row: dict) -> tuple:
    return tuple(row[name] for name in ("edit", "rank", "dimension", "factor"))


def test_edits_together_are_a_row_of_their_own_and_the_same_edit_twice_is_one():
    found = rows("what-if", "--home", home_of("slow_rank"), "--fix-rank", 5, "--fix-rank", 5, "--hide", "pp")
    by_edit = {row["edit"]: row for row in found}
    assert sorted(by_edit) == ["fix_rank", "hide", "together"] and len(found) == 3
    assert by_edit["together"]["gain_ns"] >= max(by_edit["fix_rank"]["gain_ns"], by_edit["hide"]["gain_ns"])
    assert all(row["steps"] == 1 for row in found)


def test_the_path_adds_up_to_the_step_in_every_profile():
    (answer,) = rows("critical-path", "--home", home_of("slow_rank"))
    for name in ("cause", "rank", "stage", "category", "module", "dimension"):
        assert sum(row["path_ns"] for row in answer[name]) == answer["step_ns"]
    assert sum(leg["duration_ns"] for leg in answer["legs"]) == answer["step_ns"]
    assert 0 < answer["critical_items"] <= answer["items"]


def test_the_view_of_profiles_is_what_is_printed_and_each_adds_up_to_its_step():
    lake = open_lake(home_of("two_steps"))
    summed = "step, sum({})::BIGINT AS ns"
    steps = lake.query(
        f"SELECT {summed.format('duration_ns')} FROM path_segments GROUP BY ALL ORDER BY step"
    ).to_pylist()
    sums = lake.query(
        f"SELECT profile, {summed.format('path_ns')}, sum(share) AS share FROM path_profiles GROUP BY ALL ORDER BY ALL"
    ).to_pylist()
    profiles = ("category", "cause", "dimension", "module", "rank", "stage")
    assert [(row["profile"], row["step"], row["ns"]) for row in sums] == [
        (profile, step["step"], step["ns"]) for profile in profiles for step in steps
    ]
    assert len(steps) == 2 and all(row["share"] == pytest.approx(1) for row in sums)
    (answer,) = rows("critical-path", "--home", home_of("two_steps"))
    told = lake.query("SELECT profile, name, sum(path_ns)::BIGINT AS ns FROM path_profiles GROUP BY ALL").to_pylist()
    for profile in profiles:
        shown = {None if row[profile] is None else str(row[profile]): row["path_ns"] for row in answer[profile]}
        assert shown == {row["name"]: row["ns"] for row in told if row["profile"] == profile}
        assert [row["path_ns"] for row in answer[profile]] == sorted(shown.values(), reverse=True)


@pytest.mark.parametrize("job", ["two_steps", "dp_only"])
def test_what_hosts_do_on_the_path_adds_up_and_is_named_by_what_launches(job):
    lake = open_lake(home_of(job))
    told = lake.query(
        "SELECT step, rank, sum(path_ns)::BIGINT AS ns, sum(launches)::BIGINT AS launches FROM path_hosts GROUP BY ALL"
    ).to_pylist()
    on_host = lake.query(
        "SELECT step, rank, sum(duration_ns)::BIGINT AS ns FROM path_segments WHERE cause = 'host' GROUP BY ALL"
    ).to_pylist()
    assert {(row["step"], row["rank"]): row["ns"] for row in told} == {
        (row["step"], row["rank"]): row["ns"] for row in on_host
    }
    (answer,) = rows("critical-path", "--home", home_of(job))
    assert sum(row["path_ns"] for row in answer["hosts"]) == sum(row["ns"] for row in on_host) > 0
    assert sum(row["launches"] for row in answer["hosts"]) == sum(row["launches"] for row in told)
    operations = set(lake.query("SELECT DISTINCT coalesce(operator, launch_name) AS o FROM kernels")["o"].to_pylist())
    pauses = set(lake.query("SELECT DISTINCT doing FROM gpu_gaps WHERE host_work IS NOT NULL")["doing"].to_pylist())
    assert {row["operation"] for row in answer["hosts"]} <= operations | pauses | {None}


def test_critical_imbalance_is_the_paths_time_less_the_mean_ranks():
    home = home_of("bad_split")
    (answer,) = rows("critical-path", "--home", home)
    found = {row["category"]: row for row in answer["critical_imbalance"]}
    lake = open_lake(home)
    on_path = lake.query(
        "SELECT category, sum(duration_ns)::BIGINT AS ns FROM path_segments "
        "WHERE cause IN ('work', 'transfer', 'unmatched') GROUP BY ALL"
    ).to_pylist()
    assert {row["category"]: row["ns"] for row in on_path} == {
        name: row["path_ns"] for name, row in found.items() if row["path_ns"]
    }
    ran = lake.query(
        "SELECT category, kind, sum(duration_ns)::BIGINT // 4 AS ns FROM kernels WHERE step IS NOT NULL GROUP BY ALL"
    ).to_pylist()
    assert {row["category"] for row in ran} == found.keys()
    for row in ran:
        mine = found[row["category"]]
        assert mine["imbalance_ns"] == max(0, mine["path_ns"] - mine["mean_ns"])
        if row["kind"] == "communication":
            assert mine["mean_ns"] <= row["ns"], "waiting is no time of a category"
        else:
            assert mine["mean_ns"] == row["ns"]
    assert found["bwd_computation"]["imbalance_ns"] > 0.1 * answer["step_ns"]
    assert found["pp_communication"]["mean_ns"] < 0.5 * next(
        r["ns"] for r in ran if r["category"] == "pp_communication"
    )
    (alone,) = rows("critical-path", "--home", home_of("one_rank"), code=2)
    assert not any(row["imbalance_ns"] for row in alone["critical_imbalance"])
    assert "Critical imbalance" not in ask("critical-path", "--home", home_of("one_rank"))[1]


def test_efficiencies_are_rows_of_all_ranks_and_each_replica_and_a_refusal_is_one_with_its_reason():
    found = rows("efficiencies", "--home", home_of("two_steps"))
    of_all = {(row["factor"], row["dimension"]): row for row in found if row["replica"] is None}
    whole = of_all["parallel_efficiency", None]
    assert (whole["steps"], whole["ranks"], whole["reason"]) == (2, 4, None)
    parts = [of_all[factor, None] for factor in ("load_balance", "serialisation", "transfer", "host")]
    assert sum(row["lost_ns"] for row in parts) == whole["lost_ns"] == whole["time_ns"] - whole["ideal_ns"]
    assert {row["replica"] for row in found} == {None, 0, 1}
    (row,) = rows("efficiencies", "--home", home_of("missing_stage"), code=2)
    assert row["value"] is row["factor"] is None and row["reason"].startswith("3 of 4 ranks were read in this step")
    code, output, line = ask("efficiencies", "--home", home_of("missing_stage"))
    assert code == 2 and "parallel efficiency is not known" in output and "3 of 4 ranks were read" in output and line


def test_costs_of_waits_stand_beside_gains_and_add_up_to_all_waits():
    home = home_of("slow_rank")
    (answer,) = rows("waits", "--home", home)
    costs = answer["costs"]
    stored = open_lake(home).query("SELECT sum(cost_ns)::BIGINT AS ns FROM delay_costs").to_pylist()
    assert sum(row["cost_ns"] for row in costs) == stored[0]["ns"]
    assert all(row["cost_ns"] == row["direct_ns"] + row["passed_on_ns"] for row in costs)
    # Clocks of the ranks differ by 3 ms: the graph needs none, and finds the waits that solved clocks show.
    waits = sum(row["wait_ns"] for row in answer["matrix"])
    assert stored[0]["ns"] == pytest.approx(waits, rel=0.01)
    (gain,) = {row["gain_ns"] for row in costs if row["rank"] == 5}
    assert gain == rows("what-if", "--home", home, "--fix-rank", 5)[0]["gain_ns"]


def test_uneven_experts_are_a_usual_edit_and_refused_where_there_are_none():
    stored = rows("what-if", "--home", home_of("uneven_experts"))
    (asked,) = rows("what-if", "--home", home_of("uneven_experts"), "--balanced-experts")
    (balanced,) = (row for row in stored if row["edit"] == "balanced_experts")
    assert balanced == asked and asked["gain_ns"] > 0
    (row,) = rows("what-if", "--home", home_of("slow_rank"), "--balanced-experts", code=2)
    assert row["reason"] == "no all-to-alls show experts whose load differs" and row["gain_ns"] is None


def test_another_order_shows_the_step_for_each_micro_batch_and_a_refusal_costs_no_other_edit():
    home = home_of("slow_rank")
    (row,) = rows("what-if", "--home", home, "--microbatches", 8)
    assert (row["edit"], row["microbatches"], row["schedule"]) == ("microbatches", 8, None)
    assert row["microbatch_ns"] == round(row["step_ns"] / 4)
    assert row["predicted_microbatch_ns"] == round(row["predicted_step_ns"] / 8) < row["microbatch_ns"]
    found = rows("what-if", "--home", home, "--schedule", "interleaved", "--fix-rank", 5, code=2)
    assert [(row["edit"], row["refusal"] is None) for row in found] == [
        ("fix_rank", True),
        ("schedule", False),
        ("together", False),
    ]
    assert "several model chunks in a stage, and the job has one" in found[0]["reason"]


def test_steps_in_a_row_are_answered_together_and_one_alone_is_said_to_be_one():
    home = home_of("two_steps")
    (path,) = rows("critical-path", "--home", home, "--steady")
    assert path["steps"] == 2 and path["period_ns"] > 0
    for profile in ("cause", "rank", "stage", "category"):
        assert sum(row["path_ns"] for row in path[profile]) == path["period_ns"]
    edits = [row for row in rows("what-if", "--home", home, "--steady") if row["refusal"] is None]
    assert {row["step_ns"] for row in edits} == {path["period_ns"]}
    stored = open_lake(home).query("SELECT DISTINCT edit, rank, dimension FROM what_if WHERE refusal IS NULL")
    assert {(row["edit"], row["rank"], row["dimension"]) for row in edits} == {
        tuple(row.values()) for row in stored.to_pylist()
    }
    assert all(row["gain_low_ns"] <= row["gain_ns"] <= row["gain_high_ns"] for row in edits)
    together = rows("what-if", "--home", home, "--steady", "--hide=dp", "--equal-stages")
    assert [row["edit"] for row in together if row["edit"] == "together"] == ["together"]
    _, output, _ = ask("what-if", "--home", home, "--steady")
    assert f"steady period {path['period_ns'] / 1e6:,.3f} ms, from the end of step" in output.replace("\n  ", " ")
    for command in ("what-if", "critical-path"):
        code, _, line = ask(command, "--home", home_of("slow_rank"), "--steady")
        assert code == 2 and "needs two training steps that follow one another, and there is one" in line


def test_a_limit_cuts_the_print_and_not_the_json():
    home = home_of("slow_rank")
    whole = [row for row in rows("what-if", "--home", home, "--limit", 2) if row["refusal"] is None]
    _, output, _ = ask("what-if", "--home", home, "--limit", 2)
    assert len(whole) > 12 and f": the first 2 of {len(whole)}" in output
    assert sum("communication" in line or "fix rank" in line for line in output.splitlines()[3:]) <= 2
    assert "the first" not in ask("what-if", "--home", home, "--limit", 0)[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("what-if", "--fix-rank", "99"), "--fix-rank 99: no such rank was read of slow_rank 10; there are ranks 0–7"),
        (("what-if", "--fix-link", "99"), "--fix-link 99: no such rank was read of slow_rank 10; there are ranks 0–7"),
        (("what-if", "--hide", "cp"), "no communication of dimension cp; there are "),
        (("what-if", "--faster", "cp=2"), "no communication of dimension cp; there are "),
        (("what-if", "--faster", "pp"), "--faster pp: name a dimension and how many times faster, as in dp=2"),
        (("what-if", "--faster", "pp=1"), "--faster pp=1: name a dimension and how many times faster"),
        (("what-if", "--faster", "=2"), "--faster =2: name a dimension and how many times faster"),
        (("what-if", "--faster", "pp=nan"), "--faster pp=nan: name a dimension and how many times faster"),
        (("critical-path", "--iteration", "11"), "no such run or iteration; there are slow_rank 10"),
        (("what-if", "--schedule", "gpipe"), "--schedule gpipe: there are 1f1b, interleaved, interleaved-overlapped"),
        (("what-if", "--microbatches", "0"), "--microbatches 0: a step has at least one"),
        (("what-if", "--records", "a.parquet", "--run", "job"), "name traces or --records, not both"),
        (("critical-path", "--records", "a.parquet", "--run", "job"), "name traces or --records, not both"),
    ],
)
def test_words_that_nothing_can_be_known_of_are_one_line(words, said):
    code, output, line = ask(*words, "--home", home_of("slow_rank"))
    assert (code, output) == (2, "") and line.startswith(said) and "\n" not in line


@pytest.mark.parametrize("command", fast(["critical-path", "what-if"], "what-if"))
def test_traces_without_a_gpu_end_with_2_and_why(command, shared_data, tmp_path):
    traces = shared_data / "megatron_cpu/pp2_dp2_distopt_overlap"
    code, output, line = ask(command, traces, "--home", tmp_path)
    assert code == 2 and "the traces have no GPU, so nothing shows what waited for what" in line
    assert ("no critical path" if command == "critical-path" else "nothing can be predicted") in output
    for answer in rows(command, traces, "--home", tmp_path, code=2):
        assert "no GPU" in answer["reason"] and answer["step_ns"] is None and not answer["certain"]


@pytest.mark.parametrize("command", ["critical-path", "what-if"])
def test_a_missing_rank_is_said_in_heading_json_and_exit_code(command):
    code, output, line = ask(command, "--home", home_of("missing_stage"))
    assert code == 2 and "PARTIAL: rank 2 of 4 without a trace" in output and line
    for answer in rows(command, "--home", home_of("missing_stage"), code=2):
        assert answer["partial"] and answer["missing_ranks"] == [2]
        assert answer.get("refusal") is not None or answer["step_ns"] > 0


def test_a_path_answers_what_a_home_does(tmp_path):
    for command in ("critical-path", "what-if"):
        assert rows(command, traces_of("healthy"), "--home", tmp_path) == rows(command, "--home", home_of("healthy"))


@pytest.fixture
def records(shared_data, tmp_path) -> Path:
    """A copy of a job's records, with its meta file."""
    for name in ("trace-SE.parquet", "meta-SE.yaml"):
        shutil.copyfile(shared_data / "straggler_analysis" / name, tmp_path / name)
    return tmp_path / "trace-SE.parquet"


def test_records_give_the_published_slowdown_and_the_text_says_the_same(records):
    code, output, _ = ask("what-if", "--records", records, "--json")
    answer = json.loads(output)
    assert code == 0 and not answer["partial"]
    assert answer["slowdown"] == pytest.approx(1.5373613711, abs=1e-6)
    assert answer["recovered_by_last_stage"] == pytest.approx(0.6877108930, abs=1e-6)
    assert answer["recovered_by_slowest_ranks"] == pytest.approx(0.0250622669, abs=1e-6)
    assert answer["slowest_ranks"] == [
        {"data_parallel_rank": 8, "stage": 1},
        {"data_parallel_rank": 27, "stage": 1},
    ]
    code, output, _ = ask("what-if", "--records", records)
    assert code == 0
    assert f"step {answer['step_ns'] / 1e6:,.3f} ms as replayed, mean of {answer['steps']};" in output
    assert "that is 1.537 times the 5,897.478 ms" in output
    assert "ideal durations in the last stage (1) would save 68.8 % of that loss" in output
    assert "would save 2.5 %: data-parallel rank 8 of stage 1, data-parallel rank 27 of stage 1" in output
    cells = [line.split() for line in output.splitlines()]
    for kind, key, most in (
        ("stages", "stage", 20),
        ("operations", "operation", 20),
        ("data_parallel_ranks", "data_parallel_rank", 20),
    ):
        for row in answer[kind][:most]:
            assert [str(row[key]), f"{row['slowdown']:.4f}"] in cells
    assert f"were as it was: the first 20 of {len(answer['data_parallel_ranks'])}" in output


def test_waits_of_records_are_charged_to_first_causes_in_text_and_json_alike(records):
    code, output, _ = ask("waits", "--records", records, "--json")
    answer = json.loads(output)
    assert code == 0 and answer["steps"] == 43 and answer["waited_ns"] == sum(row["cost_ns"] for row in answer["costs"])
    code, output, _ = ask("waits", "--records", records)
    first = answer["costs"][0]
    assert code == 0 and f"waited {answer['waited_ns'] / 1e6:,.3f} ms" in output
    shown = [f"{first[name] / 1e6:,.3f}" for name in ("cost_ns", "direct_ns", "passed_on_ns", "gain_ns")]
    assert next(line.split() for line in output.splitlines() if "computation" in line)[4:] == shown[1:]


@pytest.mark.long
def test_edits_of_records_are_rows_as_those_of_traces(records):
    code, output, _ = ask("what-if", "--records", records, "--fix-rank", 66, "--hide", "pp", "--json")
    answer = json.loads(output)
    (of_traces,) = rows("what-if", "--home", home_of("slow_rank"), "--fix-rank", 5)
    assert code == 0 and [row["edit"] for row in answer["rows"]] == ["together", "hide", "fix_rank"]
    for row in answer["rows"]:
        assert {"edit", "rank", "dimension", "factor", "steps", *FIGURES} <= row.keys() & of_traces.keys()
        assert row["gain_low_ns"] <= row["gain_ns"] <= row["gain_high_ns"] and row["steps"] == answer["steps"]
    assert (answer["rows"][-1]["data_parallel_rank"], answer["rows"][-1]["stage"]) == (1, 1)
    for words, said in (
        (("--even-layers",), "--even-layers: records of pipeline operations do not show what it changes"),
        (("--fix-rank", 1), "--fix-rank 1: no such rank in the records"),
        (("--hide", "cp"), "no communication of dimension cp; there are dp, embedding, grad_norm, pp, tp, all"),
    ):
        assert ask("what-if", "--records", records, *words) == (2, "", said)


def test_records_of_one_rank_show_nothing_of_ranks_and_stages(records):
    table = pq.read_table(records).to_pandas()
    table["optype"] = table["optype"].astype(str)
    apart = table["optype"].str.contains("send|recv|embedding")
    alone = table[(table["dp_rank"] == 0) & (table["stage"] == 0) & ~apart & (table["step"] < 20)]
    alone.to_parquet(records.parent / "trace-one.parquet")
    meta = (records.parent / "meta-SE.yaml").read_text()
    meta = meta.replace("dp_size: 32", "dp_size: 1").replace("pp_size: 2\n", "pp_size: 1\n", 1)
    (records.parent / "meta-one.yaml").write_text(meta)
    one = records.parent / "trace-one.parquet"
    code, output, _ = ask("what-if", "--records", one, "--json")
    assert code == 0 and not {"fix_rank", "equal_stages"} & {row["edit"] for row in json.loads(output)["rows"]}
    for words, said in (
        (("--fix-rank", 0), "rank 0 is the only one in the records, so nothing shows what is usual"),
        (("--equal-stages",), "only one pipeline stage was recorded, so there are none to even out"),
    ):
        code, output, line = ask("what-if", "--records", one, *words, "--hide", "dp", "--json")
        assert (code, line) == (2, f"trace-one.parquet: {said}")
        assert [row["edit"] for row in json.loads(output)["rows"]] == ["hide"]


def test_records_that_are_off_are_one_line(records, tmp_path):
    text = tmp_path / "trace-text.parquet"
    text.write_text("no Parquet")
    cut = tmp_path / "trace-cut.parquet"
    cut.write_bytes(records.read_bytes()[:4096])
    lonely = tmp_path / "trace-lonely.parquet"
    shutil.copyfile(records, lonely)
    for path, said in (
        (tmp_path / "trace-none.parquet", "cannot be read (No such file or directory)"),
        (tmp_path, "is a folder, and no config.json is in it"),
        (text, "no Parquet file"),
        (cut, "no Parquet file"),
        (lonely, "meta-lonely.yaml"),
    ):
        code, output, line = ask("what-if", "--records", path)
        assert (code, output) == (2, "") and said in line and "\n" not in line, line


@pytest.mark.long
def test_records_of_which_a_step_lacks_operations_are_partial_everywhere(records):
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(records)
    step = pc.min(table["step"])
    lost = pc.and_(pc.equal(table["step"], step), pc.equal(table["optype"], "optimizer"))
    pq.write_table(table.filter(pc.invert(lost)), records)
    code, output, line = ask("what-if", "--records", records, "--json")
    answer = json.loads(output)
    assert code == 2 and answer["partial"] and answer["steps"] == 42
    assert answer["faults"] and answer["faults"][0] in line
    code, output, line = ask("critical-path", "--records", records)
    assert code == 2 and "· PARTIAL · 42 steps" in output and answer["faults"][0] in line
    code, output, line = ask("waits", "--records", records)
    assert code == 2 and "· PARTIAL · ranks waited" in output and "1 of 43 steps were left out" in line
    code, output, line = ask("what-if", "--records", records)
    assert code == 2 and "· PARTIAL · step" in output and "1 of 43 steps were left out" in line

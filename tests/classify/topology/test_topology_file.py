"""The topology text file: every heading form, and one clear line for what is broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from traceviz_dag.errors import BadInputError
from traceviz_dag.read import topology_file
from traceviz_dag.read.topology_file import find_topology_file, parse_topology, parse_topology_json, read_topology_file

PATH = Path("unique_parallel_groups_1.txt")
NEW_FORM = """\
================================================================================
MEGATRON PARALLEL CONFIGURATION
================================================================================
TP Size: 2
PP Size: 2
CP Size: 1
World Size: 4

STATISTICS
--------------------------------------------------
Total Ranks: 4

TENSOR PARALLEL (TP) GROUPS
--------------------------------------------------
Group 1: [0, 1]
Group 2: [2, 3]
Total groups: 2

PIPELINE PARALLEL (PP) GROUPS
--------------------------------------------------
Group 1: [0, 2]
Group 2: [1, 3]
Total groups: 2

DATA PARALLEL (DP) GROUPS
--------------------------------------------------
Group 1: [0]
Group 2: [1]
Group 3: [2]
Group 4: [3]
Total groups: 4

FULL MODEL RANK GROUPS (by DP Rank)
--------------------------------------------------
Full model = TP2 x EP1 x PP2 x CP1 = 4 ranks
--------------------------------------------------
Group 0: [0, 1, 2, 3]

Total model replicas (DP): 1
"""
OLD_FORM = """\
TP (Tensor Parallel) Size: 2
PP (Pipeline Parallel) Size: 2
World Size : 4

UNIQUE TP GROUPS:
-----------------
TP Group 1: [0, 1]
TP Group 2: [2,3]

UNIQUE PP GROUPS:
-----------------
PP Group 1: [0, 2]
PP Group 2: [1, 3]

Unique DP Groups
-----------------
DP Group 1: [0]
DP Group 2: [1]
DP Group 3: [2]
DP Group 4: [3]

CONTEXT PARALLEL (CP) GROUPS
Group 1: [0]
Group 2: [1]
Group 3: [2]
Group 4: [3]

EXPERT GROUPS
Group 1: [0, 1]
Group 2: [2, 3]
"""
TENSOR, PIPELINE, DATA = ((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0,), (1,), (2,), (3,))


def test_headings_of_both_forms_give_the_same_groups():
    new, old = parse_topology(NEW_FORM, PATH), parse_topology(OLD_FORM, PATH)
    assert new.groups == {"tp": TENSOR, "pp": PIPELINE, "dp": DATA}
    assert old.groups == {"tp": TENSOR, "pp": PIPELINE, "dp": DATA, "cp": DATA, "ep": TENSOR}
    assert new.sizes == {"tp": 2, "pp": 2, "cp": 1, "world": 4}
    assert old.sizes == {"tp": 2, "pp": 2, "world": 4}
    assert (new.full_model, old.full_model) == (((0, 1, 2, 3),), ())


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "lists no process groups"),
        ("a shopping list\nmilk\n", "lists no process groups"),
        (NEW_FORM.replace("Group 2: [2, 3]", "Group 2: [2, 3", 1), "line 16 is cut or garbled"),
        (NEW_FORM.replace("[2, 3]", "[2, x]"), "line 16 is cut or garbled"),
        (NEW_FORM.replace("[2, 3]", "[" + "9" * 5000 + "]"), "line 16 is cut or garbled"),
        (NEW_FORM.replace("Group 2: [2, 3]\n", "", 1), "2 TP groups are announced, 1 listed"),
        (NEW_FORM.replace("Group 2: [1, 3]", "Group 2: [0, 3]"), "rank 0 is in two PP groups"),
        (NEW_FORM.replace("World Size: 4", "World Size: 3"), "rank 3 in a world of 3"),
        (NEW_FORM.replace("TP Size: 2", "TP Size: two"), "line 4 gives no size: 'two'"),
        (NEW_FORM[: NEW_FORM.index("Group 3: [2]")], "cut short inside the DP groups"),
        (NEW_FORM[: NEW_FORM.index("DATA PARALLEL")], "cut short: no DP groups"),
        (OLD_FORM[: OLD_FORM.index("UNIQUE PP")], "cut short: no PP groups"),
        (OLD_FORM[: OLD_FORM.index("DP Group 3")], "the DP groups hold 2 of 4 ranks"),
    ],
)
def test_a_broken_file_is_refused_with_file_fault_and_remedy(text, fault):
    with pytest.raises(BadInputError, match=fault) as caught:
        parse_topology(text, PATH)
    assert str(caught.value).startswith(f"{PATH}: ")
    assert "copy the file again" in caught.value.remedy
    assert "\n" not in str(caught.value)


def test_lines_without_end_are_refused_before_they_take_memory_and_time(monkeypatch):
    monkeypatch.setattr(topology_file, "_MOST_LINES", 100)
    with pytest.raises(BadInputError, match="more than 100 lines"):
        parse_topology(NEW_FORM + "ab\r\n" * 100, PATH)


def test_any_cut_gives_a_refusal_or_complete_kinds_of_groups():
    whole = parse_topology(NEW_FORM, PATH)
    for end in range(len(NEW_FORM)):
        try:
            cut = parse_topology(NEW_FORM[:end], PATH)
        except BadInputError:
            continue
        assert cut.groups == whole.groups


def test_a_rank_that_failed_to_report_may_be_missing():
    text = NEW_FORM.replace("Total Ranks: 4", "Total Ranks: 4\nValid Ranks: 3\nError Ranks: 1")
    text = text.replace("Group 4: [3]\nTotal groups: 4", "Total groups: 3").replace("[0, 1, 2, 3]", "[0, 1, 2]")
    assert parse_topology(text, PATH).groups["dp"] == DATA[:3]


def test_unreadable_files_are_refused(tmp_path):
    with pytest.raises(BadInputError, match="cannot be read"):
        read_topology_file(tmp_path / "missing.txt")
    (tmp_path / "binary.txt").write_bytes(b"\x80\x81\xff")
    with pytest.raises(BadInputError, match="not text"):
        read_topology_file(tmp_path / "binary.txt")


def test_the_newest_file_of_a_folder_is_found(tmp_path):
    assert find_topology_file(tmp_path) is None
    for stamp in ("20260101_000000", "20260102_000000"):
        (tmp_path / f"unique_parallel_groups_{stamp}.txt").write_text(NEW_FORM)
    found = find_topology_file(tmp_path)
    assert found is not None
    assert found.name == "unique_parallel_groups_20260102_000000.txt"
    assert read_topology_file(found).groups["pp"] == PIPELINE


def test_secrets_in_a_json_file_are_neither_kept_nor_quoted(tmp_path):
    stated = {
        **{"format": "traceviz topology", "version": 1, "world_size": 2, "complete": True, "sizes": {}, "replicas": []},
        "groups": [{"ranks": [0, 1], "name": "hf_SECRETabcdefgh", "description": "GROUP /home/alice/x"}],
    }
    path = tmp_path / "unique_parallel_groups_1.json"
    (group,) = parse_topology_json(json.dumps(stated), path).described
    assert (group.name, group.description) == ("***", "GROUP ~/x")
    stated["groups"][0] = {"ranks": [0, 9], "description": "password=hunter2"}
    with pytest.raises(BadInputError, match=r"password=\*\*\*") as refused:
        parse_topology_json(json.dumps(stated), path)
    assert "hunter2" not in str(refused.value)

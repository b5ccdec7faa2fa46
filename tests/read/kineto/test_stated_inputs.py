"""Communications of older PyTorch, which states them in the inputs of ``record_param_comms`` without any name."""

from __future__ import annotations

import pytest

from tests.kineto_file import KinetoFile
from traceviz_dag.read.events import MISSING
from traceviz_dag.read.kineto.reader import read_kineto
from traceviz_dag.read.kineto.stated_inputs import annotated_communication

OF_2024 = {
    "Concrete Inputs": ["", "337", "93825114103440", "0", "", "[]", "[]", "8"],
    "Input Dims": [[[4, 2048, 4096], [7]], [], [], [], [], [], [], []],
}
WAIT = {"Concrete Inputs": ["337", "0", "0", "", "[]", "[]", "1"], "Input Dims": [[], [], [], [], [], [], []]}
BARRIER = {"Concrete Inputs": ["338", "93825114103440", "0", "", "[]", "[]", "8"]}
OF_2025 = {"Concrete Inputs": ["", "", "", "0", "", "[]", "[]", "0", "1", "8"], "Input Dims": [[[5]], [], []]}
ODD = ({"Concrete Inputs": None}, {"Concrete Inputs": "8"}, {"Concrete Inputs": ["", {}, [], "0", "", "[]", "[]", "x"]})


@pytest.mark.parametrize("lenient", [False, True], ids=["narrow", "lenient"])
def test_sequence_group_size_and_elements_are_read_from_the_inputs(tmp_path, lenient):
    file = KinetoFile()
    for number, arguments in enumerate((OF_2024, WAIT, BARRIER, OF_2025, *ODD)):
        file.operator("record_param_comms", 1_000 * number, 1_000 * number + 900, **arguments)
    file.operator("aten::mm", 9_000, 9_900, **OF_2024)
    if lenient:
        file.operator("aten::odd", 10_000, 10_900, **{"External id": "not a number"})
    trace = read_kineto(file.write(tmp_path / "rank_0.json"))
    facts = trace.operator_facts
    assert trace.communication_operators.tolist() == [0, 2]
    assert facts.sequence.tolist() == [337, 338]
    assert facts.group_address.tolist() == [93825114103440] * 2
    assert facts.group_size.tolist() == [8, 8]
    assert facts.in_elements.tolist() == [4 * 2048 * 4096 + 7, MISSING]
    assert [trace.strings[code] for code in facts.in_split] == ["[]", "[]"]
    assert not facts.group_name.any() and not facts.collective.any()


@pytest.mark.parametrize("lenient", [False, True], ids=["narrow", "lenient"])
def test_sizes_of_inputs_are_kept_as_text_long_ones_as_digest_and_nothing_else(tmp_path, lenient):
    file = KinetoFile()
    many = [[4096, number] for number in range(100)]
    stated = (
        [[4096, 1, 1024], [], [1024, 512]],
        [[], []],
        many,
        [*many, [1]],
        ["--api-key=secret", [3]],
        "secret",
        None,
    )
    for number, sizes in enumerate(stated):
        file.operator("aten::mm", 1_000 * number, 1_000 * number + 900, **{"Input Dims": sizes})
    file.operator("aten::mm", 9_000, 9_900)
    if lenient:
        file.operator("aten::odd", 10_000, 10_900, **{"External id": "not a number"})
    trace = read_kineto(file.write(tmp_path / "rank_0.json"))
    first, empty, long, longer, *others = [trace.strings[code] for code in trace.host.input_sizes][:8]
    assert (first, empty, others) == ("[[4096,1,1024],[],[1024,512]]", "", [""] * 4)
    assert long[0] == longer[0] == "#" and long != longer and len(long) < 20
    assert not any("secret" in text for text in trace.strings)


@pytest.mark.parametrize("lenient", [False, True], ids=["narrow", "lenient"])
def test_operators_that_have_no_inputs_state_so_alone_in_a_piece_too(tmp_path, lenient):
    file = KinetoFile()
    file.operator("aten::empty", 1_000, 1_900, **{"Input Dims": []})
    if lenient:
        file.row("cuda_runtime", "cudaLaunchKernel", 2_000, 2_900, correlation="not a number")
    trace = read_kineto(file.write(tmp_path / "rank_0.json"))
    assert trace.operator_inputs[1].sizes == "[]" and trace.host.inputs.tolist() == [1]


@pytest.mark.parametrize("lenient", [False, True], ids=["narrow", "lenient"])
def test_inputs_are_kept_once_each_and_values_only_where_the_work_depends_on_them(tmp_path, lenient):
    file = KinetoFile()
    sizes, types = [[4, 8], []], ["c10::Half", "Scalar"]
    given = {"Input Dims": sizes, "Input type": types, "Input Strides": [[8, 1], []]}
    stated = (
        ("aten::sum", {**given, "Concrete Inputs": ["", "[-1]"]}),
        ("aten::sum", {**given, "Concrete Inputs": ["", "[0]"]}),
        ("aten::sum", {**given, "Concrete Inputs": ["", "--token=secret"]}),
        ("aten::add", {**given, "Concrete Inputs": ["", "0.1"]}),
        ("aten::add", {**given, "Concrete Inputs": ["", "0.2"]}),
        ("aten::add", {"Input Dims": [[], []], "Input type": ["long int", "/home/secret"]}),
        ("aten::add", {"Input Dims": None, "Input type": 3}),
        ("aten::add", {}),
    )
    for number, (name, arguments) in enumerate(stated):
        file.operator(name, 1_000 * number, 1_000 * number + 900, **arguments)
    if lenient:
        file.operator("aten::odd", 10_000, 10_900, **{"External id": "not a number"})
    trace = read_kineto(file.write(tmp_path / "rank_0.json"))
    assert trace.host.inputs.tolist()[:8] == [1, 2, 3, 3, 3, 4, 0, 0]
    assert trace.operator_inputs[1] == ("[[4,8],[]]", '["c10::Half","Scalar"]', "[[8,1],[]]", '["","[-1]"]')
    assert trace.operator_inputs[3].values == "" and trace.operator_inputs[4][:2] == ("[[],[]]", '["long int",""]')


@pytest.mark.parametrize("lenient", [False, True], ids=["narrow", "lenient"])
@pytest.mark.parametrize("bad", [b"\xff", b"\\ud800"], ids=["no UTF-8", "half a pair"])
def test_inputs_that_are_no_text_are_repaired_wherever_they_stand(tmp_path, bad, lenient):
    file = KinetoFile()
    for name, start in (("record_param_comms", 0), ("aten::addmm", 1_000)):
        inputs = {
            **OF_2024,
            "Input type": ["float", "BAD"],
            "Concrete Inputs": [*OF_2024["Concrete Inputs"][:4], "BAD"],
        }
        inputs["Concrete Inputs"] += OF_2024["Concrete Inputs"][5:]
        file.operator(name, start, start + 900, **inputs)
    if lenient:
        file.operator("aten::odd", 10_000, 10_900, **{"External id": "not a number"})
    path = file.write(tmp_path / "rank_0.json")
    path.write_bytes(path.read_bytes().replace(b"BAD", bad))
    trace = read_kineto(path)
    assert trace.operator_inputs[1].types == '["float",""]'
    assert trace.operator_facts.sequence.tolist() == [337]


def test_types_with_a_number_that_no_double_holds_are_none():
    # Such a list is only skipped where its event is read by a struct of its category.
    stated = annotated_communication("nccl:all_reduce", b"[[8]]", b"[1e999]")
    assert (stated.collective, stated.in_elements, stated.dtype) == ("all_reduce", 8, MISSING)

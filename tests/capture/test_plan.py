"""The texts of a plan mean what the configuration says, read back by whoever will read them."""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.end_to_end.conftest import traceviz
from traceviz_dag.capture.configuration import ProfilingConfig
from traceviz_dag.capture.explain import NO_AUTOGRAD, explain, parse_arguments, warnings
from traceviz_dag.capture.plan import consequences, plan
from traceviz_dag.capture.plugin import CaptureSettings
from traceviz_dag.capture.releases import CORE_0_10, MAIN, RELEASES, Release, release_of
from traceviz_dag.capture.rendering import Rendering
from traceviz_dag.capture.samples import proposals
from traceviz_dag.vocabulary import CaptureQuestion

JOB = {"world_size": 16, "node_size": 8, "tp": 2, "pp": 2, "command": "pretrain_gpt.py --num-layers 8"}
TORCH = {"use_pytorch_profiler": True, "profile_step_start": 20, "profile_step_end": 22, "job": JOB}
NSYS = {"use_nsys_profiler": True, "profile_step_start": 20, "profile_step_end": 22, "nvtx_ranges": True, "job": JOB}


def targets(given: dict[str, object], **more: object) -> dict[str, Rendering]:
    return {one.target: one for one in plan(ProfilingConfig.model_validate({**given, **more}))}


def test_megatrons_arguments_carry_the_range_the_ranks_and_what_to_collect():
    rendered = targets(TORCH, output_folder="/out put")
    today = parse_arguments(shlex.split(rendered["megatron"].text))
    assert (today.profile, today.use_pytorch_profiler) == (True, True)
    assert (today.profile_step_start, today.profile_step_end, today.profile_ranks) == (20, 22, [0, 1, 8, 9])
    assert today.pytorch_profiler_collect_callstack
    assert today.pytorch_profiler_collect_shapes
    assert "/out put/tensorboard" in shlex.split(rendered["megatron"].text)
    older = shlex.split(rendered["megatron-older"].text)
    assert "--profile-ranks" in older
    assert not [word for word in older if word.startswith(("--pytorch-profiler", "--nvtx", "--record-shapes"))]


def test_all_ranks_are_the_default_of_today_and_named_for_releases():
    rendered = targets(TORCH, profile_ranks="all")
    assert "--profile-ranks" not in rendered["megatron"].text
    assert parse_arguments(shlex.split(rendered["megatron-older"].text)).profile_ranks == list(range(16))


def test_nsys_gets_the_documented_line_and_a_name_for_each_rank():
    rendered = targets(NSYS, nsys_gpu_metrics=True, output_folder="/out")
    shell, option, script, _ = shlex.split(rendered["nsys-slurm"].text)
    assert (shell, option) == ("bash", "-c")
    words = shlex.split(script.removeprefix("exec ").split(" $(")[0])
    name = "/out/profile_%p_%q{SLURM_JOB_ID}_node%q{SLURM_NODEID}_rank%q{SLURM_PROCID}"
    assert words[:8] == ["nsys", "profile", "-s", "none", "-o", name, "-t", "cuda,nvtx"]
    assert words[8:12] == [
        *("--force-overwrite", "true", "--capture-range=cudaProfilerApi", "--capture-range-end=stop"),
    ]
    assert shlex.split(targets(NSYS, output_folder="/out")["nsys-slurm"].text) == words
    assert "rank%q{RANK}" in rendered["nsys-torchrun"].text
    assert "--nvtx-ranges" in rendered["megatron"].text
    assert "nsys profile" in rendered["torchrun"].text
    assert not {"plugin", "traceviz"} & rendered.keys()


def test_gpu_metrics_are_collected_once_on_each_node(tmp_path):
    """nsys is not at hand: a stand-in says with which words it was called."""
    nsys = tmp_path / "nsys"
    nsys.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    nsys.chmod(0o755)
    for name in ("nsys-torchrun", "nsys-slurm"):
        rendering = targets(NSYS, nsys_gpu_metrics=True, output_folder="/out put")[name]
        for local_rank in ("0", "1"):
            ranks = {"LOCAL_RANK": local_rank} if name == "nsys-torchrun" else {"SLURM_LOCALID": local_rank}
            said = subprocess.run(
                ["bash", "-c", f"{rendering.text} python 'a b.py'"],
                env={**ranks, "PATH": f"{tmp_path}:/usr/bin:/bin"},
                capture_output=True,
                text=True,
                check=True,
            ).stdout.splitlines()
            assert ("--gpu-metrics-devices=all" in said) == (local_rank == "0")
            assert said[-2:] == ["python", "a b.py"]
            assert said[4].startswith("/out put/profile_%p")
        assert any("first rank records: 2 of 2" in note for note in rendering.notes)


def test_an_export_keeps_what_nccl_noted():
    words = shlex.split(targets(NSYS)["nsys-export"].text)
    assert words[:2] == ["nsys", "export"]
    assert "--include-blobs=true" in words


def test_shapes_and_stacks_reach_each_bridge_through_the_field_that_it_reads():
    rendered = targets(TORCH, execution_traces=True)
    assert "0.4 to 0.6" in rendered["bridge"].title
    for name in ("shapes", "callstack", "chakra"):
        assert f"pytorch_profiler_collect_{name}=True" in rendered["bridge"].text
        assert f"profiling.pytorch_profiler_collect_{name}=true" in " ".join(rendered["nemo-run"].notes)
    assert "pytorch_profiler_collect" not in rendered["bridge-older"].text
    assert any("run.Script" in note for note in rendered["nemo-run"].notes)
    assert parse_arguments(shlex.split(rendered["megatron"].text)).pytorch_profiler_collect_chakra
    assert "chakra" not in rendered["megatron-older"].text
    with pytest.raises(ValueError, match="execution_traces with nsys"):
        targets(NSYS, execution_traces=True)


def test_memory_snapshots_are_named_where_each_of_them_really_dumps_them():
    given = {"record_memory_history": True, "memory_snapshot_path": "/out/mem ory/snap.pickle", "output_folder": "/out"}
    rendered = targets(TORCH, **given)
    megatron = " ".join(rendered["megatron"].notes)
    assert "Each rank that records dumps its memory history, to /out/mem ory/snap_RANK.pickle" in megatron
    for release in ("megatron-0.18", "megatron-0.17", "megatron-older"):
        assert "last rank alone (15)" in " ".join(rendered[release].notes)
    assert "mkdir -p /out '/out/mem ory'" in megatron
    assert "/out/mem ory/snap_8.pickle" in " ".join(rendered["bridge"].notes)
    assert "os.makedirs('/out/mem ory', exist_ok=True)" in rendered["bridge"].text
    assert "export TRACEVIZ_CAPTURE_MEMORY=history" in rendered["plugin"].text
    assert "mkdir -p /out '/out/mem ory'" in targets(NSYS, **given)["slurm"].text
    sentence = " ".join(consequences(ProfilingConfig.model_validate({**TORCH, **given})))
    for words in ("last rank (15)", "/out/mem ory/snap_RANK.pickle", "beside the trace"):
        assert words in sentence


def test_explain_says_who_dumps_what():
    given = ["--profile", "--use-pytorch-profiler", "--tensorboard-dir", "/tb", "--record-memory-history"]
    found = {one.question: one for one in explain([*given, "--pytorch-profiler-collect-chakra"])}
    assert "/tb/../torch_profile/rank-N.json.gz" in found["Who writes the traces, and where?"].why
    assert "each rank that records dumps snapshot_RANK.pickle" in found["Where does memory go?"].why
    assert "/tb/../chakra/rank-N.json.gz" in found["Can the step be replayed elsewhere (Chakra)?"].why
    for release in RELEASES[1:]:
        found = {one.question: one for one in explain(given, release)}
        assert "the last rank alone dumps snapshot.pickle" in found["Where does memory go?"].why
        assert found["Can the step be replayed elsewhere (Chakra)?"].answer == "no"
    [refused] = explain([*given, "--pytorch-profiler-collect-chakra"], CORE_0_10)
    assert "no argument --pytorch-profiler-collect-chakra" in refused.why and refused.answer == "no"


def test_explain_knows_when_megatron_opens_nvtx_ranges():
    def why(*given: str, release: Release = MAIN) -> str:
        return next(one.why for one in explain(["--profile", *given], release) if "phase" in one.question)

    # Main opens autograd's ranges for --record-shapes alone; releases open them always.
    assert "no NVTX ranges" in why()
    assert "only autograd's" in why("--record-shapes")
    assert "name modules" in why("--nvtx-ranges") and NO_AUTOGRAD in why("--nvtx-ranges")
    assert NO_AUTOGRAD not in why("--nvtx-ranges", "--record-shapes")
    assert all("only autograd's" in why(release=one) for one in RELEASES[1:])
    sizes = {one.name: explain(["--profile"], one)[4].answer for one in RELEASES}
    assert sizes == {"main": "no", "0.18": "no", "0.17": "in part", "older": "in part"}


def parser_of(release: str) -> argparse.ArgumentParser:
    """A parser that refuses what the release does not know: its options as its sources have them."""
    parser = argparse.ArgumentParser(prog=release, allow_abbrev=False, exit_on_error=False)
    for option, given in {**PROFILER, **FURTHER[release]}.items():
        parser.add_argument(option, **given)
    return parser


SWITCH = {"action": "store_true"}
PROFILER = {
    "--profile": SWITCH,
    "--use-pytorch-profiler": SWITCH,
    "--profile-step-start": {"type": int},
    "--profile-step-end": {"type": int},
    "--profile-ranks": {"type": int, "nargs": "+"},
    "--record-memory-history": SWITCH,
    "--memory-snapshot-path": {"type": str},
    "--tensorboard-dir": {"type": str},
}
COLLECT = {f"--pytorch-profiler-collect-{what}": SWITCH for what in ("shapes", "callstack", "chakra")}
NSYS_SWITCHES = {"--record-shapes": SWITCH, "--nvtx-ranges": SWITCH}
FURTHER: dict[str, dict[str, dict[str, object]]] = {
    "megatron": {**COLLECT, **NSYS_SWITCHES},
    "megatron-0.18": {**COLLECT, **NSYS_SWITCHES},
    # megatron/training/arguments.py of 0.17 leaves record_shapes and nvtx_ranges of the class out of its parser.
    "megatron-0.17": COLLECT,
    "megatron-older": {},
}


@pytest.mark.parametrize("given", [TORCH, NSYS], ids=["torch", "nsys"])
def test_the_parser_of_each_release_takes_every_argument_of_its_plan(given):
    for switches in itertools.product((False, True), repeat=3):
        more = dict(zip(("record_shapes", "with_stack", "record_memory_history"), switches, strict=True))
        more["execution_traces"] = given is TORCH
        rendered = targets(given, nvtx_ranges=switches[0], profile_ranks="all" if switches[1] else [0, 9], **more)
        for target in FURTHER:
            words = shlex.split(rendered[target].text)
            taken = parser_of(target).parse_args(words)
            assert taken.profile and taken.record_memory_history == switches[2]
            # explain reads each of them as recorded.
            name = {"megatron": "main", "megatron-older": "older"}.get(target, target.removeprefix("megatron-"))
            assert explain(words, release_of(name))[0].answer == "yes"
    assert {release.arguments for release in RELEASES} == {
        frozenset({*PROFILER, *further} - {"--tensorboard-dir"}) for further in FURTHER.values()
    }


@pytest.mark.parametrize("given", [TORCH, NSYS], ids=["torch", "nsys"])
def test_a_plan_warns_of_each_thing_that_explain_misses_in_its_arguments(given):
    """For every release: what explain answers with no or in part, asked of what the launch will be called with."""
    job = {**JOB, "command": "pretrain_gpt.py --cuda-graph-impl local"}
    sizes = ["--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2"]
    sizes += ["--cuda-graph-impl", "local"]
    for stacks, shapes, start in itertools.product((False, True), (False, True), (2, 20)):
        more = {"with_stack": stacks, "record_shapes": shapes, "profile_step_start": start, "profile_ranks": [0]}
        rendered = targets(given, job=job, **more)
        for release in RELEASES:
            target = {"main": "megatron", "older": "megatron-older"}.get(release.name, f"megatron-{release.name}")
            words = [*sizes, *shlex.split(rendered[target].text)]
            missed = [one.why for one in explain(words, release) if one.answer != "yes"]
            told = warnings(words, release)
            assert set(told) <= set(rendered[target].notes)
            missed = [why for why in missed if "memory history" not in why and "execution traces" not in why]
            assert all(any(why.rstrip(".") in line for line in told) for why in missed)
            assert any("CUDA graphs" in line for line in told)
            assert any("ranks 0 record; name at least" in line for line in told)
            assert any("first iterations" in line for line in told) == (start == 2)


def test_notes_warn_of_what_a_launcher_leaves_out():
    said = " ".join(targets(NSYS, record_memory_history=True)["nemo-run"].notes)
    assert "--cuda-event-trace=false" in said and "profiling.nvtx_ranges=true" in said
    assert "profiling.record_memory_history=true" in said
    bridge = targets(TORCH, record_memory_history=True)["bridge"].notes
    assert [note for note in bridge if "tensorboard_dir" in note] == [
        "Bridge 0.4.0 alone needs logger.tensorboard_dir for it."
    ]


def test_the_plugins_variables_are_read_back_as_configured():
    text = targets(TORCH, profile_ranks=[0, 1, 2, 9], with_stack=False, output_folder="/a b")["plugin"].text
    exports = dict(line.removeprefix("export ").split("=", 1) for line in text.splitlines())
    settings = CaptureSettings.from_environment({name: shlex.split(value)[0] for name, value in exports.items()})
    assert str(settings.iterations) == "20-21"
    assert (settings.ranks, settings.stacks, settings.shapes, settings.out) == ("0-2,9", False, True, "/a b")


def test_snippets_and_launch_scripts_are_valid_in_their_languages():
    for given in (TORCH, NSYS):
        rendered = targets(given)
        for name in ("bridge", "bridge-older", "nemo-run"):
            ast.parse(rendered[name].text)
        for name in ("slurm", "torchrun"):
            subprocess.run(["bash", "-n"], input=rendered[name].text, text=True, check=True)


@pytest.mark.parametrize(("world", "nodes", "each"), [(4, 1, 4), (8, 1, 8), (12, 2, 8), (16, 2, 8)])
def test_launchers_start_as_many_nodes_as_the_ranks_need(world, nodes, each):
    slurm = targets({**TORCH, "job": {**JOB, "world_size": world}})["slurm"].text
    assert f"#SBATCH --nodes={nodes}\n" in slurm
    torchrun = targets({**TORCH, "job": {**JOB, "world_size": world}})["torchrun"].text
    assert f"--nnodes {nodes} --nproc-per-node {each}" in torchrun


def test_the_consequences_name_ranks_size_place_and_disturbance():
    text = " ".join(consequences(ProfilingConfig.model_validate({**TORCH, "output_folder": "/out"})))
    for words in ("0-1,8-9 (replica) of 16", "iterations 20 to 21", "/out", "MB", "slightly higher", "wait"):
        assert words in text


def test_the_table_of_what_ranks_answer_is_that_of_the_code():
    job = {"world_size": 4096, "node_size": 8, "tp": 8, "pp": 8, "layers": 64}
    config = ProfilingConfig.model_validate({**TORCH, "accept_size": True, "job": job})
    text = (Path(__file__).parents[2] / "docs" / "capture.md").read_text()
    table = [line.strip("| ").split(" | ") for line in text.partition("| record | ranks |")[2].splitlines()]
    questions, rows = table[0], table[2:8]
    for question in questions:
        found = {one.name: one for one in proposals(config, CaptureQuestion(question))}
        for name, ranks, *answers in rows:
            answer = answers[questions.index(question)]
            assert (len(found[name].ranks), found[name].prospect.answer) == (int(ranks), answer), (name, question)
        in_order = [("yes", "in part", "no").index(one.prospect.answer) for one in found.values()]
        assert in_order == sorted(in_order)


def test_ranks_are_proposed_within_a_budget(tmp_path):
    path = tmp_path / "capture.json"
    path.write_text(json.dumps(TORCH))
    said = traceviz("capture", "plan", path, "--question", "bubbles").stdout
    assert "one pipeline" in said and 'profile_ranks = "stage"' in said
    asked = traceviz("capture", "plan", path, "--question", "tp", "--most-ranks", "4", "--json")
    (least, *_) = json.loads(asked.stdout)
    assert least["ranks"] == [0, 1, 8, 9] and least["prospect"]["answer"] == "yes"
    refused = traceviz("capture", "plan", path, "--question", "dp", "--most-ranks", "2", code=2).stderr
    assert "takes 4 ranks" in refused
    assert "no cp communication" in traceviz("capture", "plan", path, "--question", "cp", code=2).stderr
    assert "name a question" in traceviz("capture", "plan", path, "--most-gb", "1", code=2).stderr
    answers = json.loads(traceviz("capture", "plan", path, "--json").stdout)["answers"]
    assert {one["question"]: one["answer"] for one in answers}["Who is late in DP communication?"] == "no"


def test_explaining_the_rendered_arguments_promises_what_was_planned():
    rendered = targets(TORCH)
    answers = {one.question: one.answer for one in explain(shlex.split(rendered["megatron"].text))}
    assert answers["Which micro-batch and model chunk?"] == "yes"
    assert answers["How large are the tensors?"] == "yes"
    older = explain(shlex.split(rendered["megatron-older"].text), CORE_0_10)
    assert {one.question: one.answer for one in older}["Which phase is a kernel in?"] == "yes"


def test_explain_says_what_is_missing_and_how_to_fix_it():
    given = ["--profile", "--use-pytorch-profiler", "--pipeline-model-parallel-size", "4", "--num-layers", "8"]
    found = {one.question: one for one in explain([*given, "--save-interval", "11", "--profile-ranks", "0", "1"])}
    assert found["Which micro-batch and model chunk?"].answer == "no"
    assert "--pytorch-profiler-collect-callstack" in found["Which micro-batch and model chunk?"].why
    assert found["Who waits for whom across ranks?"].answer == "in part"
    assert "checkpoint" in found["Is the step a typical one?"].why
    assert "iterations 10 to 11" in found["Is anything recorded?"].why
    assert "iterations 11 to 12" in explain(["--profile"])[0].why
    assert explain(["--profile-step-start", "3"])[0].answer == "no"
    empty = explain(["--profile", "--profile-step-start", "5", "--profile-step-end", "5"])
    assert (empty[0].answer, "crashes" in empty[0].why) == ("no", True)


def test_the_commands_print_json_and_one_line_on_bad_input(tmp_path):
    path = tmp_path / "capture.json"
    path.write_text(json.dumps(TORCH))
    answer = json.loads(traceviz("capture", "plan", path, "--json").stdout)
    assert (answer["ranks"], answer["iterations"]) == ([0, 1, 8, 9], [20, 21])
    assert answer["estimate"]["bytes_rank"] > 0
    only = traceviz("capture", "plan", path, "--target", "megatron-older").stdout
    assert only.startswith("--profile ")
    told = json.loads(traceviz("capture", "explain", "--json", "--", *shlex.split(only)).stdout)
    assert told[0]["answer"] == "yes"
    path.write_text(json.dumps({**TORCH, "use_nsys_profiler": True}))
    refused = traceviz("capture", "plan", path, code=2)
    assert "both on" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    path.write_text(json.dumps(TORCH))
    assert "megatron-older" in traceviz("capture", "plan", path, "--target", "slrum", code=2).stderr
    wrong = traceviz("capture", "explain", "--", "--profile", "--profile-step-end", "x", code=2)
    assert "--profile-step-end" in wrong.stderr


@pytest.mark.parametrize("given", [TORCH, NSYS])
def test_nothing_is_rendered_without_a_title_and_a_name(given):
    rendered = plan(ProfilingConfig.model_validate(given))
    assert len({one.target for one in rendered}) == len(rendered)
    assert all(one.text and one.title for one in rendered)

"""The texts of a plan mean what the configuration says, read back by whoever will read them."""

from __future__ import annotations

import ast
import json
import shlex
import subprocess

import pytest

from tests.end_to_end.conftest import traceviz
from traceviz_dag.capture.configuration import ProfilingConfig
from traceviz_dag.capture.explain import explain, parse_arguments
from traceviz_dag.capture.plan import consequences, plan
from traceviz_dag.capture.plugin import Settings
from traceviz_dag.capture.rendering import Rendering

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
    words = shlex.split(rendered["nsys-slurm"].text)
    name = "/out/profile_%p_%q{SLURM_JOB_ID}_node%q{SLURM_NODEID}_rank%q{SLURM_PROCID}"
    assert words[:8] == ["nsys", "profile", "-s", "none", "-o", name, "-t", "cuda,nvtx"]
    assert words[8:12] == [
        *("--force-overwrite", "true", "--capture-range=cudaProfilerApi", "--capture-range-end=stop"),
    ]
    assert words[12].startswith("--gpu-metrics-devices")
    assert "rank%q{RANK}" in rendered["nsys-torchrun"].text
    assert "--nvtx-ranges" in rendered["megatron"].text
    assert "nsys profile" in rendered["torchrun"].text
    assert not {"plugin", "traceviz"} & rendered.keys()


def test_the_plugins_variables_are_read_back_as_configured():
    text = targets(TORCH, profile_ranks=[0, 1, 2, 9], with_stack=False, output_folder="/a b")["plugin"].text
    exports = dict(line.removeprefix("export ").split("=", 1) for line in text.splitlines())
    settings = Settings.from_environment({name: shlex.split(value)[0] for name, value in exports.items()})
    assert str(settings.iterations) == "20-21"
    assert (settings.ranks, settings.stacks, settings.shapes, settings.out) == ("0-2,9", False, True, "/a b")


def test_snippets_and_launch_scripts_are_valid_in_their_languages():
    for given in (TORCH, NSYS):
        rendered = targets(given)
        for name in ("bridge", "bridge-older", "nemo-run"):
            ast.parse(rendered[name].text)
        for name in ("slurm", "torchrun"):
            subprocess.run(["bash", "-n"], input=rendered[name].text, text=True, check=True)


def test_the_consequences_name_ranks_size_place_and_disturbance():
    text = " ".join(consequences(ProfilingConfig.model_validate({**TORCH, "output_folder": "/out"})))
    for words in ("0-1,8-9 (replica) of 16", "iterations 20 to 21", "/out", "MB", "slightly higher", "wait"):
        assert words in text


def test_explaining_the_rendered_arguments_promises_what_was_planned():
    rendered = targets(TORCH)
    answers = {one.question: one.answer for one in explain(shlex.split(rendered["megatron"].text))}
    assert answers["Which micro-batch and model chunk?"] == "yes"
    assert answers["How large are the tensors?"] == "yes"
    older = explain(shlex.split(rendered["megatron-older"].text), today=False)
    assert {one.question: one.answer for one in older}["Which phase is a kernel in?"] == "yes"


def test_explain_says_what_is_missing_and_how_to_mend_it():
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

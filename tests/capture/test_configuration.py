"""What may be captured: each refusal names what is wrong, why, and a way out."""

from __future__ import annotations

import pytest

from traceviz_dag.capture.configuration import ProfilingConfig, read_configuration
from traceviz_dag.errors import BadInputError


def config(job: dict[str, object] | None = None, **fields: object) -> ProfilingConfig:
    return ProfilingConfig.model_validate({"use_pytorch_profiler": True, **fields, "job": job or {}})


@pytest.mark.parametrize(
    ("fields", "job", "words"),
    [
        ({"use_nsys_profiler": True}, {}, ["both on", "CUPTI", "choose one"]),
        ({"use_pytorch_profiler": False}, {}, ["no profiler is on", "use_nsys_profiler"]),
        ({"profile_step_start": 7, "profile_step_end": 7}, {}, ["empty", "crashes", "set it to 8"]),
        ({"profile_step_start": 9, "profile_step_end": 4}, {}, ["before", "swap"]),
        (
            {"use_pytorch_profiler": False, "use_nsys_profiler": True},
            {"fault_tolerance": True},
            ["fault tolerance", "drops nsys", "switch job.fault_tolerance off"],
        ),
        ({"wait_steps": 12, "warmup_steps": 3, "profile_step_end": 14}, {}, ["inside its warm-up", "crashes", "15"]),
        ({"wait_steps": 2, "profile_step_start": 10, "profile_step_end": 12}, {}, ["record at 3", "wait_steps", "9"]),
        ({"warmup_steps": 4, "profile_step_start": 2, "profile_step_end": 5}, {}, ["do not fit", "start at 4"]),
        (
            {"profile_step_start": 98, "profile_step_end": 103},
            {"save_interval": 50},
            ["checkpoint", "iteration 100", "idle", "101"],
        ),
        (
            {"profile_ranks": "all"},
            {"world_size": 1024, "tp": 8, "pp": 4, "layers": 96, "microbatches": 64},
            ["1024 ranks with call stacks", "TB", "for about 60 s", "replica", "accept_size"],
        ),
        ({"profile_ranks": [8]}, {}, ["has 8", "0 to 7"]),
        ({"profile_ranks": []}, {}, ["empty", "all ranks", "none"]),
        ({}, {"tp": 3}, ["job", "3"]),
        ({"nsys_trace": ["cuda", "gpu"]}, {}, ["gpu", "nsys traces"]),
    ],
)
def test_what_cannot_be_captured_is_refused_with_reason_and_remedy(fields, job, words):
    with pytest.raises(ValueError) as refusal:
        config(job, **fields)
    missing = [word for word in words if word not in str(refusal.value)]
    assert not missing


def test_sound_neighbours_of_the_refused_ones_pass():
    config(profile_step_start=7, profile_step_end=8)
    config(wait_steps=9, profile_step_start=10, profile_step_end=11)
    config(warmup_steps=0, profile_step_start=0, profile_step_end=1)
    config({"save_interval": 50}, profile_step_start=101, profile_step_end=103)
    config({"save_interval": 12}, profile_step_start=13, profile_step_end=14)
    config({"fault_tolerance": True})
    config({"world_size": 1024, "tp": 8, "pp": 4, "layers": 96, "microbatches": 64}, profile_ranks="replica")
    large = {"world_size": 1024, "tp": 8, "pp": 4, "layers": 96, "microbatches": 64}
    config(large, profile_ranks="all", accept_size=True)


def test_a_checkpoint_is_looked_for_where_nsys_records():
    # Megatron starts nsys one iteration later than the PyTorch profiler, for the same arguments.
    config({"save_interval": 12}, profile_step_start=10, profile_step_end=12)
    with pytest.raises(ValueError, match="after iteration 12"):
        config(
            {"save_interval": 12},
            use_pytorch_profiler=False,
            use_nsys_profiler=True,
            profile_step_start=10,
            profile_step_end=12,
        )


@pytest.mark.parametrize(
    ("choice", "ranks"),
    [
        ("replica", (0, 1, 8, 9)),
        ("stage", (0, 8)),
        ("node", (0, 4, 8, 12)),
        ("all", tuple(range(16))),
        ([5, 3, 5], (3, 5)),
    ],
)
def test_the_choice_of_ranks_follows_the_layout(choice, ranks):
    assert config({"world_size": 16, "node_size": 4, "tp": 2, "pp": 2}, profile_ranks=choice).ranks() == ranks


def test_a_replica_with_experts_holds_every_expert():
    # ep 4 x pp 2 over 8 ranks: dp ranks hold different experts, so only all of them are a complete model.
    assert config({"world_size": 8, "pp": 2, "ep": 4}).ranks() == tuple(range(8))


def test_a_file_says_which_of_its_lines_is_wrong(tmp_path):
    path = tmp_path / "capture.toml"
    path.write_text('use_pytorch_profiler = true\n[job]\nworld_size = "many"\n')
    with pytest.raises(BadInputError, match=r"capture\.toml: job\.world_size"):
        read_configuration(path)
    path.write_text("use_pytorch_profiler = true\nprofile_step = 3\n")
    with pytest.raises(BadInputError, match="profile_step"):
        read_configuration(path)
    path.write_text("use_pytorch_profiler = ")
    with pytest.raises(BadInputError, match="is no TOML file"):
        read_configuration(path)
    with pytest.raises(BadInputError, match="cannot be read"):
        read_configuration(tmp_path / "absent.toml")

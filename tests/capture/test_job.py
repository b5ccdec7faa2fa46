"""What the plugin says and does in jobs of its own process: nothing silent, and nothing that changes the job."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.capture.windows import CHECKED, UNCHECKED

pytestmark = pytest.mark.long
LOOP = """
import os, sys
import torch
{before}
torch.manual_seed(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(1, 7):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    {step}
    optimizer.zero_grad()
print("trained to", float(loss.detach()), *sys.argv[1:])
"""


class Job:
    """Runs a script with the plugin on and keeps what it said."""

    def __init__(self, python: Path, plugin_folder: Path, folder: Path) -> None:
        self.python = python
        self.plugin_folder = plugin_folder
        self.folder = folder
        self.out = folder / "out"

    def run(self, *call: str, code: int = 0, **variables: str) -> list[str]:
        """Run ``python -m traceviz_capture CALL``; returns the plugin's lines."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TRACEVIZ_CAPTURE_")}
        environment |= {**CHECKED, "PYTHONPATH": str(self.plugin_folder), "TRACEVIZ_CAPTURE_OUT": str(self.out)}
        result = subprocess.run(
            [self.python, "-m", "traceviz_capture", *call],
            env={**environment, **variables},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert result.returncode == code, f"{result.returncode}: {result.stdout}{result.stderr}"
        self.printed = result.stdout
        return [line for line in result.stderr.splitlines() if line.startswith("traceviz_capture: ")]

    def loop(self, iterations: str, before: str = "", step: str = "optimizer.step()", **variables: str) -> list[str]:
        """Run a loop of six iterations."""
        (self.folder / "loop.py").write_text(LOOP.format(before=before, step=step))
        return self.run("loop.py", "a", "b", TRACEVIZ_CAPTURE_ITERATIONS=iterations, **variables)

    def recorded(self) -> list[int]:
        """Iterations that have a trace."""
        return sorted(int(path.name.removeprefix("iteration_")) for path in self.out.glob("iteration_*"))


@pytest.fixture
def job(capture_python, plugin_folder, tmp_path) -> Job:
    return Job(capture_python, plugin_folder, tmp_path)


@pytest.fixture(scope="module")
def untouched(capture_python, plugin_folder, tmp_path_factory) -> str:
    """What the loop prints when nobody watches."""
    job = Job(capture_python, plugin_folder, tmp_path_factory.mktemp("untouched"))
    assert not [line for line in job.loop("") if "ITERATIONS is not set" not in line]
    return job.printed


def test_it_says_who_counts_and_which_iterations_never_came(job, untouched):
    said = job.loop("1-2,5-3000000000", TRACEVIZ_CAPTURE_WARMUP="3", TRACEVIZ_CAPTURE_MEMORY="1")
    assert len(said) == 2
    assert "optimizer counts, now at iteration 2; records 1-2,5-3000000000 of replica below" in said[0]
    assert "iterations 1,7-3000000000 never came; 2 to 6 were counted" in said[1]
    assert job.recorded() == [2, 5, 6]
    assert job.printed == untouched


def test_the_first_iterations_number_can_be_given(job):
    job.loop("103", TRACEVIZ_CAPTURE_FIRST="101")
    assert job.recorded() == [103]


def test_ranks_beyond_the_job_are_one_line(job):
    said = job.loop("2", TRACEVIZ_CAPTURE_RANKS="7", WORLD_SIZE="4", RANK="0")
    assert len([line for line in said if "names 7, but the job has ranks 0 to 3, so no rank records" in line]) == 1
    assert job.recorded() == []


def test_a_loop_that_nobody_counts_is_one_line(job):
    [line] = job.loop("2", step="pass")
    assert "nothing is recorded: no iteration was counted" in line
    assert "traceviz_capture.step(iteration)" in line


def test_a_module_is_run_as_python_runs_it(job, untouched):
    package = job.folder / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(LOOP.format(before="", step="optimizer.step()"))
    job.run("-m", "package", "a", "b", TRACEVIZ_CAPTURE_ITERATIONS="3")
    assert job.printed == untouched
    assert job.recorded() == [3]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (["-m", "no.such.package"], "there is no module no.such.package to run"),
        (["absent.py"], "there is no script absent.py to run"),
        ([], "usage:"),
        (["-m"], "usage:"),
    ],
)
def test_a_call_that_cannot_run_is_one_line(call, words, job):
    said = job.run(*call, code=1)
    assert [words in line for line in said] == ([True] if words != "usage:" else [])


SABOTAGE = {
    "a rank that is no number": "import traceviz_capture as p; p._rank = lambda: int('x')",
    "a profiler that does not warm up": "torch.profiler.profile.prepare_trace = None",
    "a profiler that does not start": "torch.profiler.profile.start_trace = lambda _: [][0]",
    "a profiler that does not stop": "torch.profiler.profile.stop_trace = lambda _: {}[0]",
    "a header that cannot be made": "import traceviz_capture as p; p.Capture._header = lambda *_: {1, 2}",
    "an unknown torch": "del torch._C._current_graph_task_id; torch.distributed.is_initialized = None",
}


@pytest.mark.parametrize("fault", SABOTAGE)
def test_a_fault_of_the_plugin_is_a_line_and_the_job_does_not_notice(fault, job, untouched):
    said = job.loop("2-6", before=SABOTAGE[fault])
    assert job.printed == untouched
    assert len([line for line in said if "nothing more is recorded in this process" in line]) <= 1
    assert len(said) <= 3


def test_an_optimizer_that_steps_inside_the_backward_pass_records_nothing_and_says_so(job):
    step = "pass"
    before = """
def in_backward(parameter):
    optimizer.step()

class Linear(torch.nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.weight.register_post_accumulate_grad_hook(in_backward)

torch.nn.Linear = Linear
"""
    said = job.loop("2-6", before=before, step=step)
    assert len([line for line in said if "inside a backward pass" in line]) == 1
    assert job.recorded() == []


def test_compiled_steps_and_scripted_functions_stay_as_they_are(job):
    before = """
from torch.profiler import record_function

@torch.jit.script
def scripted(x):
    with record_function("scripted"):
        return x + 1

assert float(scripted(torch.ones(1))) == 2
"""
    step = "torch.compile(lambda: optimizer.step(), backend='eager')()"
    [line] = job.loop("2-6", before=before, step=step)
    assert "inside a compiled region, where no profiler may start" in line
    assert "trained to" in job.printed


def test_steps_of_another_thread_record_nothing_and_say_so(job, untouched):
    step = """
    import threading
    thread = threading.Thread(target=optimizer.step)
    thread.start()
    thread.join()
"""
    said = job.loop("2-6", step=step.strip())
    assert len([line for line in said if "a thread that is not the main one" in line]) == 1
    assert job.printed == untouched
    assert job.recorded() == []


def test_a_child_forked_in_a_window_records_nothing(job, untouched):
    step = """
    optimizer.step()
    child = os.fork()
    if child == 0:
        import resource
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        generator = torch.Generator()
        for _ in range(20_000):
            torch.randn(8, generator=generator)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        os._exit(3 if grown > 12_000 else 0)
    assert os.waitpid(child, 0)[1] == 0
"""
    said = job.loop("2-4", step=step.strip(), TRACEVIZ_CAPTURE_STACKS="1", **UNCHECKED)
    assert job.recorded() == [2, 3, 4]
    assert job.printed == untouched
    assert len(said) == 1


FORK = """
import signal
def fork(number):
    if number in (3, 5):
        pid = os.fork()
        if pid == 0:
            signal.alarm(30)
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7, "the child crashed or hung"
"""


def test_a_child_forked_inside_a_window_or_after_it_leaves_with_its_own_status(job):
    job.loop("2-4", before=FORK, step="optimizer.step(); fork(number)", **UNCHECKED)
    assert job.recorded() == [2, 3, 4]


PROFILE_ON_A_THREAD = """
import threading
def profile(number):
    def run():
        with torch.profiler.profile(with_stack=True) as profiler:
            torch.ones(3) + 1
        profiler.export_chrome_trace(f"own_{number}.json")
        print(number, len(profiler.events()) > 0)
    if number in (3, 5):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
"""


def test_a_profiler_of_the_jobs_on_another_thread_kills_nobody(job):
    said = job.loop("2-6", before=PROFILE_ON_A_THREAD, step="optimizer.step(); profile(number)")
    assert any("has its own profiler: nothing more is recorded" in line for line in said)
    assert any("profiler on another thread records nothing: a window was open" in line for line in said)
    assert job.recorded() == [2, 3]
    assert job.printed.splitlines()[:2] == ["3 False", "5 True"]


def test_a_job_that_changes_its_folder_and_shares_a_disk_of_the_node_loses_nothing(job):
    shared = job.folder / "shared"
    shared.mkdir()
    other = shared / "rank_0000_iter_3.checkpoint.pt"
    other.write_text("of somebody else")
    step = "optimizer.step(); os.makedirs(str(number)); os.chdir(str(number))"
    job.loop("2-5", step=step, TRACEVIZ_CAPTURE_OUT="out", TRACEVIZ_CAPTURE_STAGING="shared")
    assert job.recorded() == [2, 3, 4, 5]
    assert other.read_text() == "of somebody else"


def test_of_iterations_that_are_counted_again_the_first_is_kept(job):
    said = job.loop("2-3", step="import traceviz_capture; traceviz_capture.step(number % 4); optimizer.step()")
    assert len([line for line in said if "counted again" in line]) == 1
    assert not [line for line in said if "is not written" in line]
    assert job.recorded() == [2, 3]


def test_an_iteration_whose_step_the_scaler_leaves_out_counts(job):
    before = "scaler = torch.amp.GradScaler('cpu')"
    step = "[p.grad.fill_(float('inf')) for p in model.parameters() if number in (3, 4)]; scaler.scale(loss.detach())"
    said = job.loop("3-6", before=before, step=f"{step}; scaler.step(optimizer); scaler.update()")
    assert job.recorded() == [3, 4, 5, 6], said


def test_a_profile_function_of_the_jobs_stays(job):
    before = "seen = []\nsys.setprofile(lambda *event: seen.append(event[1]))"
    step = "optimizer.step(); assert sys.getprofile() is not None and len(seen); seen.clear()"
    said = job.loop("2-4", before=before, step=step)
    assert any("sys.setprofile): call stacks are not recorded" in line for line in said)
    assert job.recorded() == [2, 3, 4]

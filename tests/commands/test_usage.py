"""Calls whose words are off: one line that says what is wrong and where help is, exit code 2."""

import pickle

import pytest

from tests.damage import call
from tests.small_run import write_run
from traceviz_dag.commands.main import _run
from traceviz_dag.lake.inputs import IterationInputs, register


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["anlyze", "x"],
            "'anlyze' is no command, and no file or folder here has that name; did you mean 'analyze'? "
            "(see traceviz --help)",
        ),
        (["job-7"], "'job-7' is no command, and no file or folder here has that name (see traceviz --help)"),
        (
            ["--home", "h", "findings"],
            "No such option: --home (Possible options: --help); options of a command come after it "
            "(see traceviz --help)",
        ),
        (["analyze"], "Missing argument 'paths' (see traceviz analyze --help)"),
        (
            ["overlap", "--end-ns", "9" * 30],
            f"--end-ns is a time that no clock has; give nanoseconds of at most {2**62}",
        ),
        (["nsys", "summary", "x", "--gpu"], "Option '--gpu' requires an argument"),
        (["classify", "/"], "/ is a folder; use traceviz analyze for many files"),
        *(
            ([command, "--rules", "r.toml"], "--rules is for traces: give their path")
            for command in ("critical-path", "what-if", "efficiencies", "waits", "clocks", "periods", "pipelines")
        ),
    ],
)
def test_words_that_are_off_are_one_line(capsys, words, line):
    assert _run(words) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"traceviz: {line}\n")


def test_a_group_without_a_command_prints_its_help_and_no_fault(capsys):
    assert _run(["nsys"]) == 2
    printed = capsys.readouterr()
    assert "summary" in printed.out and printed.err == ""


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MemoryError(), "out of memory"),
        (RuntimeError("can't start new thread"), "the system gives no further thread"),
    ],
)
def test_too_little_memory_is_no_fault_of_the_program(capsys, monkeypatch, error, told):
    def exhausted(*_, **__):
        raise error

    monkeypatch.setattr("traceviz_dag.commands.main.app", exhausted)
    assert _run(["what-if"]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"traceviz: {told}") and printed.err.count("\n") == 1


def test_a_run_whose_name_is_too_long_for_a_file_is_refused_before_anything_is_written(capsys, tmp_path):
    run = write_run(tmp_path / ("x" * 250), world=2)
    assert _run(["analyze", str(run), "--home", str(tmp_path / "home")]) == 2
    assert "takes 250 bytes in the name of a file, over 215; shorten" in capsys.readouterr().err
    assert not (tmp_path / "home").exists()


def test_a_path_alone_is_analysed_unless_a_command_has_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("job-7", "top.json"):
        (tmp_path / name).mkdir()
    (tmp_path / "gate").mkdir()
    for words in (["job-7"], [str(tmp_path / "job-7"), "--home", "elsewhere"], ["./gone"], ["top.json"]):
        assert _run(words) == 2
        fault = "no such file or folder" if "gone" in words[0] else "no trace files"
        assert fault in capsys.readouterr().err, words
    assert _run(["gate"]) == 2
    assert "no trace files" not in capsys.readouterr().err


def test_a_snapshot_of_gpu_memory_in_the_place_of_a_trace_leads_to_the_command_that_reads_it(tmp_path, capsys):
    snapshot = tmp_path / "snap 1.pickle"
    snapshot.write_bytes(pickle.dumps({"segments": [], "device_traces": []}))
    for given in (tmp_path, snapshot):
        assert _run(["analyze", str(given)]) == 2
        assert f"traceviz memory summary '{snapshot}'" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["findings", "overlap", "topology", "report"])
def test_a_run_of_the_home_in_the_place_of_a_path_leads_to_the_option_that_takes_it(tmp_path, monkeypatch, command):
    register(tmp_path / "home", IterationInputs(run="job", iteration=7, folder="/traces/job", ranks=()))
    monkeypatch.chdir(tmp_path)
    answer = call(command, "job", "--home", "home")
    assert answer.code == 2 and "job: no such file or folder; the home has a run of that name" in answer.err
    assert "--run job" in answer.err
    assert "--run" not in call(command, "other", "--home", "home").err
    for given, option in (("jo", "--run job?"), ("jb@7", "--run job?"), ("job@8", "--run job --iteration 7")):
        answer = call(command, given, "--home", "home")
        assert answer.code == 2 and f"{given}: no such file or folder" in answer.err and option in answer.err

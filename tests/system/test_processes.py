"""No process outlives the one that wants its results, and the death of a worker costs no result."""

from __future__ import annotations

import errno
import multiprocessing
import multiprocessing.queues
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from traceviz_dag.errors import OutputError
from traceviz_dag.system import processes
from traceviz_dag.system.processes import WorkerDiedError, spread, spread_in_order, stand_back
from traceviz_dag.system.semaphores import name_semaphores, remove_orphans

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

ORPHAN_SECONDS = 20.0
"""On a machine that does nothing else it takes less than five; here other tests take their share of the processors."""


def processes_with(mark: str) -> set[int]:
    found = set()
    for place in Path("/proc").iterdir():
        try:
            if place.name.isdigit() and f"MARK={mark}".encode() in (place / "environ").read_bytes().split(b"\0"):
                state = (place / "stat").read_text().rpartition(")")[2].split()[0]
                found |= {int(place.name)} if state != "Z" else set()
        except OSError:
            continue
    return found


def die_or_double(folder_and_number: tuple[str, int]) -> int:
    """Item 2 kills its worker the first time; item 3 always does."""
    folder, number = folder_and_number
    met = Path(folder) / str(number)
    if number == 3 or (number == 2 and not met.exists()):
        met.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * number


def test_a_worker_that_dies_costs_at_most_its_own_item(tmp_path: Path):
    items = [(str(tmp_path), number) for number in range(6)]
    results = dict(spread(die_or_double, items, 2))
    assert isinstance(results.pop(3), WorkerDiedError)
    assert results == {number: 2 * number for number in (0, 1, 2, 4, 5)}


def die_amid_the_answer(number: int) -> bytes:
    """Item 1 kills its worker once a few bytes of what it gives are sent."""

    def send_a_part(connection: Connection, message: bytes) -> None:
        os.write(connection.fileno(), message[:9])
        os.kill(os.getpid(), signal.SIGKILL)

    if number == 1:
        Connection._send = send_a_part
    return bytes(10)


def test_a_worker_that_dies_while_it_sends_its_result_is_not_waited_for():
    results: dict[int, bytes | WorkerDiedError] = {}
    spreading = threading.Thread(target=lambda: results.update(spread(die_amid_the_answer, range(3), 2)), daemon=True)
    spreading.start()
    spreading.join(60)
    assert isinstance(results.pop(1), WorkerDiedError)
    assert results == {0: bytes(10), 2: bytes(10)}


def nice_after_standing_back(times: int) -> int:
    for _ in range(times):
        stand_back()
    return os.getpriority(os.PRIO_PROCESS, 0)


def test_a_worker_stands_back_once_however_often_it_is_told_to():
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert dict(spread(nice_after_standing_back, [3], 1)) == {0: max(own, processes._BEHIND)}
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


def test_the_server_of_workers_that_is_killed_costs_nothing(monkeypatch):
    assert dict(spread(abs, [-1], 1)) == {0: 1}
    server = forkserver._forkserver
    os.kill(server._forkserver_pid, signal.SIGKILL)
    ensure, looks = server.ensure_running, []

    def seems_to_run() -> None:
        """The first time the system has not ended it yet."""
        looks.append(ensure() if looks else None)

    monkeypatch.setattr(server, "ensure_running", seems_to_run)
    assert dict(spread(abs, [-1, -2, -3], 2)) == {0: 1, 1: 2, 2: 3}


def test_results_in_order_come_in_order_and_a_dead_worker_is_reported_in_one_line(tmp_path: Path):
    assert list(spread_in_order(die_or_double, [(str(tmp_path), number) for number in (5, 2, 4, 1)], 2)) == [
        10,
        4,
        8,
        2,
    ]
    with pytest.raises(WorkerDiedError, match="fewer workers or more memory"):
        list(spread_in_order(die_or_double, [(str(tmp_path), 3)], 2))


def no_thread(*_: object) -> None:
    raise RuntimeError("can't start new thread")


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_want_of_threads_and_of_shared_memory_is_reported_and_nothing_waits_for_ever(monkeypatch):
    with monkeypatch.context() as patch:
        # As where memory is limited: the thread that hands tasks to workers fails.
        patch.setattr(multiprocessing.queues.Queue, "_start_thread", no_thread)
        patch.setattr(threading, "excepthook", lambda _: None)
        (result,) = spread(complain, [0], 1)
        assert isinstance(result[1], WorkerDiedError)
    monkeypatch.setattr(processes, "ProcessPoolExecutor", no_room)
    with pytest.raises(OutputError, match=r"/dev/shm: .*\(No space left on device\); free space there"):
        list(spread(complain, [0], 1))


def complain(number: int) -> int:
    if number == 1:
        raise ValueError("from the work")
    return number


def long_answer(number: int) -> bytes:
    return bytes(10**8 if number else 1)


@pytest.mark.parametrize("seconds", [0.1, 0.2, 0.4])
def test_who_wants_no_further_results_waits_for_none_that_is_being_sent(seconds: float):
    results = spread_in_order(long_answer, range(5), 2)
    assert next(results) == b"\0"
    time.sleep(seconds)
    ended = threading.Thread(target=results.close, daemon=True)
    ended.start()
    ended.join(20)
    assert not ended.is_alive()


def test_an_error_is_raised_and_what_waits_is_not_begun():
    with pytest.raises(ValueError, match="from the work"):
        list(spread(complain, range(50), 2))


MAIN = """
from tests.system.test_processes import compute, sleep_long
from traceviz_dag.system.processes import spread
if __name__ == "__main__":
    for _ in spread({work}, range(4), 2):
        pass
"""


def compute(_: int) -> None:
    """Holds the interpreter's lock in one long call, as a decoder does."""
    begin()
    sum(range(10**11))


def begin() -> None:
    (Path(os.environ["BEGUN"]) / str(os.getpid())).touch()


@pytest.mark.parametrize("work", ["sleep_long", "compute"])
@pytest.mark.parametrize("whole", [False, True], ids=["main", "group"])
def test_workers_end_with_the_process_that_started_them(tmp_path: Path, monkeypatch, work: str, whole: bool):
    script, begun = tmp_path / "main.py", tmp_path / "begun"
    script.write_text(MAIN.format(work=work))
    begun.mkdir()
    mark = f"{os.getpid()}-{work}-{whole}"
    temporary = Path(tempfile.mkdtemp(prefix="t"))
    environment = os.environ | {"MARK": mark, "BEGUN": str(begun), "TMPDIR": str(temporary)}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    main = subprocess.Popen([sys.executable, str(script)], env=environment, start_new_session=True)
    deadline = time.monotonic() + 60
    while len(list(begun.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(processes_with(mark)) >= 5, "main, the server that workers fork from, its tracker and two workers"
    (os.killpg if whole else os.kill)(main.pid, signal.SIGKILL)
    main.wait()
    deadline = time.monotonic() + ORPHAN_SECONDS
    while processes_with(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = {process: told(process) for process in processes_with(mark)}
    for process in left:
        os.kill(process, signal.SIGKILL)
    assert not left
    # Where Python's own process for that was killed, too, the next command removes what they shared, whoever gives it.
    assert whole or not semaphores_of(main.pid)
    mine, context = os.getpid(), multiprocessing.get_context("spawn")
    name_semaphores()
    lock = context.Lock()
    assert [path.name[:9] for path in temporary.iterdir()] == ["traceviz_"], "its sockets, in a folder of ours"
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    remove_orphans()
    assert not semaphores_of(main.pid) and semaphores_of(mine)
    temporary.rmdir()
    del lock


def semaphores_of(process: int) -> list[Path]:
    return list(Path("/dev/shm").glob(f"sem.traceviz-*-{process}-*"))


def told(process: int) -> str:
    """What a process is, and what it waits for."""
    place = Path("/proc", str(process))
    with suppress(OSError):
        words = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:100]
        return f"{words} {(place / 'status').read_text()[:200]} {(place / 'wchan').read_text()}"
    return "gone"


def sleep_long(_: int) -> None:
    begin()
    time.sleep(600)


CHILD = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
time.sleep(600)
"""
SERVER = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {CHILD!r}])
time.sleep(600)
"""
STARTS_A_SERVER = f"""
import os, sys
from traceviz_dag.system.processes import end_children_with_me
end_children_with_me()
os.execve(sys.executable, [sys.executable, "-c", {SERVER!r}], dict(os.environ))
"""


def test_children_and_grandchildren_of_a_killed_server_end_also_in_sessions_of_their_own():
    mark = f"{os.getpid()}-dev"
    command = [sys.executable, "-c", STARTS_A_SERVER]
    main = subprocess.Popen(command, env=os.environ | {"MARK": mark}, start_new_session=True)
    deadline = time.monotonic() + 60
    while len(processes_with(mark)) < 4 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(processes_with(mark)) == 4, "the server, its child, its grandchild, and who watches them"
    main.kill()
    main.wait()
    deadline = time.monotonic() + ORPHAN_SECONDS
    while processes_with(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not processes_with(mark)


def test_workers_run_no_file_of_the_folder_that_they_start_in(tmp_path: Path):
    """A folder of downloads may hold a module that Python's own would import."""
    for name in ("nt", "random", "signal", "selectors", "struct", "socket", "tempfile"):
        (tmp_path / f"{name}.py").write_text(
            f"open({str(tmp_path / 'run.txt')!r}, 'a').write('{name}'); raise SystemExit"
        )
    code = (
        "from traceviz_dag.system.processes import spread\n"
        "if __name__ == '__main__':\n"
        "    print(sorted(result for _, result in spread(abs, [-3, 4], 2)))\n"
    )
    script = tmp_path / "job" / "script.py"
    script.parent.mkdir()
    script.write_text(code)
    ended = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.stdout, (tmp_path / "run.txt").exists()) == ("[3, 4]\n", False), ended.stderr


def test_a_script_that_starts_workers_without_a_guard_is_run_once(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(
        "from traceviz_dag.system.processes import spread\n"
        "print('run')\n"
        "print(sorted(result for _, result in spread(abs, [-3, 4], 2)))\n"
        "print(__file__ is not None and __spec__)\n"
    )
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert ended.stdout.split("\n")[:3] == ["run", "[3, 4]", "None"], ended.stderr


SLOW = "import pathlib, time\npathlib.Path({begun!r}).touch()\ntime.sleep(600)\n"
SLOW_START = """import pathlib, signal, sys, time
if "forkserver" in str(sys.orig_argv):
    pathlib.Path({begun!r}).touch()
    while signal.SIGINT not in signal.sigpending():
        time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("module", "slow", "start"),
    [
        ("slow", SLOW, "start_ahead(['slow'])"),
        ("sitecustomize", SLOW_START, "start_ahead([])"),
        ("sitecustomize", SLOW_START, "list(spread(abs, [1, 2], 2))"),
    ],
)
def test_an_interrupt_while_the_server_of_workers_starts_is_reported_by_nobody_else(
    tmp_path: Path, module: str, slow: str, start: str
):
    begun = tmp_path / "begun"
    (tmp_path / f"{module}.py").write_text(slow.format(begun=str(begun)))
    code = (
        "import time\n"
        "from traceviz_dag.system.processes import spread, start_ahead\n"
        "try:\n"
        f"    {start}\n"
        "    time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    print('stopped')\n"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    main = subprocess.Popen(
        [sys.executable, "-c", f"import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n{code}"],
        env=environment,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not begun.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(main.pid, signal.SIGINT)
    assert main.communicate(timeout=ORPHAN_SECONDS) == ("stopped\n", "")


@pytest.mark.parametrize("sent", ["b''", "pickle.dumps({}) + b'cbuiltins\\nopen\\n(V/nowhere\\ntR.'"])
def test_a_worker_whose_start_was_interrupted_says_nothing(sent: str):
    code = (
        "import os, pickle\n"
        "from multiprocessing import forkserver\n"
        "from traceviz_dag.system.processes import start_ahead\n"
        "start_ahead([])\n"
        "ends, told = forkserver.connect_to_new_process([])\n"
        f"os.write(told, {sent})\n"
        "os.close(told)\n"
        "forkserver.read_signed(ends)\n"
        "print('ended with', forkserver.read_signed(ends))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr) == ("ended with 1\n", "")

"""The whole way that each kind of input takes, in process, and how it ended."""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import resource
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from traceviz_dag.commands.common.output import plain_streams
from traceviz_dag.errors import IncompleteError, TracevizError

WHOLE, PARTIAL = "whole", "partial"
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_LONGEST_LINE = 4000


class UnclearError(Exception):
    """What a user saw breaks a promise: a refusal of several lines, control characters on the terminal."""


def is_line(text: str) -> bool:
    """Whether a refusal is one readable line."""
    return "\n" not in text.strip() and len(text) <= _LONGEST_LINE


def check_line(text: str) -> None:
    """Refuse a refusal that is not one readable line."""
    if not is_line(text):
        raise UnclearError(f"a refusal of {text.count(chr(10)) + 1} lines and {len(text)} letters")


def check_output(text: str) -> None:
    """Refuse output that a terminal would obey."""
    found = _CONTROL.search(text)
    if found is not None:
        raise UnclearError(f"the control character {found[0]!r} in the output")


def kineto(path: Path, chance: random.Random) -> str:
    """Header, peek, topology, and the rank's tables, as they are written."""
    from traceviz_dag.classify.topology.unite import topology_tables, unite
    from traceviz_dag.pipeline.formats.trace_format import RankTrace
    from traceviz_dag.pipeline.ranks import analyse_rank
    from traceviz_dag.read.kineto.peek import peek, peek_header
    from traceviz_dag.read.layouts import TraceFile
    from traceviz_dag.read.placement import resolve

    placement = resolve([TraceFile(path, "run", path.name, None, None)], rank=None if chance.random() < 0.2 else 1)
    for line in (*map(str, placement.problems), *placement.warnings):
        check_line(line)
    header = peek_header(path)
    seen = peek(path)
    topology = unite({1: header})
    tables = analyse_rank(RankTrace(path, path.name, 1, next(iter(seen.steps), None)), topology, _rules())
    _check_tables([*topology_tables(topology), *tables.values()], chance)
    row = tables["traces"].to_pylist()[0]
    return WHOLE if row["status"] == "read" else PARTIAL


def synchronizations(path: Path, chance: random.Random) -> str:
    """The rank's tables, and the causes of its step."""
    from traceviz_dag.classify.topology.unite import unite
    from traceviz_dag.pipeline.causes import causes_tables
    from traceviz_dag.pipeline.formats.trace_format import RankTrace
    from traceviz_dag.pipeline.ranks import analyse_rank
    from traceviz_dag.read.kineto.peek import peek_header
    from traceviz_dag.tables import COLLECTIVES, MESSAGES

    topology = unite({1: peek_header(path)})
    tables = analyse_rank(RankTrace(path, path.name, 1, 7), topology, _rules())
    none = COLLECTIVES.schema.empty_table(), MESSAGES.schema.empty_table()
    found = causes_tables(_OneRank(topology, tables), *none)
    _check_tables([*tables.values(), *found.values()], chance)
    return WHOLE if tables["traces"].to_pylist()[0]["status"] == "read" else PARTIAL


class _OneRank:
    """An iteration of one rank, as the causes read it."""

    ranks = (1,)

    def __init__(self, topology: Any, tables: Mapping[str, pa.Table]) -> None:
        self.topology, self._tables = topology, tables

    def kernels(self, rank: int, columns: Sequence[str]) -> pa.Table:
        return self._tables["kernels"].select(list(columns))

    def synchronizations(self, rank: int) -> pa.Table:
        return self._tables["synchronizations"]

    def hidden_waits(self, rank: int) -> Sequence[int]:
        return self._tables["gpu_gaps"]["synchronization_id"].drop_null().to_pylist()

    def pauses(self, rank: int) -> Mapping[int, int]:
        gaps = self._tables["gpu_gaps"].select(["kernel_id", "starved_ns"]).drop_null()
        return dict(zip(*(gaps[name].to_pylist() for name in gaps.column_names), strict=True))

    def windows(self) -> pa.Table:
        rows = self._tables["overlap"]
        return rows.append_column("rank", pa.array([1] * rows.num_rows, pa.int64()))


def records(path: Path, chance: random.Random) -> str:
    """What the command prints of records."""
    from traceviz_dag.commands.what_if.of_records import what_if_of_records
    from traceviz_dag.pipeline.answers.wanted import Wanted

    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            what_if_of_records(path, None, json=chance.random() < 0.5, wanted=Wanted((), (), (), (), ()))
    except IncompleteError as error:
        check_line(str(error))
        return PARTIAL
    finally:
        check_output(printed.getvalue())
    return WHOLE


def topology(path: Path, chance: random.Random) -> str:
    """Read the file and unite it with nothing else."""
    from traceviz_dag.classify.topology.unite import topology_from_tables, topology_tables, unite
    from traceviz_dag.read.topology_file import read_topology_file

    united = unite({}, read_topology_file(path))
    tables = topology_tables(united)
    topology_from_tables(*tables)
    for line in united.disagreements:
        check_line(line)
    return PARTIAL if united.disagreements else WHOLE


def pairs(path: Path, chance: random.Random) -> str:
    """Read the pairs of stages."""
    from traceviz_dag.read.pairs_file import read_pairs_file

    read_pairs_file(path)
    return WHOLE


def stamps(path: Path, chance: random.Random) -> str:
    """Read the stamps of both stages."""
    from traceviz_dag.read.pairs_file import read_stamps

    for letter in "AB":
        found = list(read_stamps(path, letter, 1000))
        pa.array(
            [value for stamp in found for value in (stamp.rank, stamp.unit, stamp.start_ns, stamp.end_ns)], pa.int64()
        )
    return WHOLE


def rules(path: Path, chance: random.Random) -> str:
    """Read rules and match names with them."""
    from traceviz_dag.classify.rules import load_rules

    found = load_rules(path)
    found.match_kernels(["ncclDevKernel_AllReduce", "my_kernel", odd_name()])
    found.match_frames(["x.py(3): my_forward", odd_name()], 1)
    return WHOLE


def odd_name() -> str:
    """A name that patterns may choke on."""
    return "a" * 200 + "\n["


def settings(path: Path, chance: random.Random) -> str:
    """Read the settings."""
    from traceviz_dag.pipeline.home_settings import FILE_VARIABLE, load_settings

    load_settings(path.parent, {FILE_VARIABLE: str(path)})
    return WHOLE


def capture(path: Path, chance: random.Random) -> str:
    """Read a capture's configuration."""
    from traceviz_dag.capture.configuration import read_configuration

    read_configuration(path)
    return WHOLE


def nsys(path: Path, chance: random.Random) -> str:
    """Place the ranks of an export, take each the whole way, and print what some commands show of it."""
    from traceviz_dag.classify.topology.unite import unite
    from traceviz_dag.pipeline.formats.trace_format import RankTrace
    from traceviz_dag.pipeline.nsys.placement import place_exports
    from traceviz_dag.pipeline.nsys.ranks import export_headers
    from traceviz_dag.pipeline.ranks import analyse_rank
    from traceviz_dag.read.layouts import TraceFile

    ended = WHOLE
    # What was read is kept in a home, as `analyze` does; the command in half of the inputs reads the file itself.
    home = path.parent / "home"
    try:
        _show(chance.choice(list(_ARGUMENTS)), path, home if chance.random() < 0.5 else None, chance)
    except TracevizError as error:
        check_line(str(error))
        ended = PARTIAL
    placement = place_exports([TraceFile(path, "run", path.name, None, None)], home, _rules())
    if placement.problems:
        raise placement.problems[0]
    for placed in placement.traces[:2]:
        topology = unite(export_headers([(placed.rank, path, placed.part)], home))
        trace = RankTrace(path, path.name, placed.rank, placed.step, placed.part, home)
        tables = analyse_rank(trace, topology, _rules())
        _check_tables(tables.values(), chance)
        ended = PARTIAL if tables["traces"].to_pylist()[0]["status"] != "read" else ended
    return ended


def folder(path: Path, chance: random.Random) -> str:
    """List a folder, say what each iteration of it can answer, and take its ranks the whole way into a lake."""
    from benchmarks.fuzzing.inputs import SOUND
    from traceviz_dag.commands.doctor.doctor import doctor
    from traceviz_dag.pipeline.discovery import inputs_below
    from traceviz_dag.pipeline.iteration import rank_traces, read_topology
    from traceviz_dag.pipeline.workers import IterationTask, analyse_into_lake

    home = path.parent / "home"
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), contextlib.suppress(IncompleteError):
        doctor(path, home=home, json=chance.random() < 0.5)
    check_output(printed.getvalue())
    found = inputs_below([path], home=home)
    failed = False
    for inputs in found:
        for line in (*inputs.problems, *inputs.warnings):
            check_line(line)
        topology = read_topology(inputs, home=home)
        task = IterationTask(home, inputs.run, inputs.iteration, topology, _rules())
        for trace in rank_traces(inputs, [entry.rank for entry in inputs.ranks], home):
            outcome = analyse_into_lake(task, trace)
            failed |= outcome.fault is not None
    sound = [entry for inputs in found for entry in inputs.ranks if entry.path.endswith(f"/iteration_7/{SOUND}")]
    problems = [line for inputs in found for line in inputs.problems]
    if not sound and not any(SOUND in line for line in problems):
        raise UnclearError("the sound rank is neither listed nor named")
    return PARTIAL if failed or problems else WHOLE


_ARGUMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "info": ("info", {}),
    "summary": ("summary", {}),
    "overlap": ("overlap", {}),
    "iterations": ("iterations", {}),
    "nccl": ("nccl", {}),
    "gaps": ("gaps", {"least_us": 0}),
    "tree": ("tree", {}),
    "search": ("search", {"word": "a"}),
    "diff": ("diff", {}),
    "viewer": ("viewer", {"output": "page.html"}),
    "perfetto": ("perfetto", {"output": "profile.pftrace"}),
    "export_csv": ("exports", {"output": "rows.csv"}),
    "export_json": ("exports", {"output": "rows.json"}),
}
"""Command → its module below ``commands.nsys``, and what it is called with."""

_SHOW_JSON = ("info", "summary", "overlap", "iterations", "nccl", "gaps", "tree", "search", "diff")


def _show(command: str, path: Path, home: Path | None, chance: random.Random) -> None:
    """Call a command as the command line does, with a home or without, and look at what it prints."""
    module, given = _ARGUMENTS[command]
    function = getattr(import_module(f"traceviz_dag.commands.nsys.{module}"), command)
    arguments = {name: path.parent / value if name == "output" else value for name, value in given.items()}
    if command == "diff":
        arguments["b"] = path
    if command in _SHOW_JSON:
        arguments["json"] = chance.random() < 0.5
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        function(path, home=home, **arguments)
    check_output(printed.getvalue())


_OF_MEMORY: tuple[tuple[str, dict[str, Any]], ...] = (
    *(("summary", {}), ("peak", {"at": "peak", "stacks": True}), ("timeline", {"points": 3}), ("fragmentation", {})),
    *(("leak", {}), ("oom", {}), ("diff", {})),
)


def _memory_pictures_and_rules(folder: Path, tables: dict[str, pa.Table]) -> None:
    """Draw every picture of a snapshot, and ask every rule of GPU memory, whose sentences are lines."""
    from traceviz_dag.analyze.findings.rules.registry import RULES
    from traceviz_dag.lake.lake import open_lake
    from traceviz_dag.lake.memory_summary import memory_peak, memory_statement
    from traceviz_dag.pipeline.lake_source import LakeSource
    from traceviz_dag.pipeline.memory_figures import draw_peak, draw_segments, draw_stages, draw_timeline
    from traceviz_dag.show.page.rendering import preview

    with tempfile.TemporaryDirectory(dir=folder) as home:
        lake = open_lake(Path(home))
        for name, table in tables.items():
            lake.write(name, table, run="run", iteration=1, rank=0)
        source = LakeSource(lake, "run", 1)
        for figure in (*(draw(source, 0) for draw in (draw_timeline, draw_peak, draw_segments)), draw_stages(source)):
            if figure is not None:
                check_line(str(figure.get_label()))
                preview(figure)
        for rule in RULES:
            if rule.name.startswith("memory_"):
                for row in lake.query_iteration(rule.sql, run="run", iteration=1).to_pylist():
                    check_line(rule.sentence(row))
                lake.query_iteration(rule.unable_sql or "", run="run", iteration=1)
        peak = memory_peak(lake, "run", 1)
        if peak is not None:
            check_line(memory_statement(peak))


def memory(path: Path, chance: random.Random) -> str:
    """A snapshot: read in this process, as the child does; its tables; and one in forty through a command, too."""
    from traceviz_dag.analyze.memory.comparison import held_at_peak, peak_changes
    from traceviz_dag.analyze.memory.examination import examined
    from traceviz_dag.analyze.memory.leaks import leaks, step_ends
    from traceviz_dag.analyze.memory.out_of_memory import out_of_memory
    from traceviz_dag.analyze.memory.tables import memory_tables
    from traceviz_dag.commands.memory.common import notes
    from traceviz_dag.errors import BadInputError
    from traceviz_dag.read.memory.child import BASE_BYTES, PER_BYTE, encoded
    from traceviz_dag.read.memory.extraction import NotASnapshotError
    from traceviz_dag.read.memory.plain_pickle import NotPlainError, read_plain
    from traceviz_dag.read.memory.reader import decoded
    from traceviz_dag.show.memory.flame_graph import flame_graph_page

    if chance.random() < 1 / 40:
        _memory_command(path, chance)
    try:
        # The product reads it in a child process with as much memory.
        size = path.stat().st_size
        with _address_space(BASE_BYTES + PER_BYTE * size), path.open("rb") as file:
            header, *columns = encoded(read_plain(file), size)
    except (NotPlainError, NotASnapshotError, MemoryError) as error:
        raise BadInputError(path, str(error) or "out of memory", "give another") from None
    snapshot = decoded(json.loads(header), b"".join(columns), size)
    devices = examined(snapshot)
    tables = memory_tables(snapshot, devices)
    _check_tables(tables.values(), chance)
    if chance.random() < 1 / 40:
        _memory_pictures_and_rules(path.parent, tables)
    for one in devices:
        changes = peak_changes(held_at_peak(one), held_at_peak(one))
        if sum(change.after_bytes for change in changes) != one.replay.peak_requested:
            raise UnclearError("parts that do not add up to the peak")
        for state in (one.at_end, one.at_peak):
            parts = state.requested_bytes + state.rounding_bytes + state.inactive_bytes + state.uncovered_bytes
            if parts != state.reserved_bytes:
                raise UnclearError("parts that do not add up to what is reserved")
        leaks(one.replay, step_ends(one.replay, one.steps))
        out_of_memory(one.replay)
        check_output(flame_graph_page("name", one))
        for note in notes(one):
            check_line(note)
    lost = snapshot.unusable or snapshot.unusable_values
    return PARTIAL if lost or any(one.replay.contradictions for one in devices) else WHOLE


@contextlib.contextmanager
def _address_space(more: int) -> Iterator[None]:
    """Let this process take so much more, and no more than that."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most = taken + more if before[0] == resource.RLIM_INFINITY else min(taken + more, before[0])
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _memory_command(path: Path, chance: random.Random) -> None:
    name, given = chance.choice(_OF_MEMORY)
    command = getattr(import_module(f"traceviz_dag.commands.memory.{name}"), name)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), plain_streams():  # as LazyGroup
        more = {"other": path} if name == "diff" else {}
        with contextlib.suppress(TracevizError):
            command(path, **more, **given, json=chance.random() < 0.5)
    check_output(printed.getvalue())


@cache
def _rules() -> Any:
    from traceviz_dag.classify.rules import load_rules

    return load_rules()


def _check_tables(tables: Iterable[pa.Table], chance: random.Random) -> None:
    """Every value fits its column and every text is UTF-8; one input in eight is written as a partition is, too."""
    write = chance.random() < 1 / 8
    for table in tables:
        table.validate(full=True)
        if write:
            pq.write_table(table, pa.BufferOutputStream())

"""Single flipped bits in the files of a home: what is read is what was written, or is refused in a line; never else.

Run: ``python -m benchmarks.flips --flips 10000 --seed 1 --folder FOLDER``. A job of 16 ranks with snapshots of GPU
memory, two nights of two ranks, and an export of Nsight Systems are simulated and analysed into FOLDER once, so that
every table has a file. A trial draws a kind of file (each table, the records of their digests, the lists of inputs, the
catalogue, what is kept of a profile), one file of it and one bit, flips it without a change of size or time, and asks
in every way that commands do: SQL over the table and over the view that it rests on, a query of the iteration, the
reader, the list of inputs, the profile. Every way gives what it gave before, or raises one line. Counted are the same
values, refusals, and others; one of these ends the program with 1. ``--minutes`` stops it sooner; what was done counts.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pyarrow as pa

from assets.conventions import RANGE_END_TAG, RANGE_START_TAG
from assets.nightly import nightly_gate
from assets.resources import TracevizHome
from tests.analyze.across_ranks import SMALL
from tests.small_run import write_run
from traceviz_dag.errors import TracevizError
from traceviz_dag.lake import catalogue, inputs, recorded, upgrade
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.lake.marking import mark_stale
from traceviz_dag.lake.partitions import FILE_NAME, Partition
from traceviz_dag.lake.stale import Stale
from traceviz_dag.pipeline.analysis import AnalysisSettings, analyse
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.read.nsys import cache
from traceviz_dag.read.nsys.profile import SCHEMAS
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import Format
from traceviz_dag.tables import all_tables
from traceviz_dag.vocabulary import StaleCause, StaleStage

Ask = Callable[[], object]


@dataclass(frozen=True, slots=True)
class File:
    """A file whose bits are flipped, and the questions that read it.

    Attributes:
        is_made_anew: a damaged one is made anew by the next question; a flip is to meet one that is whole.
    """

    path: Path
    asks: tuple[Ask, ...]
    is_made_anew: bool = False


def main() -> int:
    """Flip bits; 1 where one changed what is read."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--flips", type=int, default=1000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--minutes", type=float, default=float("inf"), help="stop after so long")
    options.add_argument("--kind", action="append", help="only these kinds of file")
    options.add_argument("--folder", type=Path, required=True)
    given = options.parse_args()
    home = _home(given.folder.resolve())
    kinds = {kind: files for kind, files in _kinds(home).items() if not given.kind or kind in given.kind}
    chance, end = random.Random(given.seed), time.monotonic() + 60 * given.minutes
    right: dict[Path, list[object]] = {}
    counted: Counter[tuple[str, str]] = Counter()
    done = 0
    while done < given.flips and time.monotonic() < end:
        kind = chance.choice(sorted(kinds))
        file = chance.choice(kinds[kind])
        if file.path not in right or file.is_made_anew:
            right[file.path] = [ask() for ask in file.asks]
        bit = chance.randrange(8 * file.path.stat().st_size)
        for outcome in _trial(file, bit, right[file.path]):
            counted[kind, outcome] += 1
            if outcome not in ("same", "refused"):
                print(f"{file.path}, bit {bit}: {outcome}", flush=True)
        done += 1
    for kind in sorted(kinds):
        print(f"{kind}: {dict(sorted((outcome, n) for (of, outcome), n in counted.items() if of == kind))}")
    others = sum(number for (_, outcome), number in counted.items() if outcome not in ("same", "refused"))
    print(f"seed {given.seed}: {done} flips, {sum(counted.values())} answers, {others} neither right nor refused")
    return int(others > 0)


def _trial(file: File, bit: int, right: list[object]) -> list[str]:
    whole, times = file.path.read_bytes(), file.path.stat()
    changed = bytearray(whole)
    changed[bit // 8] ^= 1 << bit % 8
    outcomes = []
    try:
        for ask, wanted in zip(file.asks, right, strict=True):
            # The same file, size and time: a process that has read it before would not read it again.
            _put(file.path, changed, times)
            _forget(file.path)
            try:
                outcomes.append("same" if _equal(ask(), wanted) else "other values")
            except TracevizError as error:
                outcomes.append("refused" if "\n" not in str(error) else "more than a line")
            except Exception as error:  # noqa: BLE001
                outcomes.append(f"{type(error).__name__}: {str(error)[:100]}")
    finally:
        _put(file.path, whole, times)
        _forget(file.path)
    return outcomes


def _put(path: Path, data: bytes | bytearray, times: os.stat_result) -> None:
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _forget(path: Path) -> None:
    """What a process remembers of files that look as they did, as a new process does not."""
    for remembered in (recorded._digest_in, recorded._record_in, upgrade._is_upgraded, cache._digest_in):
        remembered.cache_clear()
    if path.name == catalogue.FILE_NAME:
        catalogue._origin_in.cache_clear()


def _equal(found: object, wanted: object) -> bool:
    # Values that are no number equal nothing, as tables compare them.
    return found == wanted or repr(_plain(found)) == repr(_plain(wanted))


def _plain(found: object) -> object:
    return found.to_pydict() if isinstance(found, pa.Table) else found


def _kinds(home: Path) -> dict[str, list[File]]:
    """Kind of file → its files."""
    lake = open_lake(home)
    lake.refresh_catalogue()
    kinds = {name: [_part(lake, name, one) for one in lake.partitions(name, with_stale=True)] for name in all_tables()}
    assert all(kinds.values()), [name for name, files in kinds.items() if not files]
    some: tuple[Ask, ...] = (_sql(home, "SELECT * FROM kernels"), _read(lake, "overlap"), _read(lake, "iterations"))
    records = sorted((lake.tables_folder / recorded.FOLDER).rglob("iteration=*"))
    kinds["(record of digests)"] = [File(path, some) for path in records]
    kinds["(versions of schemas)"] = [File(upgrade.own_files(lake.tables_folder)[0], some)]
    kinds["(catalogue)"] = [File(lake.catalogue_path, some)]
    kinds["(list of inputs)"] = [
        File(home / inputs.FOLDER / f"{one.key}.json", (lambda key=one.key: inputs.registered(home, key),))  # type: ignore[misc]
        for one in inputs.all_registered(home)
    ]
    [export] = (home.parent / "profile").rglob("*.sqlite")
    cache.open_profile(export, home)
    [facts] = cache.cache_folder(export, home).glob("*/facts.json")
    for path in (facts, *facts.parent.glob("*.parquet"), *facts.parent.glob("*.words.json")):
        kind = "facts" if path == facts else "words" if path.suffix == ".json" else "tables"
        one = File(path, (lambda: _profile(export, home),), is_made_anew=True)
        kinds.setdefault(f"(kept profile, {kind})", []).append(one)
    return {kind: sorted(files, key=lambda file: file.path) for kind, files in kinds.items()}


def _part(lake: Lake, name: str, one: Partition) -> File:
    where = f"run = '{one.run}' AND iteration = {one.iteration}" + (
        "" if one.rank is None else f" AND rank = {one.rank}"
    )
    place = {"run": one.run, "iteration": one.iteration}
    asks = (
        _sql(lake.home, f"SELECT * FROM {name} WHERE {where}"),
        _sql(lake.home, f"SELECT * FROM traceviz_meta.{name}_files WHERE {where}"),
        lambda: lake.query_iteration(f"SELECT * FROM {name} WHERE {where}", **place),  # type: ignore[arg-type]
        lambda: lake.table(name, one.run, one.iteration, one.rank).arrow(),
    )
    return File(one.folder(lake.tables_folder / name) / FILE_NAME, asks)


def _sql(home: Path, sql: str) -> Ask:
    return lambda: open_lake(home).query(sql)


def _read(lake: Lake, name: str) -> Ask:
    return lambda: lake.table(name).arrow()


def _profile(export: Path, home: Path) -> object:
    """All that is kept of a profile; one that is damaged is refused, and read anew by the next command."""
    profile = cache.open_profile(export, home)
    return profile.facts, [(name, profile.table(name, *SCHEMAS[name].names)) for name in sorted(SCHEMAS)]


def _home(folder: Path) -> Path:
    home = folder / "home"
    if (folder / "made").exists():
        return home
    job = JobSettings(pp=4, dp=4, microbatches=2, gzip=False, memory=True, **{**SMALL, "layers": 4})
    simulate(job, folder / "job", workers=1)
    simulate(JobSettings(format=Format.NSYS, microbatches=2, **{**SMALL, "layers": 2}), folder / "profile", workers=1)
    nights = write_run(folder / "night", {1: 2, 2: 2}, 2)
    analyse(AnalysisSettings(home, workers=1), inputs_below([folder / "job", folder / "profile", nights]))
    instance, keys = dg.DagsterInstance.ephemeral(), ["night@1", "night@2"]
    instance.add_dynamic_partitions("iteration", keys)
    dg.materialize(
        [nightly_gate],
        instance=instance,
        resources={"traceviz": TracevizHome(home=str(home))},
        tags={RANGE_START_TAG: keys[0], RANGE_END_TAG: keys[-1]},
        run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        raise_on_error=False,
    )
    mark_stale(open_lake(home), "night", 2, [Stale(1, StaleStage.RANKS, StaleCause.FAILED, "cannot be read")])
    (folder / "made").touch()
    return home


if __name__ == "__main__":
    raise SystemExit(main())

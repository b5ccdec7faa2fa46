"""Single flipped bits in the files of a home: what is read is what was written, or is refused in a line; never else.

Run: ``python -m benchmarks.flips --flips 10000 --seed 1 --folder FOLDER``. A job of 16 ranks is simulated and analysed
into FOLDER once. A trial draws a kind of file (each table, the records of their digests, the lists of inputs, the
catalogue), one file of it and one bit, flips it without a change of size or time, and asks in the same way as
commands do: SQL over the table, a query of the iteration, the reader, the list of inputs. Every way gives what it gave
before, or raises one line. Counted are the same values, refusals, and others; one of these ends the program with 1.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.analyze.across_ranks import SMALL
from traceviz_dag.errors import TracevizError
from traceviz_dag.lake import catalogue, inputs, recorded, upgrade
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.orchestration.orchestrate import AnalysisSettings, analyse
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.tables import all_tables

Ask = Callable[[Lake], object]


def main() -> int:
    """Flip bits; 1 where one changed what is read."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--flips", type=int, default=1000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--folder", type=Path, required=True)
    given = options.parse_args()
    home = _home(given.folder.resolve())
    lake = open_lake(home)
    lake.refresh_catalogue()
    kinds = _kinds(lake)
    chance = random.Random(given.seed)
    right = {kind: [ask(lake) for ask in asks] for kind, (_, asks) in kinds.items()}
    counted: Counter[tuple[str, str]] = Counter()
    for _ in range(given.flips):
        kind = chance.choice(sorted(kinds))
        files, asks = kinds[kind]
        path = chance.choice(files)
        bit = chance.randrange(8 * path.stat().st_size)
        for outcome in _trial(lake, path, bit, asks, right[kind]):
            counted[kind, outcome] += 1
            if outcome not in ("same", "refused"):
                sys.stdout.write(f"{path}, bit {bit}: {outcome}\n")
    for kind in sorted(kinds):
        rows = {outcome: number for (of, outcome), number in sorted(counted.items()) if of == kind}
        sys.stdout.write(f"{kind}: {rows}\n")
    others = sum(number for (_, outcome), number in counted.items() if outcome not in ("same", "refused"))
    sys.stdout.write(f"{given.flips} flips, {sum(counted.values())} answers, {others} neither right nor refused\n")
    return int(others > 0)


def _trial(lake: Lake, path: Path, bit: int, asks: list[Ask], right: list[object]) -> list[str]:
    whole, times = path.read_bytes(), path.stat()
    changed = bytearray(whole)
    changed[bit // 8] ^= 1 << bit % 8
    # The same file, size and time: a process that has read it before would not read it again.
    path.write_bytes(changed)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    outcomes = []
    try:
        for ask, wanted in zip(asks, right, strict=True):
            for remembered in (recorded._digest_in, recorded._record_in, upgrade._is_upgraded, catalogue._origin_in):
                remembered.cache_clear()
            try:
                outcomes.append("same" if ask(lake) == wanted else "other values")
            except TracevizError as error:
                outcomes.append("refused" if "\n" not in str(error) else "more than a line")
    finally:
        path.write_bytes(whole)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return outcomes


def _kinds(lake: Lake) -> dict[str, tuple[list[Path], list[Ask]]]:
    """Kind of file → its files, and the questions that read them."""
    (place,) = {(one.run, one.iteration) for one in lake.partitions("kernels")}
    run, iteration = place
    kinds: dict[str, tuple[list[Path], list[Ask]]] = {}
    for name in all_tables():
        parts = [lake.path(name, run=run, iteration=iteration, rank=one.rank) for one in lake.partitions(name)]
        if parts:
            kinds[name] = (parts, [_sql(name), _narrow(name, run, iteration), _read(name)])
    records = sorted((lake.tables_folder / recorded.FOLDER).rglob("iteration=*"))
    some = [_sql("kernels"), _read("overlap"), _read("iterations")]
    kinds["(record of digests)"] = (records, some)
    kinds["(versions of schemas)"] = ([upgrade.own_files(lake.tables_folder)[0]], some)
    kinds["(catalogue)"] = ([lake.catalogue_path], some)
    [key] = [one.key for one in inputs.all_registered(lake.home)]
    listed = sorted((lake.home / inputs.FOLDER).glob("*.json"))
    kinds["(list of inputs)"] = (listed, [lambda lake: inputs.registered(lake.home, key)])
    return kinds


def _sql(name: str) -> Ask:
    return lambda lake: sorted(map(str, open_lake(lake.home).query(f"SELECT * FROM {name}").to_pylist()))


def _narrow(name: str, run: str, iteration: int) -> Ask:
    asked = f"SELECT * FROM {name} WHERE run = $run AND iteration = $iteration"
    return lambda lake: sorted(map(str, lake.query_iteration(asked, run=run, iteration=iteration).to_pylist()))


def _read(name: str) -> Ask:
    return lambda lake: lake.table(name).arrow().to_pylist()


def _home(folder: Path) -> Path:
    job, home = folder / "job", folder / "home"
    if not home.exists():
        settings = JobSettings(pp=4, dp=4, microbatches=4, gzip=False, **{**SMALL, "layers": 4})
        simulate(settings, job, workers=1)
        analyse(AnalysisSettings(home, workers=1), inputs_below([job]))
    return home


if __name__ == "__main__":
    raise SystemExit(main())

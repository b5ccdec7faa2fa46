"""The jobs that are asked about, drawn from a seed: who is slow, missing or cut off differs from seed to seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.adversarial import unsolvable_clocks
from traceviz_dag.pipeline.analysis import AnalysisSettings, analyse
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import Edges, Faults

_PLAIN = JobSettings(iterations=1, gzip=False, microbatches=4, layers=4)

WORDS = (
    *("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "jetty", "kelp", "larch"),
    *("maple", "north", "ochre", "petal", "quill", "ridge", "slate", "thorn", "umber", "vale", "willow", "zinc"),
)
"""Names of runs: which run has which is drawn, so that a name tells nothing."""

_LAYOUT = 2
"""Of a kept folder."""


@dataclass(frozen=True)
class Drawn:
    """What the seed has chosen.

    Attributes:
        folder: where the jobs and their home are. chosen: what draws. name: role of a run → its name.
        slow, linked, missing, cut, pausing, watched: ranks.
    """

    folder: Path
    seed: int
    chosen: random.Random
    name: Mapping[str, str]
    slow: int
    linked: int
    missing: int
    cut: int
    pausing: int
    watched: int
    settings: Mapping[str, JobSettings]

    @property
    def traces(self) -> Path:
        """Where the traces are, without what is true of them."""
        return self.folder / "asked" / "traces"

    @property
    def home(self) -> Path:
        """The home that holds all jobs but those that are asked about where they are."""
        return self.folder / "asked" / "home"

    def truth(self, role: str, rank: int | None = None) -> pa.Table:
        """The simulator's own kernels of a run, or of one rank."""
        pattern = f"rank_{'*' if rank is None else f'{rank:04d}'}.parquet"
        return pa.concat_tables(pq.read_table(place) for place in sorted((self.folder / "true" / role).glob(pattern)))

    def step_ns(self, role: str) -> int:
        """From the first kernel to the last of a run, on the true clock."""
        kernels = self.truth(role)
        ends = pc.add(kernels["true_ts_ns"], kernels["dur_ns"])
        return int(pc.max(ends).as_py() - pc.min(kernels["true_ts_ns"]).as_py())


def draw(seed: int, folder: Path) -> Drawn:
    """The jobs of a seed, simulated and analysed where they are not there yet.

    What is true goes into a folder that no question names, and that is not beside the traces.
    """
    drawn = _drawn(seed, folder)
    made, mark = folder / "made", f"seed {seed}, layout {_LAYOUT}"
    if made.exists() and made.read_text() != mark:
        raise SystemExit(f"{folder} holds the jobs of {made.read_text()}; name another folder")
    if not made.exists():
        for role, settings in drawn.settings.items():
            run = drawn.traces / drawn.name[role]
            simulate(settings, run)
            (folder / "true").mkdir(exist_ok=True)
            (run / "truth").rename(folder / "true" / role)
        for path in (drawn.traces / drawn.name["alone"]).rglob("rank_*trace*"):
            if "rank_0000" not in path.name:
                path.unlink()
        _clocks(drawn.traces / drawn.name["clocks"])
        for name in drawn.name.values():
            inputs = inputs_below([drawn.traces / name], home=drawn.home)
            analyse(AnalysisSettings(drawn.home, allow_partial=True), inputs)
        made.write_text(mark)
    return drawn


def _drawn(seed: int, folder: Path) -> Drawn:
    chosen = random.Random(seed)
    grid = replace(_PLAIN, tp=2, dp=2, pp=2, seed=seed, microbatches=chosen.randint(4, 8))
    links = replace(grid, node_size=4, hidden=2048, microbatches=chosen.randint(3, 6))
    flat = replace(_PLAIN, pp=2, dp=chosen.randint(2, 5), seed=seed, microbatches=chosen.randint(3, 6))
    stages = chosen.randint(3, 6)
    layers = [2] * stages
    layers[chosen.randrange(stages)] += 3
    split = replace(
        _PLAIN,
        **{"pp": stages, "layers": sum(layers), "stage_layers": ",".join(map(str, layers))},
        **{"microbatches": chosen.randint(stages, stages + 4), "seed": seed},
    )
    ranks = {name: chosen.randrange(8) for name in ("slow", "linked", "watched")}
    ranks |= {name: chosen.randrange(2 * flat.dp) for name in ("missing", "cut", "pausing")}
    slow = Faults(slow_gpu=ranks["slow"], slow_gpu_factor=chosen.choice((1.3, 1.4, 1.5, 1.6)))
    link = Faults(slow_link=ranks["linked"], slow_link_factor=chosen.choice((5.0, 6.0, 7.0, 8.0)))
    settings = {
        "slow": replace(grid, faults=slow, clock_skew_ms=3.0),
        "fixed": replace(grid, clock_skew_ms=3.0),
        "links": replace(links, faults=link),
        "links_fixed": links,
        "split": split,
        "missing": replace(flat, edges=Edges(missing_rank=ranks["missing"])),
        "cut": replace(flat, edges=Edges(truncated_rank=ranks["cut"])),
        "pauses": replace(flat, shapes=True, faults=Faults(garbage_collection=ranks["pausing"])),
        "alone": flat,
    }
    roles = (*settings, "clocks")
    name = dict(zip(roles, chosen.sample(WORDS, len(roles)), strict=True))
    return Drawn(folder, seed, chosen, name, **ranks, settings=settings)


def _clocks(folder: Path) -> None:
    """Ranks whose clocks no matched communication can bring together."""
    write: Callable[[Path], object] = unsolvable_clocks().write
    folder.mkdir(exist_ok=True)
    write(folder)

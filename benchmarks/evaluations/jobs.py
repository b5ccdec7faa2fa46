"""The jobs that are asked about, drawn from a seed: who is slow, missing or cut off differs from seed to seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
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


@dataclass(frozen=True)
class Drawn:
    """What the seed has chosen.

    Attributes:
        folder: where the jobs and their home are. slow, linked, missing, cut, pausing, watched: ranks.
    """

    folder: Path
    seed: int
    slow: int
    linked: int
    missing: int
    cut: int
    pausing: int
    watched: int

    @property
    def home(self) -> Path:
        """The home that holds all jobs but those that are asked about where they are."""
        return self.folder / "home"

    @cached_property
    def settings(self) -> dict[str, JobSettings]:
        """Run → what it is simulated from."""
        grid = replace(_PLAIN, tp=2, dp=2, pp=2, seed=self.seed)
        links = replace(grid, node_size=4, hidden=2048)
        flat = replace(_PLAIN, pp=2, dp=2, seed=self.seed)
        return {
            "slow": replace(grid, faults=Faults(slow_gpu=self.slow), clock_skew_ms=3.0),
            "fixed": replace(grid, clock_skew_ms=3.0),
            "links": replace(links, faults=Faults(slow_link=self.linked)),
            "links_fixed": links,
            "split": replace(_PLAIN, pp=4, layers=8, microbatches=8, seed=self.seed, faults=Faults(bad_stage_split=1)),
            "missing": replace(flat, edges=Edges(missing_rank=self.missing)),
            "cut": replace(flat, edges=Edges(truncated_rank=self.cut)),
            "pauses": replace(flat, faults=Faults(garbage_collection=self.pausing)),
            "experts": replace(_PLAIN, ep=2, dp=4, microbatches=2, seed=self.seed, faults=Faults(expert_imbalance=0.7)),
            "alone": flat,
        }

    def truth(self, run: str, rank: int | None = None) -> pa.Table:
        """The simulator's own kernels of a run, or of one rank."""
        places = sorted((self.folder / run / "truth").glob(f"rank_{'*' if rank is None else f'{rank:04d}'}.parquet"))
        return pa.concat_tables(pq.read_table(place) for place in places)

    def step_ns(self, run: str) -> int:
        """From the first kernel to the last of a run, on the true clock."""
        kernels = self.truth(run)
        ends = pc.add(kernels["true_ts_ns"], kernels["dur_ns"])
        return int(pc.max(ends).as_py() - pc.min(kernels["true_ts_ns"]).as_py())


def draw(seed: int, folder: Path) -> Drawn:
    """The jobs of a seed, simulated and analysed where they are not there yet."""
    chosen = random.Random(seed)
    ranks = {name: chosen.randrange(8) for name in ("slow", "linked", "watched")}
    ranks |= {name: chosen.randrange(4) for name in ("missing", "cut", "pausing")}
    drawn = Drawn(folder, seed, **ranks)
    made = folder / "made"
    if made.exists() and made.read_text() != str(seed):
        raise SystemExit(f"{folder} holds the jobs of seed {made.read_text()}; name another folder")
    if not made.exists():
        for run, settings in drawn.settings.items():
            simulate(settings, folder / run)
        for path in (folder / "alone").rglob("rank_*trace*"):
            if "rank_0000" not in path.name:
                path.unlink()
        _clocks(folder / "clocks")
        for run in (*drawn.settings, "clocks"):
            analyse(AnalysisSettings(drawn.home, allow_partial=True), inputs_below([folder / run], home=drawn.home))
        made.write_text(str(seed))
    return drawn


def _clocks(folder: Path) -> None:
    """Ranks whose clocks no matched communication can bring together."""
    write: Callable[[Path], object] = unsolvable_clocks().write
    folder.mkdir(exist_ok=True)
    write(folder)

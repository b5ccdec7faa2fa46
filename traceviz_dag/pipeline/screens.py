"""Opening what screens walk through, an iteration of a home or a profile of Nsight Systems; where tiles are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import xxhash

from traceviz_dag.analyze.nsys.activity import Clip, check_gpus
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.lake.digests import stamp_of
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partitions import escape
from traceviz_dag.printable import without_surrogates
from traceviz_dag.read.nsys.cache import made_of_kept, open_profile
from traceviz_dag.show.screens.bookmarks import Bookmarks
from traceviz_dag.show.screens.iteration_model import IterationModel
from traceviz_dag.show.screens.kept import digest_of, place_of
from traceviz_dag.show.screens.model import ScreenModel
from traceviz_dag.show.screens.profile_model import ProfileModel
from traceviz_dag.system.paths import real_path
from traceviz_dag.vocabulary import DEFAULT_HOME, SCREENS_FOLDER, TimeAlignment

_OF_A_RANK = ("kernels", "microbatches", "gpu_gaps", "overlap", "nvtx_ranges", "memory_events")
_OF_THE_ITERATION = ("collectives", "path_segments")
TABLES = (*_OF_A_RANK, *_OF_THE_ITERATION, "rank_clocks", "findings", "topology")
"""What is shown of an iteration."""


def iteration_model(
    lake: Lake, run: str, iteration: int, alignment: TimeAlignment = TimeAlignment.SOLVED
) -> ScreenModel:
    """An iteration of a home with all its ranks.

    Raises:
        UsageError: the iteration has no kernels.
    """
    # Imported here because profiles need nothing of it, and it loads all that draws.
    from traceviz_dag.pipeline.completeness import stored_completeness
    from traceviz_dag.pipeline.report import StoredReportSource

    source = StoredReportSource(lake, run, iteration)
    kept, options = _kept_of_iteration(lake, run, iteration), _home_option(lake.home)
    return IterationModel(source, alignment, kept, options, stored_completeness(lake, run, iteration).mark)


@dataclass(frozen=True, slots=True)
class Chosen:
    """What of a profile is shown.

    Attributes:
        gpus: only these GPUs, and the processes that drive them; empty shows all.
        seconds: only the time from one to the other, s of the capture's clock; None shows all.
    """

    gpus: tuple[int, ...] = ()
    seconds: tuple[float, float] | None = None


EVERYTHING = Chosen()


def profile_model(path: Path, home: Path | None, rules: Path | None = None, chosen: Chosen = EVERYTHING) -> ScreenModel:
    """A profile; it is read and kept in the home where that is the first time.

    Args:
        home: None keeps nothing.
        rules: file of rules that are tried before the built-in ones.

    Raises:
        BadInputError: the export or the rules cannot be used.
        UsageError: the profile has nothing of what is chosen.
    """
    profile, used = open_profile(path, home), load_rules(rules)
    check_gpus(profile, chosen.gpus)
    window = Clip.of_seconds(*chosen.seconds).within(profile) if chosen.seconds is not None else None
    options = [*(["--rules", str(real_path(rules))] if rules else []), *(_home_option(home) if home else [])]
    made = made_of_kept(profile)
    if made is None:
        return ProfileModel(profile, used, options=options, gpus=chosen.gpus, window=window)
    folder, digest = made[0], digest_of(made[1], used.digest)

    def kept(group: str) -> Path | None:
        # The outermost lanes are quickly made; those of a choice are not kept.
        return None if chosen.gpus and not group else place_of(folder, group, digest)

    return ProfileModel(profile, used, kept=kept, options=options, gpus=chosen.gpus, window=window)


def bookmarks_of_profile(home: Path, path: Path) -> Bookmarks:
    """The bookmarks of a profile, by where it lies."""
    return _bookmarks(home, f"profile {real_path(path)}")


def bookmarks_of_iteration(home: Path, run: str, iteration: int) -> Bookmarks:
    """The bookmarks of an iteration."""
    return _bookmarks(home, f"iteration {iteration} of run {run}")


def _home_option(home: Path) -> list[str]:
    """``--home`` for commands that are shown, where the home is not the default one of this folder."""
    return [] if real_path(home) == real_path(Path(DEFAULT_HOME)) else ["--home", str(real_path(home))]


def _bookmarks(home: Path, source: str) -> Bookmarks:
    digest = xxhash.xxh3_64_hexdigest(source.encode("utf-8", "surrogateescape"))
    return Bookmarks(home / SCREENS_FOLDER / f"{digest}.json", without_surrogates(source))


def screens_folder(home: Path, run: str, iteration: int) -> Path:
    """HOME/screens/RUN/ITERATION, the run's name escaped as in the lake."""
    return home / SCREENS_FOLDER / escape(run) / str(iteration)


def _kept_of_iteration(lake: Lake, run: str, iteration: int) -> Callable[[str], Path | None]:
    """Where the lanes of each rank are kept; named by how the files look that they are made of."""
    folder = screens_folder(lake.home, run, iteration)

    def kept(group: str) -> Path | None:
        if not group:
            # The lanes of ranks are quickly made, and depend on all of them.
            return None
        rank = int(group.partition(":")[2])
        paths = [lake.path(name, run=run, iteration=iteration, rank=rank) for name in _OF_A_RANK]
        paths += [lake.path(name, run=run, iteration=iteration) for name in _OF_THE_ITERATION]
        looks = [(path.parent.parent.name, stamp_of(path)[:2]) if path.is_file() else None for path in paths]
        return place_of(folder, group, digest_of(*looks))

    return kept

"""Megatron-LM's own profiler, release by release: which arguments it takes, and what it does with them.

Read from the wheels of megatron-core, which hold ``megatron/training`` from 0.17 on, and from the repository.
"""

from __future__ import annotations

from dataclasses import dataclass

from traceviz_dag.errors import UsageError

_ALL = (
    *("--profile", "--use-pytorch-profiler", "--profile-step-start", "--profile-step-end", "--profile-ranks"),
    *("--record-memory-history", "--memory-snapshot-path"),
)
_COLLECT = (
    *("--pytorch-profiler-collect-shapes", "--pytorch-profiler-collect-callstack"),
    "--pytorch-profiler-collect-chakra",
)
_NSYS = ("--record-shapes", "--nvtx-ranges")


@dataclass(frozen=True, slots=True)
class Release:
    """One of Megatron-LM's releases, or several that are similar.

    Attributes:
        name: for ``--release``.
        title: for people.
        source: where its arguments were read.
        arguments: those of its profiler.
        rank_snapshots: whether each rank that records dumps its memory history, as ``snapshot_RANK.pickle``; else the
            last rank alone does.
        autograd: whether nsys gets autograd's NVTX ranges without ``--record-shapes``.
        shapes: whether these ranges have shapes without it.
    """

    name: str
    title: str
    source: str
    arguments: frozenset[str]
    rank_snapshots: bool = False
    autograd: bool = True
    shapes: bool = False

    @property
    def collects(self) -> bool:
        """Whether call stacks and shapes are chosen by arguments, and no ranks means all; else both are always
        recorded, and no ranks means rank 0."""
        return set(_COLLECT) <= self.arguments

    @property
    def names_ranges(self) -> bool:
        """Whether ``--nvtx-ranges`` and ``--record-shapes`` are known."""
        return set(_NSYS) <= self.arguments


MAIN = Release(
    "main",
    "Megatron-LM, main since August 2026",
    "megatron/training/config/common_config.py at bbe39a41368660c4cd2ef9db611e28aa290a1d09; pull request 6354",
    frozenset({*_ALL, *_COLLECT, *_NSYS}),
    rank_snapshots=True,
    autograd=False,
)
CORE_0_18 = Release(
    "0.18",
    "Megatron-LM, cores 0.18 and 0.19",
    "wheels of megatron-core 0.18.1 (sha256 1872469a652cdb6a) and 0.19.2 (sha256 8e3e486f13f55945)",
    frozenset({*_ALL, *_COLLECT, *_NSYS}),
)
CORE_0_17 = Release(
    "0.17",
    "Megatron-LM, core 0.17",
    "wheel of megatron-core 0.17.0 (sha256 0cbacf043603f9dc)",
    frozenset({*_ALL, *_COLLECT}),
    shapes=True,
)
CORE_0_10 = Release(
    "older",
    "Megatron-LM, releases from core 0.10 to 0.16",
    "megatron/training/arguments.py of core_v0.10.0 to core_v0.16.1",
    frozenset(_ALL),
    shapes=True,
)
RELEASES = (MAIN, CORE_0_18, CORE_0_17, CORE_0_10)


def release_of(name: str) -> Release:
    """The release of a name; core 0.19 is as 0.18.

    Raises:
        UsageError: there is none.
    """
    names = {one.name: one for one in RELEASES} | {"0.19": CORE_0_18}
    if name not in names:
        raise UsageError(f"no release {name}; there are {', '.join(sorted(names))}")
    return names[name]

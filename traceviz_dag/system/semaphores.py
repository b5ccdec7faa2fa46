"""Semaphores and sockets of worker pools: what a kill of all processes at once leaves, the next command removes.

Python removes semaphores by a process of its own, which lives a little longer than the others; where that one is killed
with them, as out of memory or by a batch system, they would stay until the machine starts again. Its folder of sockets
(``pymp-…``) would stay for good, and its name does not show whose it is.
"""

from __future__ import annotations

import os
import re
from contextlib import ExitStack, suppress
from pathlib import Path

from traceviz_dag.system.process_table import start_ticks
from traceviz_dag.system.whole_files import remove_stale_scratch, scratch_folder, temporary_base

SHARED_MEMORY = Path("/dev/shm")
_OURS = re.compile(r"sem\.traceviz-([0-9]+)-([0-9]+)-([0-9]+)-.*")
"""The namespace of a process, its number there, and when it started."""
_LONGEST_BASE = 60
"""Bytes of the folder for temporary files up to which the name of a socket below our own folder fits (108 in all)."""


def name_semaphores() -> None:
    """Give the semaphores that this process makes from now on names that show whose they are; Linux only."""
    import multiprocessing

    me = start_ticks(os.getpid())
    settings = getattr(multiprocessing.current_process(), "_config", {})
    if me is not None and "semprefix" in settings:
        settings["semprefix"] = f"/traceviz-{_namespace()}-{os.getpid()}-{me}"


def keep_sockets_in_scratch_folder() -> None:
    """Have this process make its sockets in a scratch folder, which goes with it or is removed by the next command."""
    import multiprocessing
    from multiprocessing.util import Finalize

    settings = getattr(multiprocessing.current_process(), "_config", {})
    too_long = len(os.fsencode(temporary_base())) > _LONGEST_BASE
    if settings.get("tempdir") is not None or too_long:
        return
    stack = ExitStack()
    settings["tempdir"] = str(stack.enter_context(scratch_folder()))
    # As late as Python removes its own: workers and the server that they fork from are gone by then.
    Finalize(None, stack.close, exitpriority=-100)


def remove_orphans() -> None:
    """Remove the semaphores and scratch folders of processes that are gone."""
    remove_orphaned_semaphores()
    remove_stale_scratch(temporary_base())


def remove_orphaned_semaphores() -> None:
    """Remove the semaphores of processes that are gone; those of other users and containers are left alone."""
    try:
        names = [path.name for path in SHARED_MEMORY.iterdir()]
    except OSError:
        return
    for name in names:
        named = _OURS.fullmatch(name)
        if named and named[1] == _namespace() and start_ticks(int(named[2])) != named[3]:
            with suppress(OSError):
                (SHARED_MEMORY / name).unlink()


def _namespace() -> str:
    """The number of the namespace in which processes have their numbers."""
    try:
        return "".join(filter(str.isdigit, str(Path("/proc/self/ns/pid").readlink())))
    except OSError:
        return "0"

"""How a step fails: in one line that says why and what to do, and tried again only where that can help."""

from __future__ import annotations

import errno
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import dagster as dg
from sqlalchemy.exc import OperationalError

from traceviz_dag.errors import BadInputError, TracevizError, file_system_line
from traceviz_dag.lake.lake import Lake

P = ParamSpec("P")
R = TypeVar("R")

_RETRIES = 2
_FIRST_WAIT_SECONDS = 10

_PASSING = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EBUSY, errno.ENOMEM),
        *(errno.EMFILE, errno.ENFILE, errno.ETIMEDOUT, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ECONNRESET),
    }
)
"""Faults of the surroundings that may be gone a little later: a full disk, a store out of reach."""


def told_in_a_line(body: Callable[P, R]) -> Callable[P, R]:
    """The body of a step, which a bad input or a fault of the file system fails with a line for people.

    Only what may pass by itself is tried again; any other exception is a fault of the program, which comes back at each
    try.

    Args:
        body: takes the step's context first; a generator or a plain function.
    """
    if inspect.isgeneratorfunction(body):

        @wraps(body)
        def generating(*args: P.args, **kwargs: P.kwargs) -> Iterator[Any]:
            with _told_in_a_line(args[0]):
                yield from body(*args, **kwargs)

        return cast("Callable[P, R]", generating)

    @wraps(body)
    def returning(*args: P.args, **kwargs: P.kwargs) -> R:
        with _told_in_a_line(args[0]):
            return body(*args, **kwargs)

    return returning


@contextmanager
def _told_in_a_line(context: Any) -> Iterator[None]:
    try:
        yield
    except TracevizError as error:
        raise dg.Failure(description=str(error), allow_retries=False) from error
    except OSError as error:
        if error.errno in _PASSING and context.retry_number < _RETRIES:
            wait = _FIRST_WAIT_SECONDS * 2**context.retry_number
            raise dg.RetryRequested(max_retries=_RETRIES, seconds_to_wait=wait) from error
        raise dg.Failure(description=file_system_line(error), allow_retries=False) from error
    except OperationalError as error:
        if "locked" not in str(error) or context.retry_number >= _RETRIES:
            raise
        # Another program writes to Dagster's records; a second later it has done.
        raise dg.RetryRequested(max_retries=_RETRIES, seconds_to_wait=1) from error


def refresh_catalogue(context: dg.OpExecutionContext | dg.AssetExecutionContext, lake: Lake) -> None:
    """Build the catalogue anew where that is possible.

    A damaged file of another iteration is no fault of this one, whose tables are written by now; whoever asks for it
    by SQL gets its name.
    """
    try:
        lake.refresh_catalogue()
    except BadInputError as error:
        context.log.warning("%s", error)

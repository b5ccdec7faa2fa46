"""Objects at ``s3://BUCKET/KEY``, by obstore: listed, read in ranges, written on a condition.

Credentials, region and endpoint are those of the environment (``AWS_…``), which obstore reads; nothing of them is kept,
and no message of the store is shown, since it may quote a request.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import xxhash

from traceviz_dag.errors import StoreError, UsageError
from traceviz_dag.printable import SCHEME, is_object_url
from traceviz_dag.system.paths import real_path

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")
_VALUE, _ENDPOINT = re.compile(r"[^\x00-\x1f\x7f]*"), re.compile(r"https?://[!-~]+", re.IGNORECASE)
_KEY = re.compile(r'Path "([^"]{1,1024})"')
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_STATUS = re.compile(r"status code: (\d{3})")
_SECOND_NS = 1_000_000_000
_FIRST_BYTES, _MOST_BYTES = 1 << 18, 1 << 23
"""The first range of a stream is for its head alone; each further one is twice as long, up to the most."""

_RETRIES = {"max_retries": 3, "retry_timeout": timedelta(seconds=60)}
_ANSWERED_WITHIN = "600s"
"""obstore's 30 s are too short for the file of a rank over a slow line."""

_AGAIN = "run it again once the store answers"
_REFUSED = "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and what they are allowed to do"
_EXPIRED = ("the credentials have expired", "renew those in the environment, and run it again")
_BAD_KEYS = frozenset({"InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch", "AccessDenied"})
_ELSEWHERE = ("the bucket is in another region", "set AWS_REGION")
_OF_CODES = {
    "NoSuchBucket": ("no such bucket", "check its name, and AWS_ENDPOINT_URL"),
    "ExpiredToken": _EXPIRED,
    "ExpiredTokenException": _EXPIRED,
    "RequestTimeTooSkewed": ("the clock of this machine is off", "set it"),
    "PermanentRedirect": _ELSEWHERE,
}
_METADATA = "169.254.169.254"
"""Where credentials are looked for, in a cloud, once the environment has none."""

_NONE = (
    "no credentials",
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for public ones",
)
_OF_WORDS = {
    "builder error": ("the store has no TLS", "set AWS_ENDPOINT_URL to https://…, or AWS_ALLOW_HTTP=true"),
    "redirect without LOCATION": _ELSEWHERE,
    "HTTP error": ("the store is out of reach", "check the network and AWS_ENDPOINT_URL, and run it again"),
}


class ReplacedError(StoreError):
    """The condition of a write does not hold: somebody else wrote the object."""


@dataclass(frozen=True, slots=True)
class Found:
    """An object as a listing shows it.

    Attributes:
        size: bytes. tag: its ETag. changed_ns: its last change, ns since 1970; stores tell it in seconds, so what is
            below a second comes of the tag: it differs for what was replaced within a second.
    """

    key: str
    size: int
    tag: str
    changed_ns: int

    @property
    def second_ns(self) -> int:
        """The second of its last change, ns since 1970: not after it."""
        return self.changed_ns // _SECOND_NS * _SECOND_NS


class Bucket:
    """The objects of a bucket.

    Args:
        url: ``s3://BUCKET/KEY``; of anything in it.

    Attributes:
        key: of the URL; without slashes around it.

    Raises:
        UsageError: it is no such URL, or obstore is not installed.
    """

    def __init__(self, url: str) -> None:
        rest = url.removeprefix(SCHEME[:-2]).lstrip("/")  # ``Path`` spells it with one slash.
        self.name, _, key = rest.partition("/")
        self.key = key.strip("/")
        if not _BUCKET.fullmatch(self.name) or "?" in key:
            raise UsageError("an address of objects is s3://BUCKET/PREFIX; credentials are in the environment alone")
        # Credentials may be renewed while a process lives.
        self._store = _store_of(
            self.name, tuple(sorted(one for one in os.environ.items() if one[0].startswith("AWS_")))
        )

    def url(self, key: str) -> str:
        """How a key is told to people."""
        return f"{SCHEME}{self.name}/{key}"

    def below(self, prefix: str, most: int) -> list[Found]:
        """All objects below a prefix, by key.

        Raises:
            StoreError: they cannot be listed, or are more than ``most``.
        """
        import obstore

        found: list[Found] = []
        with _told(self.url(prefix)):
            for chunk in obstore.list(self._store, prefix or None, chunk_size=1000):
                found += [_found(one) for one in chunk]
                if len(found) > most:
                    raise StoreError(self.url(prefix), f"more than {most:,} objects", "name a narrower prefix")
        return sorted(found, key=lambda one: one.key)

    def find(self, key: str) -> Found | None:
        """One object; None where there is none."""
        import obstore

        with _told(self.url(key)):
            try:
                return _found(obstore.head(self._store, key))
            except FileNotFoundError:
                return None

    def get(self, key: str) -> tuple[bytes, str] | None:
        """A small object and its tag; None where there is none."""
        import obstore

        with _told(self.url(key)):
            try:
                got = obstore.get(self._store, key)
                return bytes(got.bytes()), str(got.meta["e_tag"] or "")
            except FileNotFoundError:
                return None

    def delete(self, key: str) -> None:
        """Remove an object; one that is gone already is no error."""
        import obstore

        with _told(self.url(key)), suppress(FileNotFoundError):
            obstore.delete(self._store, key)

    def part(self, key: str, start: int, end: int, tag: str) -> bytes:
        """Bytes of an object, as long as it is the one with this tag.

        Raises:
            StoreError: it is another one now, is gone, or ends early.
        """
        import obstore

        with _told(self.url(key)):
            options: Any = {"range": (start, end)} | ({"if_match": tag} if tag else {})
            data = bytes(obstore.get(self._store, key, options=options).bytes())
        if len(data) != end - start:
            raise StoreError(self.url(key), f"ends after {start + len(data):,} bytes, before its end", _AGAIN)
        return data

    def put(self, key: str, data: bytes, *, replaces: str | None = None, always: bool = False) -> str:
        """Write an object at once, and give its tag.

        Args:
            replaces: the tag of what it replaces; None: there must be none yet. always: whatever is there.

        Raises:
            ReplacedError: something else is there.
        """
        import obstore

        mode: Any = "overwrite" if always else "create" if replaces is None else {"e_tag": replaces}
        with _told(self.url(key)):
            return str(obstore.put(self._store, key, data, mode=mode, use_multipart=False)["e_tag"] or "")


class ObjectStream(io.RawIOBase):
    """An object as a file to read from its start, or anywhere: fetched in ranges, all of the object with this tag.

    Args:
        size: its bytes. fetch: gives the bytes of a range.
    """

    def __init__(self, size: int, fetch: Callable[[int, int], bytes]) -> None:
        self._size, self._fetch = size, fetch
        self._at = self._start = 0
        self._held = b""
        self._next_bytes = _FIRST_BYTES

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go on elsewhere; nothing is fetched by it."""
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence])
        return self._at

    def readinto(self, target: Any, /) -> int:
        """Fill ``target`` as far as what is fetched reaches."""
        within = self._at - self._start
        if not 0 <= within < len(self._held):
            if self._at >= self._size:
                return 0
            self._held = self._fetch(self._at, min(self._at + self._next_bytes, self._size))
            self._start, within = self._at, 0
            self._next_bytes = min(2 * self._next_bytes, _MOST_BYTES)
        count = min(len(target), len(self._held) - within)
        memoryview(target)[:count] = memoryview(self._held)[within : within + count]
        self._at += count
        return count


def local_home(path: Path) -> Path:
    """The absolute path of a home on this machine.

    Raises:
        UsageError: it is at ``s3://``, which commands alone can fetch and publish.
    """
    if is_object_url(str(path)):
        raise UsageError("a home at s3:// is read by commands with --state FOLDER; name that folder here")
    return real_path(path)


@lru_cache(maxsize=8)
def _store_of(bucket: str, variables: tuple[tuple[str, str], ...]) -> Any:
    for name, value in variables:
        _check(f"{SCHEME}{bucket}", name, value)
    try:
        from obstore.store import S3Store
    except ImportError:
        raise UsageError("s3:// needs the extra storage: pip install 'traceviz-dag[storage]'") from None
    with _told(f"{SCHEME}{bucket}"):
        return S3Store(bucket, retry_config=_RETRIES, timeout=_ANSWERED_WITHIN)  # type: ignore[arg-type]


def _check(url: str, name: str, value: str) -> None:
    """Refuse what obstore panics at: no ``except`` for errors would catch that."""
    if not _VALUE.fullmatch(value):
        raise StoreError(url, f"{name} has a line break or another control character", "set it anew")
    if name.startswith("AWS_ENDPOINT"):
        try:
            parts = urlsplit(value)
            is_address = bool(_ENDPOINT.fullmatch(value) and parts.hostname) and parts.port != 0
        except ValueError:
            is_address = False
        if not is_address:
            raise StoreError(url, f"{name} is no address", "set it to https://HOST or https://HOST:PORT, or unset it")


def _found(one: Any) -> Found:
    tag = str(one["e_tag"] or "")
    below = xxhash.xxh3_64_intdigest(tag.encode()) % _SECOND_NS
    return Found(str(one["path"]), int(one["size"]), tag, int(one["last_modified"].timestamp()) * _SECOND_NS + below)


@contextmanager
def _told(url: str) -> Iterator[None]:
    """Turn what obstore raises into a line that names the URL, the fault and the remedy."""
    from obstore import exceptions

    try:
        yield
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
        raise ReplacedError(url, "was written anew meanwhile", "run it again") from None
    except (exceptions.BaseError, OSError, ValueError) as error:
        raise StoreError(url, *_fault(error)) from None


def _fault(error: Exception) -> tuple[str, str]:
    from obstore import exceptions

    text = str(error)
    key = _KEY.search(text)
    if isinstance(error, exceptions.InvalidPathError | ValueError) and key is not None:
        return f"no file can have the name of {key[1]}", "rename that object, or name a narrower prefix"
    code, status = _CODE.search(text), _STATUS.search(text)
    shown = code[1] if code is not None else status[1] if status is not None else ""
    known = _NONE if _METADATA in text else _OF_CODES.get(shown)
    known = known or next((told for word, told in _OF_WORDS.items() if not shown and word in text), None)
    refused = isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError | PermissionError)
    if known is None and (refused or shown in _BAD_KEYS):
        known = f"access is refused ({shown})", _REFUSED
    if known is None and isinstance(error, FileNotFoundError):
        known = "no such object", "check the address; it may have been removed meanwhile"
    if known is None and shown:
        known = f"the store answers {shown}", _AGAIN
    return known or (f"the store cannot be asked ({type(error).__name__})", "check the address, and the AWS_ variables")

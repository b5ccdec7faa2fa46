"""Fetches a file of a data set on a Hugging Face hub: found by listing, pinned to a commit, resumable, with checksum.

huggingface_hub does the talking (endpoint and mirror, token, offline switch, retries, progress); the partial file is
kept here, because that library starts over when its process dies.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import huggingface_hub.errors
import msgspec
import pyarrow as pa
from huggingface_hub import constants, get_hf_file_metadata, get_session, hf_hub_url, set_client_factory
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers, validate_repo_id  # type: ignore[attr-defined]
from huggingface_hub.utils._http import default_client_factory, hf_raise_for_status

from traceviz_dag.errors import OutputError, TracevizError
from traceviz_dag.read.hub.public_profile import DATA_SET, PROFILE
from traceviz_dag.read.nsys.files import is_export_name, is_profile_name
from traceviz_dag.system.json_bytes import decoded
from traceviz_dag.system.paths import real_path
from traceviz_dag.system.whole_files import changing, unwritable, write_atomically

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

FOLDER = "downloads"

ENDPOINTS_VARIABLE = "TRACEVIZ_HUB_ENDPOINTS"
"""Addresses of mirrors, separated by commas, that assets may fetch from besides the hub itself."""

_BLOCK_BYTES = 1 << 20
LONGEST_LISTING = 64 << 20
"""Bytes of the list of a data set's files; 100,000 files take 10 MB."""

LISTING_SECONDS = 120.0
"""How long that list may take to come."""

_MOST_LISTED = 12
_LONGEST_NAME = 200
_LONGEST_PATH = 2000
_RECORD = ".download.json"
_TRY_LATER = (408, 429)
_PLAIN = {"Accept-Encoding": "identity"}
_COMMIT = re.compile(r"[0-9a-f]{40}")
# No user, no backslash, nothing that is escaped before the path: https://evil.test\@hub has two hosts, by who reads it.
_PLAIN_ADDRESS = re.compile(r"(?i)https?://(?:[a-z0-9._\-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?(?:/[!-?A-\[\]-~]*)?")
# With both httpx and requests behind it, the library's own base of network errors is re-exported there.
_NETWORK_ERRORS: tuple[type[Exception], ...] = (huggingface_hub.errors.HTTPError, OSError)  # type: ignore[attr-defined]


class DownloadError(TracevizError):
    """A file cannot be fetched: no network, no such file, several that match, or wrong bytes."""


class Downloaded(msgspec.Struct, frozen=True):
    """One fetched file; kept as ``FILE.download.json`` beside it.

    Attributes:
        repository, revision, file: where it came from; the revision is the commit.
        bytes, sha256: of the file. published_sha256: what the hub states; None where it states none.
    """

    repository: str
    revision: str
    file: str
    bytes: int
    sha256: str
    published_sha256: str | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to fetch.

    Attributes:
        file: a path in the data set, a pattern, or part of a path.
        revision: branch, tag or commit; None takes the default branch.
        endpoint: address of the hub; None takes HF_ENDPOINT, else huggingface.co. The token goes to the host of that
            default alone.
    """

    repository: str = DATA_SET
    file: str = PROFILE
    revision: str | None = None
    endpoint: str | None = None

    def token(self) -> bool | None:
        """What makes the hub's client send its token (None), or not to (False)."""
        return None if _address(self.endpoint or constants.ENDPOINT) == _address(constants.ENDPOINT) else False


def check_endpoint(endpoint: str | None) -> None:
    """Refuse an address that the operator has not listed in TRACEVIZ_HUB_ENDPOINTS; None is the hub itself.

    Raises:
        DownloadError: it is not the hub, nor listed.
    """
    listed = [constants.ENDPOINT, *os.environ.get(ENDPOINTS_VARIABLE, "").split(",")]
    known = {_address(each.strip()) for each in listed if each.strip()}
    if endpoint is not None and _address(endpoint) not in known:
        raise DownloadError(
            f"{endpoint} is not an address that this home may fetch from: list it in {ENDPOINTS_VARIABLE} where the "
            "code server runs, or leave the endpoint empty for the hub"
        )


def download(wanted: Wanted, folder: Path) -> tuple[Path, Downloaded]:
    """Fetch a file, or take what is there already and whole.

    An interrupted download goes on where it ended. The file appears under its name when it is whole and its checksum
    is that of the hub. Without network, or with HF_HUB_OFFLINE=1, what was fetched before is found again.

    Args:
        folder: files are put below FOLDER/REPOSITORY/COMMIT/.

    Returns:
        The file, and what is known of it.

    Raises:
        DownloadError: with the reason and what to do.
    """
    _check_name(wanted.repository)
    kept = _kept(wanted, folder)
    # A kept file of a stated commit needs no network.
    if kept is not None and wanted.revision == kept[1].revision:
        return kept
    try:
        with _strict_client():
            listing = _listing(wanted)
            return _fetch(wanted, _chosen(wanted, listing.siblings or []), listing.sha, folder)
    except OutputError:
        raise
    except _NETWORK_ERRORS as error:
        if kept is not None and not isinstance(error, HfHubHTTPError):
            return kept
        raise _explained(error, wanted) from None


def matching(wanted: str, files: Sequence[str]) -> list[str]:
    """The files that a path, a pattern or part of a path names; of one profile's several formats the SQLite export."""
    exact = [name for name in files if name == wanted]
    if exact:
        return exact
    found = [name for name in files if fnmatch(name, wanted) or fnmatch(name.rsplit("/", 1)[-1], wanted)]
    found = found or [name for name in files if wanted in name]
    profiles = [name for name in found if is_profile_name(name)]
    found = profiles or found
    stems = {name.rsplit(".", 1)[0] for name in found}
    exports = [name for name in found if is_export_name(name)]
    return exports if len(stems) == 1 and exports else found


def download_all(wanted: Wanted, folder: Path) -> list[tuple[Path, Downloaded]]:
    """Fetch every file that a path, a pattern or part of a path names, of one commit; files that are there are kept.

    Args:
        folder: as for :func:`download`.

    Raises:
        DownloadError: with the reason and what to do; files that came before it stay.
    """
    _check_name(wanted.repository)
    try:
        with _strict_client():
            listing = _listing(wanted)
            files = {file.path: file for file in listing.siblings or []}
            names = matching(wanted.file, list(files))
            if not names:
                raise _none_matches(wanted, list(files))
            return [_fetch(wanted, files[name], listing.sha, folder) for name in names]
    except OutputError:
        raise
    except _NETWORK_ERRORS as error:
        raise _explained(error, wanted) from None


def _check_name(repository: str) -> None:
    try:
        validate_repo_id(repository)
    except HFValidationError:
        raise DownloadError(f"{repository}: not the name of a data set; name it as OWNER/NAME") from None


class _Large(msgspec.Struct, frozen=True):
    """What the hub states of a file that git keeps elsewhere."""

    sha256: str | None = None


class _Listed(msgspec.Struct, frozen=True, rename={"path": "rfilename"}):
    """A file as the hub lists it; what it does not state is None."""

    path: str
    size: int | None = None
    lfs: _Large | None = None


class _Listing(msgspec.Struct, frozen=True):
    """A data set as the hub shows it: its commit, and its files."""

    sha: str
    siblings: list[_Listed] | None = None


@contextmanager
def _strict_client() -> Iterator[None]:
    """The library's client without what a hub could abuse: waiting as long as it says, and inflating what it sends."""
    set_client_factory(_client)
    try:
        yield
    finally:
        set_client_factory(default_client_factory)


def _client() -> Any:
    client = default_client_factory()
    client.event_hooks = {**client.event_hooks, "response": [_check_response]}
    return client


def _check_response(response: Any) -> None:
    if response.status_code in _TRY_LATER:
        hf_raise_for_status(response)
    if response.is_success and response.headers.get("content-encoding", "identity").lower() != "identity":
        raise DownloadError(f"{response.url.host}: sends compressed what was asked for as it is; check the address")


def _listing(wanted: Wanted) -> _Listing:
    """All files and their commit, from one answer that is bounded in length and time.

    The library's own listing holds whatever is sent, and follows a list of several pages to any host, with the token.

    Raises:
        DownloadError: it is longer, takes longer, or is no such list.
    """
    address = f"{(wanted.endpoint or constants.ENDPOINT).rstrip('/')}/api/datasets/{wanted.repository}"
    if wanted.revision is not None:
        address += f"/revision/{quote(wanted.revision, safe='')}"
    text, until = bytearray(), monotonic() + LISTING_SECONDS
    with (
        _answer_of(wanted),
        get_session().stream(
            "GET",
            address,
            params={"blobs": True},
            headers={**build_hf_headers(token=wanted.token()), **_PLAIN},
            timeout=constants.HF_HUB_ETAG_TIMEOUT,
        ) as response,
    ):
        hf_raise_for_status(response)
        for piece in response.iter_raw(_BLOCK_BYTES):
            text += piece
            if len(text) > LONGEST_LISTING or monotonic() > until:
                raise DownloadError(
                    f"{wanted.repository}: the list of its files is longer than {LONGEST_LISTING >> 20} MiB or takes "
                    f"more than {LISTING_SECONDS:g} s; check the address, or fetch the file by other means"
                )
        return decoded(bytes(text), _Listing)


@contextmanager
def _answer_of(wanted: Wanted) -> Iterator[None]:
    """What answers may be no hub at all, and the library takes its answers apart as if they were one's."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError, msgspec.DecodeError) as error:
        raise DownloadError(
            f"{wanted.repository}: {wanted.endpoint or constants.ENDPOINT} answers as no hub does "
            f"({type(error).__name__}); check the address"
        ) from error


def _chosen(wanted: Wanted, files: Sequence[_Listed]) -> _Listed:
    names = matching(wanted.file, [file.path for file in files])
    if len(names) == 1:
        return next(file for file in files if file.path == names[0])
    if names:
        listed = ", ".join(names[:_MOST_LISTED]) + (", …" if len(names) > _MOST_LISTED else "")
        raise DownloadError(
            f"{wanted.repository}: {len(names)} files match {wanted.file!r}: {listed}; name one of them with --file"
        )
    raise _none_matches(wanted, [file.path for file in files])


def _none_matches(wanted: Wanted, paths: Sequence[str]) -> DownloadError:
    there = list(filter(is_profile_name, paths)) or paths
    listed = ", ".join(there[:_MOST_LISTED]) + (", …" if len(there) > _MOST_LISTED else "")
    return DownloadError(f"{wanted.repository}: no file matches {wanted.file!r}; there are {listed or 'none'}")


def _fetch(wanted: Wanted, file: _Listed, revision: str, folder: Path) -> tuple[Path, Downloaded]:
    target = _target(folder, wanted.repository, revision, file.path)
    with changing(target):
        kept = _record(target)
        if kept is not None:
            return target, kept
        url = hf_hub_url(wanted.repository, file.path, repo_type="dataset", revision=revision, endpoint=wanted.endpoint)
        with _answer_of(wanted):
            metadata = get_hf_file_metadata(url, endpoint=wanted.endpoint, token=wanted.token())
        size = file.size if metadata.size is None else metadata.size
        if size is None or not 0 <= size <= constants.MAX_HTTP_DOWNLOAD_SIZE:
            stated = "no size" if size is None else f"a size of {size:,} bytes"
            raise DownloadError(f"{file.path}: the hub states {stated}, which is refused; fetch it by other means")
        if metadata.commit_hash not in (None, revision):
            raise DownloadError(
                f"{file.path}: the hub sends it of another commit than it was asked for; fetch it again"
            )
        state = hashlib.sha256((metadata.etag or revision).encode()).hexdigest()[:16]
        partial = target.with_name(f".{target.name}.{state}.part")
        _complete(url, partial, size, target.name, wanted.token())
        sha256 = _sha256(partial)
        published = file.lfs.sha256 if file.lfs else None
        if published is not None and sha256 != published:
            partial.unlink()
            raise DownloadError(f"{file.path}: its SHA-256 is {sha256}, the hub says {published[:64]}; fetch it again")
        try:
            partial.replace(target)
        except OSError as error:
            raise unwritable(target, error) from error
        record = Downloaded(wanted.repository, revision, file.path, size, sha256, published)
        write_atomically(_record_path(target), pa.py_buffer(msgspec.json.format(msgspec.json.encode(record))))
    return target, record


class _Partial(io.FileIO):
    """A partial file that takes no more than it lacks, whatever is sent; not buffered, so that faults show at once.

    Args:
        shown: its name in messages. size: of the whole file, in bytes.
    """

    def __init__(self, path: Path, shown: str, size: int) -> None:
        super().__init__(path, "r+" if os.path.lexists(path) else "x+", opener=_as_it_is)
        found = os.fstat(self.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            self.close()
            raise OutputError(path, "is no file of a download alone", "remove it")
        self.path, self.shown, self.size = path, shown, size

    def write(self, data: ReadableBuffer) -> int:
        """Write all of it.

        Raises:
            DownloadError: it is more than the file lacks. OutputError: it cannot be written.
        """
        left = memoryview(data)
        whole = left.nbytes
        if self.tell() + whole > self.size:
            raise DownloadError(f"{self.shown}: more is sent than the {self.size:,} bytes that the hub states")
        try:
            while left.nbytes:
                left = left[super().write(left) :]
        except OSError as error:
            raise unwritable(self.path, error) from error
        return whole


def _as_it_is(path: str, flags: int) -> int:
    """Open what is there, never what a link leads to."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _complete(url: str, partial: Path, size: int, shown: str, token: bool | None) -> None:
    """Fetch what a partial file lacks."""
    try:
        file = _Partial(partial, shown, size)
    except OSError as error:
        raise unwritable(partial, error) from error
    with file:
        there = file.seek(0, os.SEEK_END)
        if there > size:
            file.truncate(0)
            there = file.seek(0)
        free = shutil.disk_usage(partial.parent).free
        if size - there > free:
            fault = OSError(errno.ENOSPC, f"{size - there:,} bytes are to come, {free:,} are free")
            raise unwritable(partial, fault)
        if there < size:
            _receive(url, file, there, token)


def _receive(url: str, file: _Partial, there: int, token: bool | None) -> None:
    try:
        http_get(
            url,
            file,
            resume_size=there,
            headers={**build_hf_headers(token=token), **_PLAIN},
            expected_size=file.size,
            displayed_filename=file.shown,
        )
    except (HfHubHTTPError, OfflineModeIsEnabled, TracevizError):
        raise
    except _NETWORK_ERRORS as error:
        raise DownloadError(
            f"{file.shown}: the connection broke after {file.tell():,} of {file.size:,} bytes "
            f"({type(error).__name__}); run the same command again, it goes on from there"
        ) from None


def _kept(wanted: Wanted, folder: Path) -> tuple[Path, Downloaded] | None:
    """The newest file that was fetched before and matches what is wanted."""
    base = folder / FOLDER / wanted.repository.replace("/", "--")
    found = []
    for path in base.glob(f"*/**/*{_RECORD}"):
        target = path.with_name(path.name.removesuffix(_RECORD))
        record = _record(target)
        if record is None or not matching(wanted.file, [record.file]):
            continue
        if wanted.revision in (None, record.revision):
            found.append((path.stat().st_mtime_ns, target, record))
    return max(found, key=lambda one: one[0])[1:] if found else None


def _record(target: Path) -> Downloaded | None:
    """What is known of a file that is there and as long as it was."""
    try:
        record = decoded(_record_path(target).read_bytes(), Downloaded)
        return record if target.stat().st_size == record.bytes else None
    except (OSError, msgspec.DecodeError):
        # Not there, or nothing that we wrote.
        return None


def _record_path(target: Path) -> Path:
    return target.with_name(f"{target.name}{_RECORD}")


def _target(folder: Path, repository: str, revision: str, name: str) -> Path:
    """Where a file of a data set is put; the hub's word for its path and its commit is checked, not trusted.

    The folder it lies in is there afterwards.

    Raises:
        DownloadError: the file would not lie below the folder of its data set, or its name is one of our own.
    """
    parts = name.split("/")
    plain = all(
        part not in ("", ".", "..") and part.isprintable() and len(part.encode()) <= _LONGEST_NAME for part in parts
    )
    ours = any(part.startswith(".") or part.endswith(_RECORD) for part in parts)
    deep = len(name.encode(errors="replace")) > _LONGEST_PATH
    if (
        not plain
        or ours
        or deep
        or "\\" in name
        or PurePosixPath(name).is_absolute()
        or not _COMMIT.fullmatch(revision)
    ):
        listed = f"{name[:_LONGEST_NAME]!r} at {revision[:_LONGEST_NAME]!r}"
        raise DownloadError(f"{repository}: the hub lists a file as {listed}, which is refused")
    base = folder / FOLDER / repository.replace("/", "--")
    target = base / revision / name
    _make(base)
    # A link may lie on the way: nothing is made behind one that leads elsewhere.
    there = next(path for path in target.parents if path.exists())
    if not real_path(there).is_relative_to(real_path(base)):
        raise DownloadError(f"{there} leads out of {base}: remove that link, or name another folder with --output")
    _make(target.parent)
    return target


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from error


def _address(endpoint: str) -> tuple[str, str, int | None]:
    """What makes two addresses the same server; one that programs may take apart differently is like no other."""
    address = endpoint if "://" in endpoint else f"https://{endpoint}"
    if not _PLAIN_ADDRESS.fullmatch(address):
        return "", endpoint, None
    try:
        split = urlsplit(address)
        port = split.port or {"https": 443, "http": 80}.get(split.scheme)
    except ValueError:
        return "", endpoint, None
    return split.scheme, (split.hostname or "").lower(), port


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _explained(error: Exception, wanted: Wanted) -> DownloadError:
    where = wanted.endpoint or "the hub"
    status = getattr(getattr(error, "response", None), "status_code", "an error")
    # The first that fits is taken: the later ones are bases of the earlier ones.
    reasons: dict[type[Exception], str] = {
        OfflineModeIsEnabled: "HF_HUB_OFFLINE is set and the file was not fetched before; unset it and try again",
        GatedRepoError: "its owner grants access on request; ask on its page and set HF_TOKEN",
        RepositoryNotFoundError: "no such data set, or a private one; check the name, or set HF_TOKEN",
        RevisionNotFoundError: f"no revision {wanted.revision}; check --revision",
        EntryNotFoundError: "the file is gone from the hub; run the command again",
        HfHubHTTPError: f"the hub answered {status}; try again later",
        Exception: f"{where} cannot be reached ({type(error).__name__}); check the network, "
        "or set HF_ENDPOINT to a mirror",
    }
    return DownloadError(f"{wanted.repository}: {next(r for kind, r in reasons.items() if isinstance(error, kind))}")

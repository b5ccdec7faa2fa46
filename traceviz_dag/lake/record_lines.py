"""The lines of the lake's record: what each part of an iteration holds, and which parts lie together in a packed file.

A line holds a checksum over its iteration and itself, a word, the table, the rank and the digest, of a part that was
converted from an earlier version the digest that it had and the columns that it lacked, and what the part was made of;
the last line of a part counts. A line of a packed file names ranks instead, ahead of all lines of these ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from traceviz_dag.lake.partitions import Partition

GONE = "-"
"""Instead of a digest: there is no file."""

ANNOUNCED, SETTLED, BEGUN, PACKED = "announced", "settled", "begun", "packed"
_WORDS = {word.encode() for word in (ANNOUNCED, SETTLED, BEGUN, PACKED)}

PACKED_FOLDER = ".packed"
"""In the lake's folder: no table has this name."""

_LEAST_WORDS = 4

Part = tuple[str, int | None]
"""Table and rank; the rank is None in tables that hold a whole iteration."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a part holds.

    Attributes:
        digest: that of its file.
        former: where it was converted, the digest that it had before.
        missing: columns that the version which computed it did not have; they are NULL.
        made: of what it was made, a word; empty where the writer did not say. It decides whether the part is stale.
    """

    digest: str
    former: str = GONE
    missing: tuple[str, ...] = ()
    made: str = ""

    @property
    def computed(self) -> str:
        """The digest of the file as it was computed, whatever version converted it since."""
        return self.digest if self.former == GONE else self.former


NO_FILE = Content(GONE)
AS_PACKED = Content(PACKED)
"""Of a part whose writer announced another content: that which the packed file has of it."""


@dataclass(frozen=True, slots=True)
class Pack:
    """One file with the parts of several ranks.

    Attributes:
        ranks: in order; what is recorded of one by itself, written or deleted since, wins over the file.
        digest: of the file.
        name: of the file, beside that of its table; another name for other rows.
        missing: columns that some part lacked, as :attr:`Content.missing`.
        sources: name and digest of the file whose lines say what each part was when it was packed.
    """

    table: str
    ranks: tuple[range, ...]
    digest: str
    name: str
    missing: tuple[str, ...]
    sources: str

    def __contains__(self, rank: int | None) -> bool:
        return any(rank in some for some in self.ranks)

    def each_rank(self) -> Iterator[int]:
        """Its ranks, in order."""
        return (rank for some in self.ranks for rank in some)

    def path(self, lake: Path, run: str, iteration: int) -> Path:
        """Where the file is, below the folder of all tables."""
        return packed_folder(lake, run, iteration) / f"{self.table}.{self.name}.parquet"


@dataclass(frozen=True, slots=True)
class Record:
    """What is recorded of one iteration.

    Attributes:
        contents: part → what it may hold; more than one only where its last writer was killed.
        is_complete: whether it covers every part of the iteration. Where not, the iteration was written by a version
            that kept no record, or the record is damaged.
        damaged_lines: lines that are not as they were written.
        packs: table → the file that holds the parts of which ``contents`` says nothing.
        is_newer: whether some line is of a version after this one.
        lost_packs: whether a packed file counts whose line is damaged.
    """

    contents: Mapping[Part, tuple[Content, ...]]
    is_complete: bool
    damaged_lines: int = 0
    packs: Mapping[str, Pack] = field(default_factory=dict)
    is_newer: bool = False
    lost_packs: bool = False

    def digests(self, part: Part) -> tuple[str, ...]:
        """The digests that a part may have; ``GONE`` represents none. Nothing where it is not recorded."""
        return tuple(content.digest for content in self.contents.get(part, ()))

    def held(self, part: Part) -> tuple[Content, ...] | Pack:
        """What a part is: the contents that it may have, or the packed file; nothing where it is not recorded."""
        pack = self.packs.get(part[0])
        own = self.contents.get(part, ())
        return pack if pack is not None and not own and part[1] in pack else own


NOTHING = Record({}, is_complete=False)


def packed_folder(lake: Path, run: str, iteration: int) -> Path:
    """Where the packed files of an iteration lie."""
    return Partition(run, iteration).folder(lake / PACKED_FOLDER)


def parsed(place: str, data: bytes) -> Record:
    """What the lines of an iteration say.

    Args:
        place: that of the iteration, as :attr:`Partition.below`.
    """
    contents: dict[Part, tuple[Content, ...]] = {}
    packs: dict[str, Pack] = {}
    complete, damaged, newer, stated = False, 0, False, 0
    bound_to = place.encode() + b" "
    for line in data.split(b"\n"):
        if not line:
            continue
        checksum, _, rest = line.partition(b" ")
        if checksum != _checksum(bound_to, rest):
            damaged += 1
            continue
        if rest.partition(b" ")[0] not in _WORDS:
            newer = True
            continue
        word, table, rank, digest, *more = rest.decode().split(" ")
        # It becomes a part of a path, and the record may come from a bucket that somebody else writes to.
        if word != BEGUN and not table.isidentifier():
            damaged += 1
            continue
        former, missing, made = (*more, *(GONE, GONE, "")[len(more) :])
        content = Content(digest, former, tuple(missing.split(",")) if missing != GONE else (), made)
        if word == PACKED:
            packs[table] = Pack(table, _ranges(rank), digest, former, content.missing, made)
            continue
        part = (table, None if rank == GONE else int(rank))
        if word == BEGUN:
            complete, stated = True, 0 if digest == GONE else int(digest)
        elif word == SETTLED:
            contents[part] = (content,)
        else:
            pack = packs.get(table)
            before = AS_PACKED if pack is not None and part[1] in pack else NO_FILE
            contents[part] = tuple(dict.fromkeys((*contents.get(part, (before,)), content)))
    lost = stated != len(packs) if complete else damaged > 0
    return Record(contents, complete, damaged, packs, newer, lost)


def line_of(place: str, word: str, part: Part, content: Content) -> bytes:
    """A line about a part, which belongs to the iteration of this place alone."""
    table, rank = part
    return _line(place, word, table, GONE if rank is None else str(rank), content)


def line_of_pack(place: str, pack: Pack) -> bytes:
    """A line about a packed file."""
    content = Content(pack.digest, pack.name, pack.missing, pack.sources)
    return _line(place, PACKED, pack.table, _text(pack.ranks), content)


def begun(place: str, packs: int = 0) -> bytes:
    """The line that says that the lines cover every part of the iteration, and so many packed files."""
    return line_of(place, BEGUN, ("", None), Content(str(packs) if packs else GONE))


def in_order(parts: Iterable[Part]) -> list[Part]:
    """Parts by table and rank."""
    return sorted(parts, key=lambda part: (part[0], -1 if part[1] is None else part[1]))


def as_ranges(ranks: Iterable[int]) -> tuple[range, ...]:
    """Ranks as ranges, in order."""
    found: list[range] = []
    for rank in sorted(ranks):
        if found and found[-1].stop == rank:
            found[-1] = range(found[-1].start, rank + 1)
        else:
            found.append(range(rank, rank + 1))
    return tuple(found)


def _line(place: str, word: str, table: str, ranks: str, content: Content) -> bytes:
    words = [word, table or GONE, ranks, content.digest]
    words += [content.former, ",".join(content.missing) or GONE, content.made]
    while len(words) > _LEAST_WORDS and words[-1] in (GONE, ""):
        words.pop()
    rest = " ".join(words).encode()
    # The break comes first: what a full disk left of a line before does not touch this one.
    return b"\n" + _checksum(place.encode() + b" ", rest) + b" " + rest


def _checksum(place: bytes, rest: bytes) -> bytes:
    return xxhash.xxh3_64_hexdigest(place + rest).encode()


def _text(ranks: Iterable[range]) -> str:
    return ",".join(f"{some.start}-{some.stop - 1}" for some in ranks)


def _ranges(text: str) -> tuple[range, ...]:
    return tuple(_range(*some.split("-")) for some in text.split(","))


def _range(first: str, last: str) -> range:
    return range(int(first), int(last) + 1)

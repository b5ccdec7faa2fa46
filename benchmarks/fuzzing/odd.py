"""Values that no exporter should write, as texts of JSON, TOML and SQL, and changes of raw bytes."""

from __future__ import annotations

import random
from collections.abc import Callable

DEEP = 5000
"""Levels of nesting: more than any decoder of recursive descent takes."""

NUMBERS = (
    *("0", "-0", "-0.0", "-1", "1", "0.5", "1e-320", "1e308", "1e309", "-1e309", "1E400"),
    *("127", "128", "32768", "65536", "2147483647", "2147483648", "-2147483649", "4294967296"),
    *("9007199254740993", "4503599627370497", "4611686018427387904", "-4611686018427387904"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809"),
    *("18446744073709551615", "18446744073709551616", "1" + "0" * 30, "9" * 400, "-" + "9" * 400, "9" * 5000),
    *(
        "1e99999999999999999999999",
        "1e-99999999999999999999999",
        "1e999999999",
        "0." + "1" * 400,
        "1e5000",
        "1e-5000",
        "1699999999999999.123",
        "8796093022208.001",
    ),
)

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x1b[31m\u009b31m\u202e"
"""What moves a terminal's cursor, names its window, or turns the direction of its text."""

TEXTS = (
    *("", " ", "a", "0", "-1", "nan", "NaN", "inf", "true", "null", "undefined", "default_pg", "kernel", "cpu_op"),
    *("[0, 1]", "[0, 1", "[", "[]", "[" + "9" * 400 + "]", "[0, 1, 1]", "9" * 5000, "٣", "²", "-" * 5, "--1"),
    *("[[0]]", "{}", '{"a": 1}', "ProfilerStep#7", "ProfilerStep#" + "9" * 30, "ProfilerStep#-1", "x" * 70_000),
    *("nccl:all_reduce", "ncclDevKernel_AllReduce_Sum", "rank_9", "a\nb", "\x00", "\x7f", "\ufeff", "名前 🚀"),
    *(ESCAPE, "../../x", "[bold]x[/nothing]", "%s%n", "'; DROP TABLE x; --", '"', "\\", "\u2028", "pipe|e[d]"),
)

JSON = (
    *NUMBERS,
    *("null", "true", "false", "NaN", "Infinity", "-Infinity", "nan", "[]", "{}", "[[]]", '[{"a": [1]}]', "[1, 2]"),
    *("[1, 2, 3]", "[1, 2, 3, 4]", "[null, true, 1.5]", '["1", "2", "3"]', '"\\ud800"', '"\\udc00x"', '"\\u0000"'),
    *('"\\x"', '"unfinished', '"\x01"', "01", "+1", ".5", "1.", "0x10", "'a'", "nope", "", "[" * 40, "{" * 3),
    "[" * DEEP + "]" * DEEP,
    '{"a":' * DEEP + "1" + "}" * DEEP,
    "[" * DEEP,
)

TOML = (
    *(number for number in NUMBERS if "e" not in number.lower()),
    *("true", "false", "inf", "-inf", "nan", "1e400", "1979-05-27", "1979-05-27T07:32:00Z", "07:32:00", "[]", "{}"),
    *("[[]]", "[1, 2]", "[true, false]", '["a", 1]', "{a = 1}", '"\\ud800"', '"\\u0000"', '"\\x"', "'", '"""', ""),
    "[" * DEEP + "]" * DEEP,
    "[" * 200 + "]" * 200,
    "{a = " * 500 + "1" + "}" * 500,
)

Bytes = Callable[[bytes, random.Random], bytes]


def json_value(chance: random.Random) -> str:
    """A JSON text, or what is none."""
    if chance.random() < 0.25:
        return _quoted(chance.choice(TEXTS))
    if chance.random() < 0.1:
        return str(chance.randint(-(2**70), 2**70))
    return chance.choice(JSON)


def toml_value(chance: random.Random) -> str:
    """A TOML value, or what is none."""
    return _quoted(chance.choice(TEXTS)) if chance.random() < 0.3 else chance.choice(TOML)


def sql_value(chance: random.Random) -> object:
    """What a cell of a SQLite table may hold, whatever its column declares."""
    numbers = [0, 1, -1, 2**31, -(2**31) - 1, 2**53 + 1, 2**62, -(2**62), 2**63 - 1, -(2**63), 59, 60, 34, 75, 1 << 24]
    others = [None, 0.5, -1.5, 1e308, float("inf"), float("nan"), b"", b"\xff\xfe", b"\0" * 40, "9" * 400]
    return chance.choice([*numbers, *others, *TEXTS])


def _quoted(text: str) -> str:
    import json

    return json.dumps(text, ensure_ascii=False)


def _cut(text: bytes, chance: random.Random) -> bytes:
    return text[: chance.randrange(len(text) + 1)]


def _without_part(text: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(text) + 1)
    return text[:at] + text[at + chance.choice((1, 2, 5, 40, 400)) :]


def _doubled_part(text: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(text) + 1)
    part = text[at : at + chance.choice((1, 10, 100, 1000))]
    return text[:at] + part * chance.choice((2, 3, 50)) + text[at + len(part) :]


def _flipped(text: bytes, chance: random.Random) -> bytes:
    changed = bytearray(text)
    for _ in range(chance.choice((1, 1, 2, 8))):
        if changed:
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _with_bytes(text: bytes, chance: random.Random) -> bytes:
    parts = (
        b"\0",
        b"\xff",
        b"\xc3",
        b"\xed\xa0\x80",
        b"\x1b[2J",
        b"\xef\xbb\xbf",
        b"\x85",
        b"\xe2\x80\xa8",
        b"\r",
        b"\n",
    )
    more = (b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"=", b"-", b"#", b" " * 3000, b"},{", b'"traceEvents":[')
    at = chance.randrange(len(text) + 1)
    return text[:at] + chance.choice((*parts, *more)) + text[at:]


def _swapped(text: bytes, chance: random.Random) -> bytes:
    a, b, c = sorted(chance.randrange(len(text) + 1) for _ in range(3))
    return text[:a] + text[b:c] + text[a:b] + text[c:]


def _encoded(text: bytes, chance: random.Random) -> bytes:
    return text.decode("utf-8", "replace").encode(chance.choice(("utf-16", "utf-32", "utf-16-le", "utf-8-sig")))


RAW: tuple[Bytes, ...] = (_cut, _without_part, _doubled_part, _flipped, _with_bytes, _with_bytes, _swapped)
"""Changes of bytes that know no structure."""


def raw(text: bytes, chance: random.Random) -> bytes:
    """One change of the bytes."""
    return _encoded(text, chance) if chance.random() < 0.03 else chance.choice(RAW)(text, chance)

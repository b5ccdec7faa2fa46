"""Reads pickles of plain containers, and nothing else: no opcode that it knows can name, import or call anything.

Only the standard library is imported here: a child process runs it, and starts in milliseconds.
"""

from __future__ import annotations

import re
import struct
from typing import Any, NoReturn

MOST_MARKS = 64
"""Containers that are open at once; a snapshot opens eight."""

MOST_NESTED = 64
"""Containers inside of each other that are filled without a mark, as tuples and lists of one item are; with marks in
between, ``MOST_MARKS`` times as many. How many values a batch has is not bounded: PyTorch's own pickler, in C++,
writes a list as one."""

_LONGEST_INTEGER = 16
"""Bytes of an integer; an address takes eight."""
_LONGEST_DIGITS = 40
_LONGEST_TEXT = 1 << 24
_MOST_REMEMBERED = 1 << 25
"""Bytes of runs of references whose values are kept."""

_RUN = re.compile(rb"(?:h.|j....)+", re.DOTALL).match
_FLOAT = struct.Struct(">d").unpack_from
_SINGLETONS: dict[int, Any] = {0x4E: None, 0x88: True, 0x89: False}
_TEXTS = {0x8C: 1, 0x58: 4, 0x8D: 8, 0x54: 4, 0x55: 1, 0x42: 4, 0x43: 1}
"""Opcode of a text or of bytes → bytes of its length."""
_INTEGERS = {0x4B: 1, 0x4D: 2, 0x4A: 4}
_TUPLES = {0x29: 0, 0x85: 1, 0x86: 2, 0x87: 3}
_LINES = b"ILFVpg"
_KEYS = (str, int)
_CONTAINERS = (list, dict, tuple)


class NotPlainError(ValueError):
    """The bytes are no pickle of plain containers; the message says where and why."""


def read_plain(data: bytes) -> Any:
    """The value that a pickle of plain containers holds.

    Lists, dictionaries with texts or integers as keys, tuples, texts, bytes, numbers, truth values and None are built;
    any other opcode is refused before anything is done for it. Work and memory grow with the bytes, not with numbers in
    them: an index is refused that lies beyond what can have been stored so far. Nesting is bounded by ``MOST_MARKS``
    and ``MOST_NESTED``. What is referred to may contain what refers to it, however deeply, also
    in circles: never walk the result without knowing where to.

    Args:
        data: the file; what follows its end mark is not looked at.

    Raises:
        NotPlainError: another opcode, a value out of bounds, or an end too soon.
        MemoryError: the process may not have as much as the file asks for.
    """
    try:
        return _run(data)
    except (IndexError, KeyError, struct.error):
        raise NotPlainError("it is cut off or broken: an opcode lacks its operands") from None
    except (AttributeError, TypeError, UnicodeDecodeError, ValueError) as error:
        if isinstance(error, NotPlainError):
            raise
        raise NotPlainError("it is broken: an operand does not fit its opcode") from None


def _run(data: bytes) -> Any:  # noqa: PLR0912, PLR0915 one loop without calls is what makes it fast
    stack: list[Any] = []
    below: list[list[Any]] = []
    memo: dict[int, Any] = {}
    runs: dict[bytes, tuple[Any, ...]] = {}
    nested: dict[int, tuple[int, Any]] = {}
    remembered = at = 0
    while True:
        code = data[at]
        if code in b"hj":  # BINGET, LONG_BINGET; most of a snapshot, in long runs
            if code == 0x68 and data[at + 2] not in b"hj":
                stack.append(memo[data[at + 1]])
                at += 2
                continue
            match = _RUN(data, at)
            if match is None:
                raise IndexError
            run = match.group()
            values = runs.get(run)
            if values is None:
                values = _referred(run, memo)
                remembered += len(run)
                if remembered > _MOST_REMEMBERED:
                    runs.clear()
                    remembered = len(run)
                runs[run] = values
            stack.extend(values)
            at += len(run)
        elif code in _TEXTS:
            width = _TEXTS[code]
            begin = at + 1 + width
            end = begin + int.from_bytes(data[at + 1 : begin], "little")
            if end > len(data) or end - begin > _LONGEST_TEXT:
                raise IndexError
            piece = data[begin:end]
            stack.append(piece if code in b"BC" else piece.decode("utf-8", "surrogatepass"))
            at = end
        elif code == 0x94:  # MEMOIZE
            index = len(memo)
            if index in memo:
                _refuse("MEMOIZE", at)
            memo[index] = stack[-1]
            at += 1
        elif code in _INTEGERS:
            end = at + 1 + _INTEGERS[code]
            piece = data[at + 1 : end]
            if end > len(data):
                raise IndexError
            stack.append(int.from_bytes(piece, "little", signed=code == 0x4A))
            at = end
        elif code == 0x8A:  # LONG1
            length = data[at + 1]
            end = at + 2 + length
            if length > _LONGEST_INTEGER:
                _refuse(f"an integer of {length} bytes", at)
            if end > len(data):
                raise IndexError
            stack.append(int.from_bytes(data[at + 2 : end], "little", signed=True))
            at = end
        elif code == 0x28:  # MARK
            if len(below) >= MOST_MARKS:
                _refuse("nesting without end", at)
            below.append(stack)
            stack = []
            at += 1
        elif code == 0x75:  # SETITEMS
            items, stack = stack, below.pop()
            target = stack[-1]
            keys = items[::2]
            if type(target) is not dict or len(items) % 2 or any(type(key) not in _KEYS for key in keys):
                _refuse("SETITEMS", at)
            target.update(zip(keys, items[1::2], strict=True))
            at += 1
        elif code == 0x65:  # APPENDS
            items, stack = stack, below.pop()
            target = stack[-1]
            if type(target) is not list:
                _refuse("APPENDS", at)
            target.extend(items)
            at += 1
        elif code in b"}]":  # EMPTY_DICT, EMPTY_LIST
            stack.append({} if code == 0x7D else [])
            at += 1
        elif code == 0x61:  # APPEND
            value = stack.pop()
            if type(stack[-1]) is not list:
                _refuse("APPEND", at)
            stack[-1].append(value)
            if type(value) in _CONTAINERS:
                _nest(stack[-1], [value], nested, at)
            at += 1
        elif code == 0x73:  # SETITEM
            value, key = stack.pop(), stack.pop()
            if type(stack[-1]) is not dict or type(key) not in _KEYS:
                _refuse("SETITEM", at)
            stack[-1][key] = value
            if type(value) in _CONTAINERS:
                _nest(stack[-1], [value], nested, at)
            at += 1
        elif code in _SINGLETONS:
            stack.append(_SINGLETONS[code])
            at += 1
        elif code in _TUPLES:
            count = _TUPLES[code]
            if count > len(stack):
                raise IndexError
            items = stack[len(stack) - count :]
            del stack[len(stack) - count :]
            stack.append(_tuple(items, nested, at))
            at += 1
        elif code in b"tld":  # TUPLE, LIST, DICT
            items, stack = stack, below.pop()
            if code == 0x64 and (len(items) % 2 or any(type(key) not in _KEYS for key in items[::2])):
                _refuse("DICT", at)
            stack.append(
                _tuple(items, nested, at)
                if code == 0x74
                else items
                if code == 0x6C
                else dict(zip(items[::2], items[1::2], strict=True))
            )
            at += 1
        elif code in b"qr":  # BINPUT, LONG_BINPUT
            end = at + (2 if code == 0x71 else 5)
            index = int.from_bytes(data[at + 1 : end], "little")
            _check_index(index, memo, at)
            memo[index] = stack[-1]
            at = end
        elif code == 0x47:  # BINFLOAT
            stack.append(_FLOAT(data, at + 1)[0])
            at += 9
        elif code == 0x95:  # FRAME: how many bytes follow is no concern of ours
            at += 9
        elif code == 0x80:  # PROTO
            if data[at + 1] > 5:
                _refuse(f"protocol {data[at + 1]}", at)
            at += 2
        elif code in _LINES:
            end = data.index(b"\n", at)
            _line(code, data[at + 1 : end], stack, memo, at)
            at = end + 1
        elif code == 0x2E:  # STOP
            if below or len(stack) != 1:
                raise IndexError
            return stack[0]
        else:
            _refuse(_NAMES.get(code, f"opcode 0x{code:02x}"), at)


def _tuple(items: list[Any], nested: dict[int, tuple[int, Any]], at: int) -> tuple[Any, ...]:
    made = tuple(items)
    if any(type(item) in _CONTAINERS for item in items):
        _nest(made, items, nested, at)
    return made


def _nest(outer: Any, items: list[Any], nested: dict[int, tuple[int, Any]], at: int) -> None:
    """Remember how many containers are inside of each other in one that was filled without a mark.

    Args:
        nested: id of a container → that number, and the container, so that its id stays its own.
    """
    depth = max(nested.get(id(one), (1, None))[0] for one in (outer, *items))
    depth = max(depth, 1 + max(nested.get(id(one), (1, None))[0] for one in items))
    if depth > MOST_NESTED:
        _refuse("nesting without end", at)
    nested[id(outer)] = (depth, outer)


def _referred(run: bytes, memo: dict[int, Any]) -> tuple[Any, ...]:
    """The values that a run of BINGET and LONG_BINGET puts on the stack."""
    values = []
    at = 0
    while at < len(run):
        if run[at] == 0x68:
            values.append(memo[run[at + 1]])
            at += 2
        else:
            values.append(memo[int.from_bytes(run[at + 1 : at + 5], "little")])
            at += 5
    return tuple(values)


def _line(code: int, text: bytes, stack: list[Any], memo: dict[int, Any], at: int) -> None:
    """The opcodes of protocol 0, whose operand is a line of text."""
    if code == 0x56:  # UNICODE
        stack.append(text.decode("raw-unicode-escape"))
        return
    if len(text) > _LONGEST_DIGITS:
        _refuse("a number of many digits", at)
    if code == 0x70:  # PUT
        index = int(text)
        _check_index(index, memo, at)
        memo[index] = stack[-1]
    elif code == 0x67:  # GET
        stack.append(memo[int(text)])
    elif code == 0x46:  # FLOAT
        stack.append(float(text))
    elif code == 0x49 and text in (b"00", b"01"):  # INT, which also spells truth values
        stack.append(text == b"01")
    else:
        stack.append(int(text.rstrip(b"L")))


def _check_index(index: int, memo: dict[int, Any], at: int) -> None:
    """Each opcode takes a byte and stores one object at most: an index beyond the bytes so far refers to nothing."""
    if not 0 <= index <= at or index in memo:
        _refuse(f"storing under the index {index}", at)


def _refuse(what: str, at: int) -> NoReturn:
    raise NotPlainError(f"{what} at byte {at} does not belong in a memory snapshot")


_NAMES = {
    **{0x63: "GLOBAL (a class or function by name)", 0x93: "STACK_GLOBAL (a class or function by name)"},
    **{0x52: "REDUCE (a call)", 0x62: "BUILD (the state of an object)", 0x69: "INST (an object)"},
    **{0x6F: "OBJ (an object)", 0x81: "NEWOBJ (an object)", 0x92: "NEWOBJ_EX (an object)"},
    **{0x50: "PERSID (an object elsewhere)", 0x51: "BINPERSID (an object elsewhere)"},
    **{0x82: "EXT1 (a registered class)", 0x83: "EXT2 (a registered class)", 0x84: "EXT4 (a registered class)"},
    **{0x8B: "LONG4 (an integer of any length)", 0x8F: "EMPTY_SET", 0x90: "ADDITEMS", 0x91: "FROZENSET"},
    **{0x96: "BYTEARRAY8", 0x97: "NEXT_BUFFER", 0x98: "READONLY_BUFFER", 0x8E: "BINBYTES8"},
    **{0x30: "POP", 0x31: "POP_MARK", 0x32: "DUP", 0x53: "STRING"},
}

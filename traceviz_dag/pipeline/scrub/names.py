"""Names without what they tell of a site: words of the field stay, each other word becomes a made-up one.

A name is a text with words in it, as camel case, underscores and other signs part them. Which words stay depends on who
gave the name. Names of libraries (kernels, operators, files of PyTorch or Megatron-LM) keep the words of public code,
``library_words.txt``. Names that users give (their files, functions, modules and ranges) keep only those by which
traces are classified (of the rules, and ``field_words.txt``): that a module is an attention stays, whose does not.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib.resources import files
from itertools import chain, count

from traceviz_dag.classify.rules import load_rules

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_]+")
_ADDRESSES = (
    r"(?<!\d)\d{1,3}([.-])\d{1,3}\1\d{1,3}\1\d{1,3}(?!\d)",
    r"(?<![\w:])(?:[23][0-9a-f]{3}|f[cde][0-9a-f]{2})(?::[0-9a-f]{0,4}){2,7}(?![\w:])",
    r"(?<![\w:-])[0-9a-f]{2}([:-])[0-9a-f]{2}(?:\2[0-9a-f]{2}){4}(?![\w:-])",
)
"""Of hosts, in versions 4 and 6 of IP, and of network cards; in one pattern, since their groups are numbered."""

_HIDDEN = re.compile(f"(?i:{'|'.join(_ADDRESSES)})|{_WORD.pattern}")
"""What is replaced of a name, unless it is a word that stays."""

PRODUCT = re.compile(r"[\w .,/()+%\[\]-]{1,80}", re.ASCII)
"""The name of a GPU, or of what its counters count, which is a product's."""

_LETTERS = "qxzjkw"
"""No word of the field has several of these, so that what is made up of them matches no rule."""

_SHORTEST = 2
"""Letters of the shortest word of users that is changed, but in scripts that need fewer; of libraries one more."""

_MADE_UP = 3
"""Letters of the shortest made-up word."""

_STEMS = re.compile(
    r"(gemm|cutlass|cublas|xmma|nvjet|cijk|wgrad|conv|matmul|flash|fmha|attention|attn|nccl|rccl|softmax|norm|adam|memcpy"
    r"|memset|elementwise|reduce|copy|forward|backward|embed)",
    re.IGNORECASE,
)
"""What shows the kind of a kernel also within a longer word."""

_LIBRARIES = (
    *("torch", "megatron", "transformer_engine", "flash_attn", "flashinfer", "apex", "triton", "deepspeed", "numpy"),
    *("vllm", "sglang", "tensorrt_llm", "nemo", "torchrec", "fbgemm_gpu", "cutlass", "xformers"),
)
_LIBRARY_NAME = re.compile(rf"(?:{'|'.join(_LIBRARIES)})\.\w+\.")
_LIBRARY_FILE = re.compile(rf"(?:.*/)?((?:{'|'.join(_LIBRARIES)})\w*/.*)")
_PACKAGES = (
    *("asyncio", "collections", "concurrent", "ctypes", "email", "encodings", "html", "http", "importlib", "json"),
    *("logging", "multiprocessing", "pathlib", "re", "sqlite3", "unittest", "urllib", "xml", "zipfile", "zoneinfo"),
)
"""The standard library's folders; its other names, such as "code" and "platform", name folders of users."""

_STANDARD_FILE = re.compile(
    rf"(?:.*/python3[\d.]*/)?((?:(?:{'|'.join(_PACKAGES)})/(?:\w+/)*\w+|{'|'.join(sorted(sys.stdlib_module_names))})"
    r"\.py\(\d+\): .*)"
)
_BUILT_IN = re.compile(
    r"<built-in |ProfilerStep#|Optimizer\.|nccl[:A-Z]|gloo:|FSDP::|## |PyTorch Profiler|enumerate\(DataLoader\)"
)


class Names:
    """Made-up words for those that must not be told; each word has the same one wherever it stands."""

    def __init__(self) -> None:
        self._made: dict[str, str] = {}
        self._numbers = count()
        self.library = cache(self._library)
        """A library's name: it keeps words of public code."""
        self.given = cache(self._given)
        """A user's name: it keeps only words by which traces are classified."""

    def range(self, name: str) -> str:
        """The name of a range: a user's, unless a library begins its ranges so."""
        is_library = "::" in name or _BUILT_IN.match(name) or _LIBRARY_NAME.match(name)
        return self.library(name) if is_library else self.given(name)

    def function(self, name: str) -> str:
        """The name of a Python function, with its file: "FILE(LINE): FUNCTION"."""
        if name.startswith("nn.Module: "):
            return self.given(name)
        found = _LIBRARY_FILE.fullmatch(name) or _STANDARD_FILE.fullmatch(name)
        if found is not None:
            # The path in front of a library says where a site keeps it.
            return self.library(found[1])
        return self.library(name) if _BUILT_IN.match(name) else self.given(name)

    @property
    def hidden(self) -> int:
        """How many words were replaced."""
        return len(self._made)

    def _library(self, name: str) -> str:
        return _HIDDEN.sub(lambda found: self._word(found[0], _SHORTEST + 1, _library_words()), name)

    def _given(self, name: str) -> str:
        return _HIDDEN.sub(lambda found: self._word(found[0], _SHORTEST, field_words()), name)

    def _word(self, word: str, shortest: int, kept: frozenset[str]) -> str:
        if (len(word) < shortest and word.isascii()) or word.lower() in kept:
            return word
        parts = [part for part in _STEMS.split(word) if part]
        return "".join(part if _STEMS.fullmatch(part) else self._made_up(part) for part in parts)

    def _made_up(self, word: str) -> str:
        # Letters beyond ASCII are in one word with capitals anywhere: each such word has its own.
        plain = word.lower() if word.isascii() else word
        if plain not in self._made:
            self._made[plain] = _spelt(next(self._numbers))
        made = self._made[plain]
        return made.upper() if word.isupper() else made.capitalize() if word[0].isupper() else made


def _spelt(number: int) -> str:
    """A number as a word of three letters or more; no two numbers have one word."""
    letters = ""
    for _ in range(_MADE_UP):
        number, place = divmod(number, len(_LETTERS))
        letters = _LETTERS[place] + letters
    while number:
        number, place = divmod(number, len(_LETTERS))
        letters = _LETTERS[place] + letters
    return letters


@cache
def field_words() -> frozenset[str]:
    """The words by which traces are classified: those of the rules, and of what models and schedules consist of."""
    rules = load_rules()
    patterns = " ".join(chain(*(one.patterns for one in rules.frames), *(one.patterns for one in rules.kernels)))
    return frozenset(map(str.lower, _WORD.findall(patterns))) | _listed("field")


@cache
def _library_words() -> frozenset[str]:
    return _listed("library") | field_words()


def _listed(name: str) -> frozenset[str]:
    return frozenset(files(__package__).joinpath(f"{name}_words.txt").read_text(encoding="utf-8").split())

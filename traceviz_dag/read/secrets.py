"""Takes secrets out of the texts of a profile before anything else sees them: tokens, keys, credentials, home folders.

Annotations, range texts, kernel and function names are written by people and programs that may put anything there.
Every reader passes its texts through :func:`masked_words` once, at the edge; so nothing behind it has to think of it.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterable
from functools import cache, lru_cache

import pyarrow as pa
import pyarrow.compute as pc

MASK = "***"
"""What is written instead of a secret."""

HOME = "~"
"""What is written instead of a home folder."""

# Each pattern takes time in proportion to the text, whatever the text: repetitions that can fail late are bounded.
# Of hf_ and letters alone are names of functions, too (hf_transfer); a token has capitals or digits.
_TOKENS = "|".join(
    (
        r"hf_(?=[a-z]{0,40}[A-Z0-9])[A-Za-z0-9]{10,}",
        r"gh[pousr]_[A-Za-z0-9]{8,}|github_pat_[A-Za-z0-9_]{8,}|gl(?:pat|rt|dt|ptt|cbt|ft|agent)-[A-Za-z0-9_\-]{8,}",
        r"sk-[A-Za-z0-9_\-]{16,}|nvapi-[A-Za-z0-9_\-]{16,}|AIza[A-Za-z0-9_\-]{20,}",
        r"(?:npm|pypi|shpat)[_-][A-Za-z0-9]{20,}|do[opr]_v1_[a-f0-9]{20,}|dapi[a-f0-9]{32}",
        r"(?:gsk|r8|wandb_v1|lin_api|whsec)_[A-Za-z0-9]{20,}|hv[sbr]\.[A-Za-z0-9_\-]{20,}|(?:xai|pplx)-[A-Za-z0-9]{20,}",
        r"tskey-[a-z]{3,10}-[A-Za-z0-9\-]{8,}|(?<=hooks\.slack\.com/services/)[A-Za-z0-9/]{8,}",
        r"[sr]k_(?:live|test)_[A-Za-z0-9]{16,}|ya29\.[A-Za-z0-9_\-]{16,}|dckr_pat_[A-Za-z0-9_\-]{8,}",
        r"SG\.[A-Za-z0-9_\-]{16,200}\.[A-Za-z0-9_\-]{16,}",
        r"(?:AKIA|ASIA)[A-Z0-9]{12,}|(?:xox[abeprs]|xapp)-[A-Za-z0-9\-]{8,}",
        r"(?<![_\-])eyJ[A-Za-z0-9_\-]{6,2000}\.[A-Za-z0-9_\-]{6,8000}\.[A-Za-z0-9_\-]*",
        r"ATLASv1\.[A-Za-z0-9]{20,}|(?:ntn|figd|tgp_v1|secret_lambda)_[A-Za-z0-9_\-]{20,}|secret_[A-Za-z0-9]{40,}|SK[0-9a-f]{32}|key-[0-9a-f]{32}|ATATT3x[A-Za-z0-9_\-=]{20,}",
        r"(?:bot)?\d{8,10}:AA[A-Za-z0-9_\-]{32,34}(?![A-Za-z0-9_\-])",
        r"AGE-SECRET-KEY-1[A-Z0-9]{8,}|1//0[A-Za-z0-9_\-]{20,}|(?<=/api/webhooks/)\d{1,30}/[A-Za-z0-9_\-]{20,}",
        r"(?<=webhook\.office\.com/)webhookb2/[^\s'\"]{6,}|[A-Za-z0-9_~.]{3}8Q~[A-Za-z0-9_~.\-]{30,40}",
        r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----[^-]*(?:-(?!----)[^-]*)*"
        r"(?:-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----)?",
    )
)
# Two of them are known from their length alone, whatever they are glued to.
_WHOLE_TOKENS = rf"(?<![A-Za-z0-9])(?:{_TOKENS})|hf_[A-Za-z0-9]{{30,}}|gh[pousr]_[A-Za-z0-9]{{36,}}"
_PASSWORD = r"pass(?:word|wd|phrase)|(?<![A-Za-z])pwd|(?-i:_PASS|(?<![A-Z])SSHPASS)"
_OTHER_NAMES = (
    r"secret(?:[_-]?(?:access)?[_-]?key|[_-]?string)?|(?:api|access|private|auth|account)[_-]?key|client-key-data|token"
    r"|credentials?|authorization|(?<=['\"])auth(?=\\*['\"])"
    r"|(?<![A-Za-z])(?:[a-z]{0,20}sess(?:ion)?[_-]?(?:id|key)|connect\.sid)"
)
# As an environment names them: HF_TOKEN=….
_VARIABLES = r"(?-i:(?<![A-Za-z])[A-Z][A-Z0-9]{0,30}_(?:[A-Z0-9]{1,30}_){0,4}(?:TOKEN|SECRET|CREDENTIALS?|KEY|PAT))"
# A word that names a secret, and what is set to it: WANDB_API_KEY=…, "password": "…", Authorization: Bearer …. Quotes
# may be escaped, as in JSON inside JSON. A number is a secret behind a word for a password only: "token: 4096".
_NAMED = (
    rf"(?i)(?P<word>(?:(?P<password>{_PASSWORD})|(?P<variable>{_VARIABLES}=)|{_OTHER_NAMES})"
    r"(?(variable)|(?:\\*['\"]\]?)?\s*(?:=>|:=|=(?!=)|:(?!:)))(?:\s*[>|][+\-]?(?=\s*\n))?\s*(?:(?:bearer|basic|token)\s+)?(?P<quote>\\*['\"])?)(?P<value>"
    r"(?(quote)(?:(?!(?P=quote))(?:\\.|.))+|(?!(?:bearer|basic|token)\s)(?(password)[^\s'\",;&|]+|(?(variable)[^\s'\",;&|]+|[^\s'\",;&|]{6,}))))"
)
# A name and a value as items of a list: ("password", "…"), ['--api-key', '…']; setenv HF_TOKEN ….
_ITEMS = (
    r"(?i)(?P<before>(?:(?P<list>\\{0,8}['\"])(?:(?:--?[a-z_\-]{0,40}|[a-z]{1,20}[_-])?(?:pass(?:word|wd|phrase)|secret|api[_-]?key|access[_-]key)"
    r"|--[a-z_\-]{0,40}token)(?P=list)\s*,\s*|(?<![\w\-])setenv\s+[A-Z0-9_]{0,60}(?:PASS(?:WORD|WD)?|TOKEN|SECRET|KEY)\s+)"
    r"(?P<quote>\\*['\"])?)(?(quote)(?:(?!(?P=quote))(?:\\.|.))+|(?(list)(?!)|[^\s'\",;&|]+))"
)
_OPTION = (
    r"(?i)(?P<before>--(?:[a-z]+[_-]){0,3}(?:pass(?:word|wd|phrase)|secret|(?:secret|api|access|private|auth)[_-]key|(?:auth)?token)"
    r"(?:\s+|=)(?:\\\s*\n\s*)?|(?<![A-Za-z])bearer\s+(?=[^\s'\"]{16}|[^\s'\"\d]{0,15}\d)(?=[^\s'\"]{8})"
    r"|wandb[\s.]+login\b[^\n;|&]{0,200}?(?=(?<![0-9a-f])[0-9a-f]{40}(?![0-9a-f]))|[?&](?:[a-z]+-){0,3}sig(?:nature)?=|x-amz-(?:signature|credential)="
    r"|(?<!\S)(?:-u|--user)[\s=]\s*(?=[^\s:]{1,64}:\S))(?!-)(?:'[^'\n]+'|\"[^\"\n]+\"|[^\s'\"&,;]+)"
)
# Programs whose short option is a password: sshpass -p X, mysql -pX, unzip -P X, openssl -passin pass:X.
_ANY_WORDS = r"(?:\s[^\n;|&]{0,200}?)??\s"
_PROGRAMS = (
    r"(?P<before>(?<![\w\-])(?i:(?:sshpass|(?:mysql|mariadb)[a-z\-]{0,12}|7z[ar]?|(?:docker|podman|oc|helm\s+registry)\s+login)"
    rf"{_ANY_WORDS}(?-i:-p)|(?:un)?zip{_ANY_WORDS}(?-i:-P)|redis-cli{_ANY_WORDS}(?-i:-a)|ldap[a-z]{{2,8}}{_ANY_WORDS}(?-i:-w)"
    r"|openssl\s[^\n;|&]{0,200}?\s-pass(?:in|out)?\s+pass:)\s*(?!-))(?:'[^']*'|\"[^\"]*\"|[^\s'\"])+"
)
# Cookie: a=b; c=d, as a header, in JSON, and as an option of curl.
_COOKIE = r"[^\s'\";=]{1,200}=(?:\"[^\s'\";]*\"|[^\s'\";]*)"
_COOKIES = (
    r"(?P<before>(?i:cookie)(?:\\*['\"])?(?:\s*:\s*|\s*=\s*|\s+)(?:\\*['\"])?|(?<![\w\-])(?i:curl)\s(?:[^\n;|&]{0,200}?\s)?-b\s*['\"]?)"
    rf"{_COOKIE}(?:;\s*{_COOKIE}){{0,100}}"
)
# As in .netrc: machine HOST login NAME password X.
_LOGIN = (
    r"(?P<before>(?<![\w\-])(?i:login)\s+)[^\s,;]{1,200}(?P<between>\s+(?i:(?:account\s+\S{1,200}\s+)?password)\s+)\S+"
)
# Passwords may hold slashes; a port before a path with an @ in it is none.
_URL = r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]{1,20}://)(?:[^\s/]*@|[^\s/:@]{1,64}:(?!\d{1,5}/)[^\s@]{1,200}@)"
# Who works where: alice@cluster.example.com, alice@node17:/data. A@B alone may be anything.
_ADDRESS = (
    r"(?<![\w.+\-])[A-Za-z0-9_][\w.+\-]{0,63}@(?:(?:[A-Za-z0-9\-]{1,63}\.){1,8}"
    r"(?:com|org|net|edu|gov|mil|int|io|ai|dev|app|cloud|local|internal|lan|corp|uk|de|fr|nl|eu|ch|se|cn|jp|kr|tw|au|ca|us)(?!\.?[\w\-])"
    r"|(?:\d{1,3}\.){3}\d{1,3}(?![\w.])|[A-Za-z0-9][A-Za-z0-9.\-]{0,252}(?=:[/~]))"
)
# Programs that are given who logs in where: ssh alice@node17, scp x alice@node17:, ssh -l alice; [alice@node17 ~]$.
_SHELLS = (
    r"(?P<before>(?<![\w\-])(?:ssh|scp|sftp|sshfs|rsync|mosh|ssh-copy-id|autossh)\s(?:[^\n;|&]{0,300}?[\s'\"])??)"
    r"(?:(?P<option>-l\s*)[A-Za-z_][\w.\-]{0,63}|[A-Za-z0-9_][\w.+\-]{0,63}@[A-Za-z0-9][A-Za-z0-9.\-]{0,252})"
)
_PROMPT = r"(?<=\[)[A-Za-z0-9_][\w.+\-]{0,63}@[A-Za-z0-9][A-Za-z0-9.\-]{0,252}(?=\s[^\]\n]{1,200}\][$#%])"
_WHO = r"(?P<before>(?<![A-Za-z0-9_])(?:[A-Z][A-Z0-9]{0,20}_){0,4}(?:USER|LOGNAME|USERNAME)=)[A-Za-z_][\w.@\-]*"
_HOMES = (
    r"(?<!\\)\\{2,4}[^\s\\/:'\"]{1,64}\\{1,2}(?i:users|homes?\$?|profiles\$?)\\{1,2}[^\s\\:'\"]+"
    r"|/(?:afs|nfs)/[^\s/:'\"(),;=]{1,100}/users?/(?:[a-z]/)?[^\s/:'\"(),;=]+"
    r"|(?:/[^\s/:'\"(),;=]+){0,8}/Users/[^\s/:'\"(),;=]+(?:\ [^\s/:'\"(),;=]+){1,2}(?=/)"
    r"|(?:/[^\s/:'\"(),;=]+){0,8}/(?:home\d{0,3}|homes|HOME|Users|users|u\d?)/[^\s/:'\"(),;=]+(?=[/\s:'\"),;]|$)"
    r"|(?<![\w.~\-])/root(?=/|$)|[A-Za-z]:\\{1,2}Users\\{1,2}[^\s\\:'\"]+(?:(?:\ [^\s\\:'\"]+){1,3}(?=\\))?"
)

# A user and a password in base64.
_BASIC = r"(?P<before>(?<![A-Za-z])(?i:basic)\s+)(?P<value>[A-Za-z0-9+/]{6,4000}={0,2})"
# A character as addresses and JSON write it: %3D, \\u003d.
_ESCAPED = r"%(?P<percent>[2-7][0-9A-Fa-f])|\\{1,8}u00(?P<unicode>[2-7][0-9A-Fa-f])"

_TOKEN, _NAME_AND_VALUE, _OPTION_AND_VALUE, _PROGRAM_AND_VALUE = (
    re.compile(each, re.ASCII) for each in (_WHOLE_TOKENS, _NAMED, _OPTION, _PROGRAMS)
)
_NAME_THEN_VALUE, _BASIC_LOGIN, _ESCAPE = (re.compile(each, re.ASCII) for each in (_ITEMS, _BASIC, _ESCAPED))
_REMOTE_SHELL, _SHELL_PROMPT, _WHO_IT_IS = (re.compile(each, re.ASCII) for each in (_SHELLS, _PROMPT, _WHO))
_COOKIE_HEADER, _LOGIN_AND_PASSWORD, _CREDENTIALS, _WHO_AND_WHERE, _HOME = (
    re.compile(each, re.ASCII) for each in (_COOKIES, _LOGIN, _URL, _ADDRESS, _HOMES)
)
_SUSPICIOUS = (
    r"(?i)hf_|gh[pousr]_|github_pat|gl(?:pat|rt|dt|ptt|cbt|ft|agent)-|sk-|[sr]k_|ya29|dckr|sg\.|nvapi-|aiza|(?:npm|pypi|shpat)[_-]|do[opr]_v1|dapi[a-f0-9]|akia|asia"
    r"|r8_|wandb_v1|lin_api|whsec|hv[sbr]\.|xai-|pplx-|tskey-|hooks\.slack|xapp-"
    r"|xox[abeprs]-|eyj|private key|bearer|basic|ntn_|figd_|tgp_v1|secret_|sk[0-9a-f]{32}|key-[0-9a-f]"
    r"|atatt3x|atlasv1|age-secret|1//0|webhook|8q~|\d:aa"
    r"|--[a-z_\-]*(?:pass|secret|key|token)|[?&][a-z\-]*sig|x-amz-"
    r"|(?:pass|pass(?:word|wd|phrase)|pwd|secret|string|key|data|token|credentials?|authorization|auth|pat)\\*['\"]?\]?[\s\v]*[=:,]"
    r"|\S@[a-z0-9*]|://\S*@|%[2-7][0-9a-f]|\\u00[2-7]|setenv|wandb|ssh|scp|sftp|rsync|mosh|(?:user|logname|username)="
    r"|sshpass|mysql|mariadb|7z|login|zip[\s\v]|redis-cli|ldap|openssl|cookie|curl|sess(?:ion)?[_-]?(?:id|key)|connect\.sid"
    r"|-u[\s\v]|--user[\s\v=]|/homes?\d*/|/users/|/u\d?/|/root|\\users\\|\\homes?\$?\\|\\profiles\$?\\|/(?:afs|nfs)/"
)
"""What every secret contains: one cheap look at a text decides whether it needs the others."""

_PASSES = 8
"""How often a text is looked through at most until nothing more is found."""

_NUMBERS = re.compile(r"[\d\[\], ]*", re.ASCII)
"""Numbers and lists of them, such as ranks, are harmless."""

_REMEMBERED, _LONGEST_REMEMBERED = 1 << 13, 1 << 10
"""So many harmless texts a process remembers, each of so many characters at the most."""

_LAYERS = 3
"""How often a character may be escaped: the address in an address in an address."""


@lru_cache(maxsize=1024)  # The ranks of a job state the same groups.
def masked(text: str) -> str:
    """The text without secrets; most texts come back as they are.

    Tokens and keys become ``***``; so does the user of an address with its password or host; a home folder is ``~``.
    """
    # What one pass leaves may look like a secret to the next: /home//u/alice becomes /home/~, and that ~.
    for _ in range(_PASSES):
        before, text = text, _masked_once(text)
        if (plain := _unescaped(text)) != text and _masked_once(plain) != plain:
            text = plain
        if text == before:
            break
    return text


def _unescaped(text: str) -> str:
    for _ in range(_LAYERS):
        before, text = text, _ESCAPE.sub(lambda found: chr(int(found["percent"] or found["unicode"], 16)), text)
        if text == before:
            break
    return text


def _masked_once(text: str) -> str:
    text = _TOKEN.sub(MASK, text)
    text = _NAME_AND_VALUE.sub(_without_value, text)
    text = _NAME_THEN_VALUE.sub(rf"\g<before>{MASK}", text)
    text = _BASIC_LOGIN.sub(_without_login, text)
    text = _OPTION_AND_VALUE.sub(rf"\g<before>{MASK}", text)
    text = _PROGRAM_AND_VALUE.sub(rf"\g<before>{MASK}", text)
    text = _COOKIE_HEADER.sub(rf"\g<before>{MASK}", text)
    text = _LOGIN_AND_PASSWORD.sub(rf"\g<before>{MASK}\g<between>{MASK}", text)
    text = _CREDENTIALS.sub(rf"\g<scheme>{MASK}@", text)
    text = _WHO_AND_WHERE.sub(MASK, text)
    text = _REMOTE_SHELL.sub(lambda found: f"{found['before']}{found['option'] or ''}{MASK}", text)
    text = _SHELL_PROMPT.sub(MASK, text)
    text = _WHO_IT_IS.sub(rf"\g<before>{MASK}", text)
    return _HOME.sub(HOME, text)


def masked_words(words: Iterable[str]) -> tuple[str, ...]:
    """:func:`masked` for many texts, at the cost of one quick look at each that is harmless, once a process."""
    found, harmless = list(words), _harmless()
    new = [text for text in found if text not in harmless and not _NUMBERS.fullmatch(text)]
    if not new:
        return tuple(found)
    suspects = pc.match_substring_regex(pa.array(new, pa.large_string()), _SUSPICIOUS)
    instead = {new[number]: masked(new[number]) for number in pc.indices_nonzero(suspects).to_pylist()}
    if len(harmless) + len(new) <= _REMEMBERED:
        harmless.update(text for text in new if text not in instead and len(text) <= _LONGEST_REMEMBERED)
    return tuple(instead.get(text, text) for text in found) if instead else tuple(found)


@cache
def _harmless() -> set[str]:
    """Texts that this process found harmless: the ranks of a job repeat theirs."""
    return set()


def masked_column(texts: pa.Array) -> pa.Array:
    """:func:`masked` for a column of texts, NULLs kept; a dictionary column keeps its codes."""
    if pa.types.is_dictionary(texts.type):
        words = pa.array(masked_words(texts.dictionary.to_pylist()), texts.type.value_type)
        return pa.DictionaryArray.from_arrays(texts.indices, words)
    suspects = pc.fill_null(pc.match_substring_regex(texts, _SUSPICIOUS), False)
    if not pc.any(suspects).as_py():
        return texts
    replaced = [masked(text) for text in texts.filter(suspects).to_pylist()]
    return pc.replace_with_mask(texts, suspects, pa.array(replaced, texts.type))


def masked_table(table: pa.Table) -> pa.Table:
    """:func:`masked_column` for every column of texts."""
    for place, field in enumerate(table.schema):
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            chunks = [masked_column(chunk) for chunk in table.column(place).chunks]
            table = table.set_column(place, field, pa.chunked_array(chunks, field.type))
    return table


def _without_login(found: re.Match[str]) -> str:
    value = found["value"]
    try:
        login = b64decode(value + "=" * (-len(value) % 4)).decode()
    except ValueError:
        return found.group()
    return f"{found['before']}{MASK}" if ":" in login and login.isprintable() else found.group()


def _without_value(found: re.Match[str]) -> str:
    value = found["value"]
    if found["password"] is not None:
        # Where a shell is, and whether there is a password at all, is no secret.
        plain = value.startswith(("/", "~")) or value in ("None", "null", "True", "False")
    else:
        plain = value.strip("[](){}").replace(".", "").replace("x", "").isdigit()
    return found.group() if plain or value == MASK else f"{found['word']}{MASK}"

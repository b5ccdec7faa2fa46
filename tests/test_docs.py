"""The pages say what is there: commands and options exist, links lead somewhere, the map shows the house as it is."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

from traceviz_dag.commands.main import app

REPOSITORY = Path(__file__).parents[1]
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
MAP = REPOSITORY / "docs" / "architecture.md"
PLACES = (REPOSITORY, REPOSITORY / "traceviz_dag")
ROOMS_OF_CODE = ("traceviz_dag", "assets", "sensors", "tests/commands")

# A fenced block, or a span in backticks that may go over the end of a line.
_FENCE = re.compile(r"^ *```[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)|src=\"([^\"]+)\"")

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())


def _calls(page: Path) -> list[list[str]]:
    """The calls of traceviz that a page shows, each as words."""
    text = page.read_text(encoding="utf-8")
    lines = [line.strip() for block in _FENCE.findall(text) for line in block.splitlines()]
    spans = [" ".join(span.split()) for span in _SPAN.findall(_FENCE.sub("", text))]
    written = [line for line in (*lines, *spans) if line.startswith("traceviz ")]
    return [shlex.split(re.split(r" [|>] ", line)[0], comments=True) for line in written]


@pages
def test_every_command_of_a_page_exists_with_its_options(page):
    for call in _calls(page):
        command, words = get_command(app), call[1:]
        general = {option for parameter in command.params for option in parameter.opts}
        while words and words[0] in general:
            words = words[2:]
        while words and hasattr(command, "commands") and not words[0].startswith("-"):
            if words[0] in ("COMMAND", "…"):
                break
            assert words[0] in command.commands, call
            command = command.commands[words.pop(0)]
        options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        end = words.index("--") if "--" in words else len(words)
        given = {word.split("=")[0] for word in words[:end] if re.match(r"--?[a-z]", word)}
        assert given <= options | {"--help"}, call


@pages
def test_every_target_and_script_that_a_page_runs_exists(page):
    lines = [line.strip() for block in _FENCE.findall(page.read_text(encoding="utf-8")) for line in block.splitlines()]
    makefile = (REPOSITORY / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for line in lines:
        if line.startswith("make "):
            words = shlex.split(line, comments=True)[1:]
            assert {word for word in words if "=" not in word} <= targets, line
            assert all(f"$({word.split('=')[0]})" in makefile for word in words if "=" in word), line
        for script in re.findall(r"python (?:-m pytest )?((?:benchmarks|tests)/[\w./]+)", line):
            assert (REPOSITORY / script).exists(), line


def test_the_pages_show_commands_at_all():
    assert sum(len(_calls(page)) for page in PAGES) > 100


@pages
def test_every_link_of_a_page_leads_somewhere(page):
    for target in (next(filter(None, groups)) for groups in _LINK.findall(_FENCE.sub("", page.read_text()))):
        if re.match(r"https?://", target):
            continue
        path, _, heading = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        if heading:
            assert heading in _anchors(there), target


def _anchors(page: Path) -> set[str]:
    """The anchors that a code host gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"`", "", heading).lower()).replace(" ", "-") for heading in headings}


def test_every_asset_is_in_the_drawing_of_the_assets():
    from traceviz_dag.definitions import ASSETS

    keys = {key.to_user_string() for one in ASSETS for key in getattr(one, "keys", None) or [one.key]}
    [drawing] = [block for block in _FENCE.findall(MAP.read_text()) if "raw_traces ─" in block]
    assert keys <= set(re.findall(r"\w+", drawing))


def test_every_path_on_the_map_is_there():
    text = _FENCE.sub("", MAP.read_text())
    paths = [span for span in _SPAN.findall(text) if re.fullmatch(r"[\w./-]*(\.py|\.toml|\.md|/)", span)]
    assert len(paths) > 80
    for path in paths:
        if "NAME" not in path and not _found(path):
            pytest.fail(f"{path} is on the map and nowhere else")


def test_every_name_of_code_on_the_map_is_in_the_code():
    spans = _SPAN.findall(_FENCE.sub("", MAP.read_text()))
    names = {span for span in spans if re.fullmatch(r"[A-Za-z_]*_\w+", span) and "NAME" not in span}
    assert len(names) > 30
    code = [path.read_text() for folder in ROOMS_OF_CODE for path in (REPOSITORY / folder).rglob("*.py")]
    code.append((REPOSITORY / "pyproject.toml").read_text())
    words = set(re.findall(r"\w+", "\n".join(code)))
    assert names <= words, names - words


def _found(path: str) -> bool:
    if any((place / path).exists() for place in PLACES):
        return True
    # Beside a file that a row of a table names with its folder, others of this folder go by their names.
    return "/" not in path.rstrip("/") and any((REPOSITORY / "traceviz_dag").rglob(path.rstrip("/")))


def test_every_room_is_on_the_map_in_the_order_of_the_import_rules():
    text = MAP.read_text()
    rooms = {path.parent.name for path in (REPOSITORY / "traceviz_dag").glob("*/__init__.py")}
    assert rooms == set(re.findall(r"^\| `traceviz_dag/(\w+)/`", text, re.MULTILINE))
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [layers] = [one["layers"] for one in contracts if one["name"] == "Imports run downwards only"]
    ruled = [re.sub(r"traceviz_dag\.", "", layer).replace(" : ", ", ") for layer in layers]
    ruled = list(dict.fromkeys(layer.split(".")[0] for layer in ruled))
    [drawn] = [block.split("\n") for block in _FENCE.findall(text) if block.startswith("commands\n")]
    assert [line for line in drawn if line] == ruled

"""What a program can read beside the tools: the handbook by section, how to read traces, the columns of tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache, partial

from traceviz_dag.errors import UsageError
from traceviz_dag.lake.across_ranks_views import VIEWS
from traceviz_dag.lake.catalogue import queryable
from traceviz_dag.system.shipped import shipped
from traceviz_dag.tables import all_tables

PAGES = ("metrics", "reading-traces", "findings", "causes")
"""Pages of docs/ that are shipped."""

_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)


@cache
def sections(page: str) -> Mapping[str, str]:
    """Name of each section of a page, as its address has it → its text; ``""``: what comes before the first.

    Raises:
        UsageError: there is no such page.
    """
    if page not in PAGES:
        raise UsageError(f"there is no page {page}; there are {', '.join(PAGES)}")
    text = shipped(f"docs/{page}.md").read_text(encoding="utf-8")
    first, *rest = _HEADING.split(text)
    return {"": first, **{_name(title): f"## {title}{body}" for title, body in zip(rest[::2], rest[1::2], strict=True)}}


def page_contents(page: str) -> str:
    """How a page begins, and the addresses of its sections."""
    found = sections(page)
    listed = "\n".join(f"- traceviz://handbook/{page}/{name}" for name in found if name)
    return f"{found['']}\n{listed}\n"


def section(page: str, name: str) -> str:
    """One section.

    Raises:
        UsageError: there is none of that name.
    """
    found = sections(page)
    if name not in found:
        raise UsageError(f"page {page} has no section {name}; it has {', '.join(each for each in found if each)}")
    return found[name]


def tables() -> str:
    """Every table and view, and what a row of it is."""
    views = {view.name: view.comment for view in VIEWS}
    of_all = {**{name: table.comment for name, table in all_tables().items()}, **views}
    return "\n".join(f"{name}: {comment}" for name, comment in sorted(of_all.items()))


def table(name: str) -> str:
    """The columns of a table, with types, units and meaning; of a view, without types.

    Raises:
        UsageError: there is no such table.
    """
    view = next((view for view in VIEWS if view.name == name), None)
    if view is not None:
        columns = "\n".join(f"{column}: {comment}" for column, comment in view.columns)
        return f"{name}: {view.comment}\n{columns}"
    found = all_tables().get(name)
    if found is None:
        raise UsageError(f"there is no table {name}; the tables are {', '.join(queryable())}")
    columns = "\n".join(f"{column.name} ({column.type}): {column.comment}" for column in found.columns)
    return f"{name}: {found.comment}\nBy {', '.join(found.partitioned_by)}.\n{columns}"


FIXED: Mapping[str, tuple[str, Callable[[], str]]] = {
    **{
        f"traceviz://handbook/{page}": (
            f"How docs/{page}.md begins, and its sections.",
            partial(page_contents, page),
        )
        for page in PAGES
    },
    "traceviz://tables": ("Every table, and what a row of it is.", tables),
}
"""Address → what is there, and what gives it."""


def _name(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")

"""What every page of this kind is: tabs, one script and one style sheet by their digests, its data, and no network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import jinja2
from markupsafe import Markup

from traceviz_dag.printable import printable
from traceviz_dag.show.report import bundle


@dataclass(frozen=True, slots=True)
class Tab:
    """A tab of a page: its name in the page's address, what is written on it, and what it shows."""

    name: str
    title: str
    markup: Markup


def page(title: str, tabs: Sequence[Tab], data: str, *, mark: str = "", evidence: Markup | str = "") -> str:
    """The page, as HTML.

    Args:
        data: a document with its columns, as ``PageColumns.packed`` gives it.
        mark: what was not read, in words; empty where all of it was.
        evidence: rows and queries behind the numbers.
    """
    script, styles = bundle.script(), bundle.styles()
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {bundle.digest(script)}",
            f"style-src {bundle.digest(styles)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = resources.files("traceviz_dag.show.report.templates").joinpath("report.html").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        title=printable(title),
        mark=mark,
        parts=tabs,
        evidence=evidence,
        data=data,
        policy=policy,
        script=Markup(script),
        styles=Markup(styles),
    )

"""What every page of this kind is: tabs, one script and one style sheet by their digests, its data, and no network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

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
    template = resources.files("traceviz_dag.show.report.templates").joinpath("report.html").read_text(encoding="utf-8")
    return Markup(template.removesuffix("\n")).format(
        policy=policy,
        title=printable(title),
        styles=Markup(styles),
        mark=_MARK.format(mark) if mark else "",
        tabs=Markup().join(_TAB.format(tab, "false" if number else "true") for number, tab in enumerate(tabs)),
        panels=Markup().join(_PANEL.format(tab, " hidden" if number else "") for number, tab in enumerate(tabs)),
        evidence=evidence,
        data=data,
        script=Markup(script),
    )


_MARK = Markup('<p class="attention">{}</p>\n')
_TAB = Markup(
    '<button type="button" role="tab" id="tab-{0.name}" data-part="{0.name}" aria-controls="part-{0.name}" '
    'aria-selected="{1}">{0.title}</button>\n'
)
_PANEL = Markup('<div role="tabpanel" id="part-{0.name}" aria-labelledby="tab-{0.name}"{1}>\n{0.markup}\n</div>\n')

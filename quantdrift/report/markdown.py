"""A report as Markdown, for a pull request or a README: what the page says, without charts and within a screen.

Every text goes through `prose`, `code` or `markdown_table`, which leave nothing that Markdown or HTML would obey.
"""

import html
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from quantdrift.base.display import clean, code, markdown_table, prose, shorten, shown
from quantdrift.report.page import Page, Section, Step
from quantdrift.show.output import grid_markdown

_WORST = 10
"""Changed inputs that are listed."""
_ROWS = 60
"""Of a table; a comment on a pull request takes 65,536 characters."""
_OPEN = 24
"""Rows of a table that stands open."""
_PARTS = 12
"""Runs of a study up to which each is told; of more there is the page."""
_TEXT, _LINE = 100, 500
"""Characters of a text in a table, and of a sentence."""


def markdown_of(page: Page) -> str:
    """The verdict, the numbers of the first screen, and below them tables and the worst changed inputs."""
    warnings = [f"Note: {warning.removesuffix('.')}." for warning in page.warnings]
    blocks = [
        f"## quantdrift: {prose(page.word)}",
        f"{_line(page.title)}{f': {_line(page.about)}' if page.about else ''}.",
        f"**{_line(page.verdict)}**",
        _numbers(page),
        "\n".join(f"- {_line(line)}" for line in [*page.words, *warnings]),
        *(["What to do:", "\n".join(map(_step, page.steps))] if page.steps else []),
    ]
    for section in page.sections:
        if not section.folded:
            # the tables of a study are what it is about; of a run the numbers above are
            long = any(len(grid.rows) > _OPEN for grid in section.grids)
            blocks += _section(section, folded=long or page.kind != "study")
            for part in section.parts if len(section.parts) <= _PARTS else ():
                # their lines name folders, and their words are texts of a corpus
                grids = [replace(grid, lines=()) for grid in part.grids]
                blocks += _section(replace(part, grids=grids), folded=True, names=True)
    return "\n\n".join(block for block in blocks if block) + "\n"


def _numbers(page: Page) -> str:
    rows = [[number.label, number.value, number.note] for number in page.numbers]
    return markdown_table(["what", "value", "note"], rows) if rows else ""


def _step(step: Step) -> str:
    """Whoever reads it has other folders: of a command only its name is told."""
    name = " ".join(step.command.split()[:2])
    return f"- {_line(step.text.removesuffix('.'))}{f' ({code(name)})' if name else ''}."


def _section(section: Section, *, folded: bool, names: bool = False) -> list[str]:
    body = [grid_markdown(grid, names=grid.words if names else (), most=_ROWS) for grid in section.grids if grid.rows]
    if section.changed is not None:
        body = [_changed(section.changed), *body]
    if not body:
        return []
    title = clean(section.title)
    if folded:
        return [f"<details>\n<summary>{html.escape(title)}</summary>", *body, "</details>"]
    return [f"### {_line(title)}", *body]


def _line(text: str) -> str:
    return prose(shorten(clean(text), _LINE))


# --- the worst changed inputs -----------------------------------------------------------------


def _changed(content: Mapping[str, Any]) -> str:
    """The first of the changed inputs, which are those that harm most: what gave way to what."""
    entries = content["changed"][:_WORST]
    before, after = (f"{shorten(clean(name), _TEXT)}: first answer" for name in content["arms"])
    head = ["input", before, after, "change"]
    rows = [
        [
            _said(entry["id"], entry.get("text")),
            _answer(content, entry, "before", "was_right", "rank_after"),
            _answer(content, entry, "after", "is_right", "rank_before"),
            ", ".join([entry.get("kind", "no label"), *_figures(entry)]),
        ]
        for entry in entries
    ]
    left = (sum(content["kinds"].values()) or len(content["changed"])) - len(entries)
    return markdown_table(head, rows, names=head[:3]) + (f"\n\n- and {left:,} more" if left > 0 else "")


def _answer(content: Mapping[str, Any], entry: Mapping[str, Any], which: str, right: str, rank: str) -> str:
    place = entry.get(which)
    if place is None:
        return "-"
    facts = [] if right not in entry else [content["right"] if entry[right] else f"not {content['right']}"]
    facts += [f"rank {entry[rank]:,} in the other"] if rank in entry else []
    return _said(*content["items"][place]) + (f" ({', '.join(facts)})" if facts else "")


def _said(name: str, text: str | None) -> str:
    return shown(name, _TEXT) + (f": {shown(text, _TEXT)}" if text else "")


def _figures(entry: Mapping[str, Any]) -> list[str]:
    return [f"{name} {entry[name]:.3g}" for name in ("gap", "separation") if name in entry]

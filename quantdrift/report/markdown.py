"""A report as short Markdown without charts, for a pull request or a README.

Every text goes through `prose`, `code` or `markdown_table`, which escape Markdown and HTML.
"""

import html
from dataclasses import replace

from quantdrift.base.display import clean, code, markdown_table, prose, shorten
from quantdrift.report.page import Page, Section, Step
from quantdrift.show.output import grid_markdown

_ROWS = 60
"""Rows of a table at most; a comment on a pull request takes 65,536 characters."""
_OPEN = 24
"""Rows up to which a table is not folded."""
_PARTS = 12
"""Runs up to which a study shows each of them."""
_LINE = 500
"""Characters of a sentence at most."""


def markdown_of(page: Page) -> str:
    """The verdict, the numbers of the first screen, the worst changed inputs and the tables."""
    warnings = [f"Note: {warning.removesuffix('.')}." for warning in page.warnings]
    blocks = [
        f"## quantdrift: {prose(page.word)}",
        f"{_line(page.title)}{f': {_line(page.about)}' if page.about else ''}.",
        f"**{_line(page.verdict)}**",
        _numbers(page),
        "\n".join(f"- {_line(line)}" for line in [*page.words, *warnings]),
        *(["What to do:", "\n".join(map(_step, page.steps))] if page.steps else []),
    ]
    if page.worst is not None:
        blocks += _section(Section(name="worst", title=page.worst.title, grids=[page.worst]), folded=True, names=True)
    for section in page.sections:
        if not section.folded:
            # the tables of a study are its result; that of a run is in the numbers above
            long = any(len(grid.rows) > _OPEN for grid in section.grids)
            blocks += _section(section, folded=long or page.kind != "study")
            for part in section.parts if len(section.parts) <= _PARTS else ():
                # the lines below the tables name folders
                grids = [replace(grid, lines=()) for grid in part.grids]
                blocks += _section(replace(part, grids=grids), folded=True, names=True)
    return "\n\n".join(block for block in blocks if block) + "\n"


def _numbers(page: Page) -> str:
    rows = [[number.label, number.value, number.note] for number in page.numbers]
    return markdown_table(["what", "value", "note"], rows) if rows else ""


def _step(step: Step) -> str:
    """A step with the name of its command alone: a reader has other folders."""
    name = " ".join(step.command.split()[:2])
    return f"- {_line(step.text.removesuffix('.'))}{f' ({code(name)})' if name else ''}."


def _section(section: Section, *, folded: bool, names: bool = False) -> list[str]:
    body = [grid_markdown(grid, names=grid.words if names else (), most=_ROWS) for grid in section.grids if grid.rows]
    if not body:
        return []
    title = clean(section.title)
    if folded:
        return [f"<details>\n<summary>{html.escape(title)}</summary>", *body, "</details>"]
    return [f"### {_line(title)}", *body]


def _line(text: str) -> str:
    return prose(shorten(clean(text), _LINE))

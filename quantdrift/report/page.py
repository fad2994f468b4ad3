"""A report as one HTML file that needs no network and no other file, and in which a browser runs our scripts alone.

The content is in the page as JSON. A script puts it into the document as text (`textContent`), never as markup, and the
page's policy (CSP) allows only scripts with the digests that it lists. So any text of a corpus is safe to show.
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from quantdrift import __version__
from quantdrift.base.display import clean
from quantdrift.base.errors import QuantDriftError
from quantdrift.base.extras import extras_named
from quantdrift.report.figures import Figure, theme
from quantdrift.runs.verdict import Tone
from quantdrift.show.tables import Grid

LARGEST = 10_000_000
"""Bytes of a page at most: it opens at once, and can be sent by mail."""
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_UNSAFE = re.compile("[<>&\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Characters that could end a script, or have no UTF-8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number of the first screen, with its interval or another note."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Advice in a sentence, and the command that does it."""

    text: str
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a page below the first screen.

    Attributes:
        name: lower-case letters, digits and hyphens; the link to the section is #NAME.
        title: the heading.
        about: sentences below the heading.
        figures: charts, side by side where there is room.
        grids: tables.
        changed: the changed inputs, as `quantdrift.report.changes.changes_of` returns them.
        folded: whether it is closed at first; a link opens it.
        parts: sections of which the page shows only the one that a link names.
    """

    name: str
    title: str
    about: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    grids: Sequence[Grid] = ()
    changed: Mapping[str, Any] | None = None
    folded: bool = False
    parts: "Sequence[Section]" = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The content of a report; every text may be hostile.

    Attributes:
        kind: a run or a study.
        title: the pair and its data.
        about: the size of the data, in a few words.
        word: the verdict in a word or two.
        tone: whether the verdict is good.
        verdict: the verdict as a sentence.
        words: further sentences on how bad it is.
        warnings: sentences to read before the numbers are trusted.
        numbers: the numbers of the first screen.
        steps: advice.
        sections: the sections below the first screen, in order.
        worst: the worst changed inputs as a table, which Markdown shows in place of the section "changed".
    """

    kind: Literal["run", "study"]
    title: str
    word: str
    tone: Tone
    verdict: str
    about: str = ""
    words: Sequence[str] = ()
    warnings: Sequence[str] = ()
    numbers: Sequence[Number] = ()
    steps: Sequence[Step] = ()
    sections: Sequence[Section] = ()
    worst: Grid | None = None


def render(page: Page) -> str:
    """The page as HTML.

    Raises:
        MissingExtraError: the page has charts, and the package that draws them is not installed.
        QuantDriftError: the page would have more than LARGEST bytes.
    """
    charts = any(section.figures for section in page.sections)
    style, scripts = _asset("page.css"), [_asset("page.js"), *([_chart_library()] if charts else [])]
    policy = (
        f"default-src 'none'; script-src {' '.join(map(_digest, scripts))}; style-src {_digest(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    markup = "".join(f"<script>{script}</script>\n" for script in scripts)
    themes = {"light": theme(False), "dark": theme(True)}
    content = {**_content(replace(page, worst=None)), "themes": themes, "version": __version__}
    html = _asset("page.html").format(policy=policy, style=style, data=_json_text(content), scripts=markup)
    if (size := len(html.encode())) > LARGEST:
        raise QuantDriftError(
            f"the report would have {size:,} bytes, more than {LARGEST:,}; expected fewer inputs, or shorter texts"
        )
    return html


def _json_text(value: Any) -> str:
    """A value as JSON that is safe inside a script."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _UNSAFE.sub(lambda sign: f"\\u{ord(sign[0]):04x}", text)


def json_size(value: Any) -> int:
    """Return the bytes that a value takes in a page."""
    return len(_json_text(value).encode())


def _content(value: Any) -> Any:
    """A part of a page as JSON values; every text is on one line, without invisible characters."""
    if isinstance(value, Section | Figure) and not _NAME.fullmatch(value.name):
        raise ValueError(f"expected a name of lower-case letters, digits and hyphens; got {value.name!r}")
    if isinstance(value, Grid):
        words = [place for place, name in enumerate(value.head) if not place or name in value.words]
        shown = {name: getattr(value, name) for name in ("title", "head", "rows", "lines", "links")}
        return _content({**shown, "words": words})
    if isinstance(value, str):
        return clean(value)
    if is_dataclass(value):
        return {field.name: _content(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {clean(str(key)): _content(part) for key, part in value.items()}
    return [_content(part) for part in value] if isinstance(value, Sequence) else value


def _asset(name: str) -> str:
    return files("quantdrift.report").joinpath("assets", name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _chart_library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, which takes seconds to bundle."""
    with extras_named(needed_for="a report with charts"):
        import vl_convert  # noqa: PLC0415 -- an extra
    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return f"(() => {{{bundle}}})();"  # its names stay inside

"""The website: every page can be reached, and a link that leads nowhere is named."""

import runpy
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support.places import ROOT

DOCS = ROOT / "docs"


BUILD = SimpleNamespace(**runpy.run_path(str(DOCS / "website" / "build.py")))
"""The script that builds it."""


def pages_of(nav: Any) -> Iterator[str]:
    for entry in nav:
        for target in entry.values():
            yield from [target] if isinstance(target, str) else pages_of(target)


def test_every_page_has_a_line_in_the_navigation() -> None:
    nav = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    sources = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb")]
    left_out = (DOCS / "adr", DOCS / "website")
    pages = {
        BUILD.place_of(source).relative_to(BUILD.PAGES).with_suffix(".md").as_posix()
        for source in sources
        if source.parent not in left_out
    }
    made = {"adr/README.md", "examples/README.md", "reference/api.md"}
    assert sorted(pages_of(nav)) == sorted(pages | made)


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "guide").mkdir()
    (tmp_path / "guide" / "index.html").write_text('<h1 id="top"></h1><a href="../#start"></a><img src="no.png">')
    (tmp_path / "index.html").write_text(
        '<h1 id="start"></h1><a href="guide/#top"></a><a href="guide/#end"></a><a href="https://example.org/x"></a>'
    )
    assert sorted(BUILD.broken(tmp_path)) == [
        "guide/index.html: no.png is not there",
        "index.html: guide/#end names no heading",
    ]

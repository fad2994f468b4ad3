"""A page as a file: what stands in it as JSON is what was given, ends no script, and only our scripts may run."""

import base64
import hashlib
import json
import re
from typing import Any

import pytest

from quantdrift.base.errors import QuantDriftError
from quantdrift.report.figures import Figure
from quantdrift.report.page import Page, Section, Step, render
from quantdrift.show.tables import Grid
from support.gate_result_samples import NASTY
from support.hostile_text import HOSTILE

EVERY = [*NASTY, HOSTILE, "</script><script>alert(1)</script>", "<!--<script>", "]]>", "\u2028", "\x85", "{data}{0}"]


def page(**changes: Any) -> Page:
    return Page(**{"kind": "run", "title": "t", "word": "w", "tone": "good", "verdict": "v", **changes})


def elements(html: str, tag: str) -> list[tuple[str, str]]:
    """Attributes and texts of scripts or styles; what a page holds has no sign that could begin one."""
    return re.findall(rf"<{tag}([^>]*)>(.*?)</{tag}>", html, re.DOTALL)


@pytest.mark.parametrize("text", EVERY)
def test_a_text_is_a_json_string_wherever_it_stands(text: str) -> None:
    grid = Grid(head=["name", text], rows=[[text, text]], title=text, lines=[text])
    html = render(
        page(
            title=text,
            verdict=text,
            words=[text],
            steps=[Step(text=text, command=text)],
            sections=[Section(name="s", title=text, grids=[grid], changed={"changed": [{"id": text}]})],
        )
    )
    (data, text_of_data), (ours, _) = elements(html, "script")
    assert (data, ours) == (' type="application/json" id="data"', "")
    assert not re.search("[<>\u2028\u2029\x85]", text_of_data)
    content = json.loads(text_of_data)
    shown = content["title"]
    section = content["sections"][0]
    everywhere = [content["verdict"], *content["words"], *content["steps"][0].values(), *section["grids"][0]["rows"][0]]
    assert {shown} == {*everywhere, section["title"], section["changed"]["changed"][0]["id"]}
    assert not re.search("[\x00-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", shown)


def test_only_what_has_its_digest_in_the_policy_may_run() -> None:
    html = render(page())
    (policy,) = re.findall('http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert "unsafe" not in policy
    for kind, texts in (
        ("script-src", [text for attributes, text in elements(html, "script") if not attributes]),
        ("style-src", [text for _, text in elements(html, "style")]),
    ):
        digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
        assert rules[kind] == " ".join(f"'sha256-{digest}'" for digest in digests)


def test_what_draws_charts_is_in_a_page_with_charts_only() -> None:
    pytest.importorskip("vl_convert")
    figure = Figure(name="f", title="t", caption="c", spec={"mark": "bar"})
    section = Section(name="s", title="t", figures=[figure])
    assert len(render(page())) < 60_000
    assert len(render(page(sections=[section]))) > 800_000


def test_a_name_is_fit_for_a_link_and_a_page_for_a_browser() -> None:
    with pytest.raises(ValueError, match="lower-case letters"):
        render(page(sections=[Section(name='x" onload="', title="t")]))
    with pytest.raises(QuantDriftError, match="expected fewer inputs"):
        render(page(words=["x" * 10_000_000]))

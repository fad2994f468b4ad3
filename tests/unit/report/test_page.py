"""Pages: what stands in one is what was given and ends no script; and the page of a study."""

import base64
import hashlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quantdrift.base.errors import QuantDriftError
from quantdrift.metrics import parse_metric
from quantdrift.report.figures import Figure
from quantdrift.report.page import Page, Section, Step, render
from quantdrift.report.study import WORST, page_of
from quantdrift.runs.folder import read_run
from quantdrift.runs.verdict import TONES, Verdict, advised
from quantdrift.show.tables import Grid
from quantdrift.spec.grammar import parse, parse_scheme
from quantdrift.study.folder import StudyFolder
from quantdrift.study.results import results_of
from support.gate_result_samples import NASTY
from support.hostile_text import HOSTILE
from support.study_samples import study_of

EVERY = [*NASTY, HOSTILE, "</script><script>alert(1)</script>", "<!--<script>", "]]>", "\u2028", "\x85", "{data}{0}"]


def made(**changes: Any) -> Page:
    return Page(**{"kind": "run", "title": "t", "word": "w", "tone": "good", "verdict": "v", **changes})


def elements(html: str, tag: str) -> list[tuple[str, str]]:
    """Attributes and texts of scripts or styles; what a page holds has no sign that could begin one."""
    return re.findall(rf"<{tag}([^>]*)>(.*?)</{tag}>", html, re.DOTALL)


@pytest.mark.parametrize("text", EVERY)
def test_a_text_is_a_json_string_wherever_it_stands(text: str) -> None:
    grid = Grid(head=["name", text], rows=[[text, text]], title=text, lines=[text])
    html = render(
        made(
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
    html = render(made())
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
    assert len(render(made())) < 60_000
    assert len(render(made(sections=[section]))) > 800_000


def test_a_name_is_fit_for_a_link_and_a_page_for_a_browser() -> None:
    with pytest.raises(ValueError, match="lower-case letters"):
        render(made(sections=[Section(name='x" onload="', title="t")]))
    with pytest.raises(QuantDriftError, match="expected fewer inputs"):
        render(made(words=["x" * 10_000_000]))


# --- the page of a study -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    schemes = ("W8", "W3", "W3.5+gap", "W2")
    folder = study_of(
        tmp_path_factory.mktemp("study"), models=("minilm", "<b>e5</b>"), schemes=schemes, data=("docs",), n=40,
        missing=("W2",), metrics=True,
    )  # fmt: skip
    failed = next(cell for cell in folder.cells if "@W2" in str(cell.spec))
    folder.fail(failed, ValueError("the disk is full"))
    return folder


@pytest.fixture(scope="module")
def page(study: StudyFolder) -> Page:
    return page_of(study)


def section(page: Page, name: str) -> Section:
    return next(part for part in page.sections if part.name == name)


def test_the_table_says_what_study_results_says_and_leads_to_the_runs(study: StudyFolder, page: Page) -> None:
    (grid,) = section(page, "results").grids
    results = [result for result in results_of(study, [parse_metric("flip@1")])[0] if result.run is not None]
    place = grid.head.index("flip@1")
    assert len(grid.rows) == len(results) == 6
    parts = {part.name: part for part in section(page, "run").parts}
    for row, link, result in zip(grid.rows, grid.links, results, strict=True):
        assert row[place].startswith(f"{100 * (result.metrics['flip@1'].value or 0):.1f} % (")
        assert result.cell.model in parts[link].title
        assert ["flip@1", row[place], f"{result.metrics['flip@1'].n}"] in parts[link].grids[0].rows


def test_every_run_has_its_worst_changed_inputs_and_no_more(study: StudyFolder, page: Page) -> None:
    parts = section(page, "run").parts
    done = [cell for cell in study.cells if (study.place(cell.name) / "run.json").is_file()]
    for part, cell in zip(parts, done, strict=True):
        changed = read_run(study.place(cell.name)).changed()
        assert [row[0] for row in part.grids[1].rows] == [change.input_id for change in changed[:WORST]]
        beyond = len(changed) - WORST
        assert (f"{beyond:,} more changed" in part.grids[1].lines[0]) == (beyond > 0)


def test_schemes_are_sorted_by_their_worst_run(page: Page) -> None:
    text = " ".join(page.words)
    assert page.kind == "study"
    assert text.index("W8-rtn") < text.index("W3-rtn")
    assert page.word.startswith(("0 of 3", "1 of 3"))
    floors = [number for number in page.numbers if number.label == "noise floor"]
    assert [floor.value for floor in floors] == ["2.5 %"]  # one of 40


def test_what_was_not_measured_is_named_with_its_reason(page: Page) -> None:
    (grid,) = section(page, "missing").grids
    assert sorted(row[2] for row in grid.rows) == ["failed", "open"]
    assert any("the disk is full" in row[3] for row in grid.rows)
    assert any("1 run of the study is failed" in line for line in page.warnings)


GOOD, CHANGED, BAD = "safe to deploy", "answers change, right ones stay", "right answers lost"


def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: dict[str, str], kind: str = "grid") -> Page:
    """The page of a study whose schemes have these verdicts; W2, which comes last, is not finished."""

    def verdict(record: Any) -> Verdict:
        scheme = parse(record["spec"]).scheme
        word = next(word for said, word in words.items() if parse_scheme(said) == scheme)
        next_step = "" if word == GOOD else f"Mend {scheme}."
        return Verdict(word=word, sentences=("Why.",), tone=TONES[word], next=next_step, command="quantdrift mend")

    for module in ("report.study", "study.shares"):
        monkeypatch.setattr(f"quantdrift.{module}.verdict", verdict)
    folder = study_of(tmp_path, models=("m", "n"), schemes=[*words], data=("docs",))
    if "W2" in words:
        shutil.rmtree(folder.place(folder.cells[-1].name))  # one of its two runs
    return page_of(replace(folder, record=folder.record.model_copy(update={"kind": kind})))


@pytest.mark.parametrize(
    ("words", "said", "step"),
    [
        ({"W8": GOOD, "W4": GOOD, "W3": BAD}, "Take W4-rtn: .* has the fewest bits .* 1 scheme of 3 loses", "W4-rtn"),
        ({"W8": GOOD, "W4": CHANGED}, "^Take W8-rtn: it is safe in every run\\.$", "baseline"),
        ({"W8": GOOD, "W2": GOOD}, "^Take W8-rtn: it is safe in every run\\.$", "W8-rtn"),  # W2 is not finished
        ({"W8": CHANGED, "W4": BAD}, "^1 scheme of 2 loses right answers or quality in some run", "Mend W8"),
        ({"W8": CHANGED}, "none is shown to be safe", "Mend W8"),
    ],
)
def test_a_study_names_the_scheme_to_take_or_what_mends_the_best(
    words: dict[str, str], said: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = judged(tmp_path, monkeypatch, words)
    assert re.search(said, page.verdict), page.verdict
    (shown,) = page.steps  # there is one corpus, so that none says "over all corpora"
    assert step in shown.text
    assert ("gate" in shown.command) == page.verdict.startswith("Take")


def test_the_page_of_a_waterfall_is_about_the_whole_deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = {"W4": GOOD, "fp+emb=int8": GOOD, "W4+emb=int8": BAD}
    page = judged(tmp_path, monkeypatch, words, kind="waterfall")
    assert (page.word, page.tone, page.verdict) == (BAD, "bad", "W4-rtn+emb=int8: Why.")
    (shown,) = page.steps
    advice = advised(Verdict(word=BAD, sentences=(), tone="bad"), {"spec": "m@W4+emb=int8"}, "weights")
    assert shown.text == f"W4-rtn+emb=int8: {advice.next}"  # weights change more than codes of 8 bits


def test_a_study_without_a_run_has_a_page(tmp_path: Path) -> None:
    empty = page_of(study_of(tmp_path, models=("m",), schemes=("W4",), data=("docs",), missing=("W4",)))
    assert empty.word == "nothing measured"
    assert [result.name for result in empty.sections] == ["map", "run", "results", "missing"]

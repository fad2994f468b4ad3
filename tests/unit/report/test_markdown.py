"""What a report says: as Markdown read back by another reader, its drill-down as JSON, and sentences."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantdrift.evidence.record import Noise
from quantdrift.finished.rankings import evidence_of_rankings
from quantdrift.finished.texts import Texts
from quantdrift.metrics import measure
from quantdrift.report import changes
from quantdrift.report import run as of_run
from quantdrift.report.changes import changes_of
from quantdrift.report.markdown import markdown_of
from quantdrift.report.page import Number, Page, Section, Step
from quantdrift.runs.changes import Changed, changed_inputs
from quantdrift.runs.words import findings
from quantdrift.show.changes import changed_columns
from quantdrift.show.tables import Grid, table
from support.beir_folder import write_beir_folder
from support.command_line import cli
from support.gate_result_samples import NASTY
from support.hostile_text import HOSTILE, check_clean
from support.small_evidence import CANDIDATE, FOUR, QRELS, REFERENCE, evidence_of
from unit.report.report_samples import rendered, tables, written

OURS = "h2|h3|p|strong|em|code|wbr|table|thead|tbody|tr|t[hd]|ul|li|details|summary"
PAGE = Page(
    kind="study",
    title="4 runs",
    about="2 schemes",
    word="changed",
    tone="warn",
    verdict="W3 changes most.",
    numbers=[Number(label="changed", value="5 %", note="of all")],
    sections=[
        Section(name="cells", title="Cells", grids=[Grid(head=["model", "flip@1"], rows=[["minilm", "12.5 %"]])]),
        Section(name="facts", title="Facts", grids=[Grid(head=["what"], rows=[["/home/me"]])], folded=True),
    ],
)


def test_a_run_says_how_many_changed_and_lists_the_worst_with_texts(tmp_path: Path) -> None:
    queries, documents = {f"q{n}": f"question {n}" for n in range(4)}, {name: f"text {name}" for name in "abcd"}
    qrels = {query: [item for item, grade in grades.items() if grade > 0] for query, grades in QRELS.items()}
    folder = write_beir_folder(tmp_path / "data", queries, documents, qrels)
    half = {"value": 0.5, "low": 0.15, "high": 0.85, "n": 4}
    metrics = {"flip@1": half, "gold_lost@10": half}
    # of another program, so that the texts are matched by their ids
    run = written(tmp_path / "run", metrics=metrics, diff={})
    text = markdown_of(of_run.page_of(run, data=folder))
    page = rendered(text)
    assert "50.0 % of the inputs have another top-1" in page
    numbers, changed, *_ = tables(page)
    assert [row[1:] for row in numbers[1:]] == [["50.0 %", "95 %: 15.0 to 85.0, of 4 inputs with one there"]]
    assert [row[0] for row in changed[1:]] == ["q2: question 2", "q3: question 3"]
    assert changed[1][1:3] == [
        "a (8.0000, relevant, rank 2 in the candidate) text a",
        "b (7.0000, not relevant, rank 2 in the reference) text b",
    ]
    assert changed[1][3] == "harmful, reference's gap 1, separation 0.25"  # epsilon is 2: a fell by it and c rose
    assert page.count("<details>") == page.count("</details>") >= 1
    assert str(tmp_path) not in text  # a pull request is read by others


def test_a_study_shows_its_tables_and_folds_nothing_it_is_about() -> None:
    page = rendered(markdown_of(PAGE))
    assert tables(page) == [
        [["what", "value", "note"], ["changed", "5 %", "of all"]],
        [["model", "flip@1"], ["minilm", "12.5 %"]],
    ]
    assert "<details>" not in page
    assert "/home/me" not in page


def test_more_rows_than_a_comment_takes_are_counted() -> None:
    grid = Grid(head=["input"], rows=[[f"q{n}"] for n in range(1000)])
    page = rendered(markdown_of(replace(PAGE, sections=[Section(name="a", title="A", grids=[grid])])))
    assert len(tables(page)[1]) == 61
    assert "and 940 more rows" in page


@pytest.mark.parametrize("name", [HOSTILE, *NASTY[:4]])
def test_names_from_outside_are_text_wherever_they_stand(name: str) -> None:
    unknown = dict.fromkeys(("rank_before", "rank_after", "was_right", "is_right", "gap"))
    change = Changed(input_id=name, before=name, after=name, **unknown)  # type: ignore[arg-type]
    texts = Texts(told="", inputs={name: name}, items={name: name})
    worst = table(changed_columns(texts, exact=True, classes=False), [change] * 10, title=name)
    grid = Grid(head=["a", name], rows=[[name, name]], title=name, lines=[name])
    said: Any = dict.fromkeys(("title", "about", "word", "verdict"), name)
    lines: Any = {key: [name] for key in ("words", "warnings")}
    page = Page(
        **said,
        **lines,
        kind="run",
        tone="bad",
        numbers=[Number(label=name, value=name, note=name)],
        steps=[Step(text=name, command=f"quantdrift {name}")],
        sections=[Section(name="a", title=name, grids=[grid])],
        worst=worst,
    )
    text = markdown_of(page)
    check_clean(text)
    shown = rendered(text)
    assert not re.search(rf"<(?!/?(?:{OURS})\b)", shown)
    assert [len(row) for table in tables(shown) for row in table] == [3, 3, *[4] * 11, 2, 2]
    assert shown.count("<details>") == shown.count("</details>") == 2


def test_the_command_prints_it_or_writes_it_where_the_name_says_so(tmp_path: Path) -> None:
    written(tmp_path / "run")
    code, printed, _ = cli("report", tmp_path / "run", "--md")
    assert code == 0
    assert printed.startswith("## quantdrift: ")
    assert "written" in cli("report", tmp_path / "run", "--md", "-o", tmp_path / "a.md")[1]
    assert (tmp_path / "a.md").read_text() == printed
    code, _, err = cli("report", tmp_path / "run", "--md", "-o", tmp_path / "a.html")
    assert code == 2
    assert "expected a file that ends in .md" in err


def test_each_run_of_a_small_study_is_told_and_of_a_large_one_none() -> None:
    grid = Grid(head=["input", "says"], rows=[["q1", "a *b* <i>"]], words={"says"}, lines=["in /home/me"])
    parts = [Section(name=f"cell-{n}", title=f"Cell {n}", grids=[grid]) for n in range(13)]

    def shown(n: int) -> str:
        return rendered(markdown_of(replace(PAGE, sections=[Section(name="runs", title="Runs", parts=parts[:n])])))

    few = shown(2)
    assert few.count("<details>") == few.count("</details>") == 2
    assert tables(few)[1:] == [[["input", "says"], ["q1", "a *b* &lt;i&gt;"]]] * 2
    assert "/home/me" not in few
    assert "<details>" not in shown(13)


# --- the drill-down as JSON --------------------------------------------------------------------------


ARMS = ("full precision", "W4")
NO_TEXTS = Texts(told="")


def of_four(texts: Texts = NO_TEXTS) -> dict[str, Any]:
    return changes_of(changed_inputs(FOUR), arms=ARMS, right="relevant", texts=texts, evidence=FOUR)


def test_both_rankings_of_a_change_with_scores_labels_and_where_they_were() -> None:
    content = of_four()
    assert (content["arms"], content["kinds"], content["labelled"]) == (["full precision", "W4"], {"harmful": 2}, True)
    q3, q2 = sorted(content["changed"], key=lambda row: str(row["id"]), reverse=True)
    names = [name for name, _ in content["items"]]
    assert [names[q2["before"]], names[q2["after"]], q2["rank_before"], q2["rank_after"]] == ["a", "b", 2, 2]
    # b overtakes a: 8 and 7 become 6 and 7
    assert [[names[row[0]], *row[1:]] for row in q2["reference"]] == [
        ["a", 8, 6, 1, 2],
        ["b", 7, 7, None, 1],
        ["c", 2, 4, None, 3],
        ["d", 1, 1, -1, 4],
    ]
    assert [names[row[0]] for row in q2["candidate"]] == ["b", "a", "c", "d"]
    # the lead was 1, and no score moved by more than 2
    assert (q2["gap"], q2["separation"], q2["score_before"], q2["score_after"]) == (1, 0.25, 8, 7)
    assert [[names[item], *ranks] for item, *ranks in q3["missed"]] == [["z", None, None]]
    assert q3["separation"] == 0


def test_without_labels_every_change_is_listed_and_none_is_judged() -> None:
    content = changes_of(
        changed_inputs(replace(FOUR, judgements=None)), arms=ARMS, right="relevant", texts=NO_TEXTS, evidence=FOUR
    )
    assert (content["labelled"], content["kinds"]) == (False, {})
    assert all("kind" not in row for row in content["changed"])


def test_lists_that_were_cut_short_have_scores_only_where_they_are_known() -> None:
    lists: Any = ({"q": {"a": 0.9, "b": 0.8}}, {"q": {"c": 0.7, "a": 0.6}})
    evidence = evidence_of_rankings(*lists, complete=False, depth=2)
    (row,) = changes_of(changed_inputs(evidence), arms=ARMS, right="relevant", texts=NO_TEXTS, evidence=evidence)[
        "changed"
    ]
    assert row["candidate"] == [[2, None, 0.7, None, None], [0, 0.9, 0.6, None, 1]] or row["candidate"][0][1] is None
    assert "rank_before" not in row


def test_texts_are_cut_with_a_note() -> None:
    long = "word " * 300_000
    content = of_four(Texts(inputs={"q2": long}, items={"a": long, "b": "short"}, told="texts are from D"))
    q2 = next(row for row in content["changed"] if row["id"] == "q2")
    assert q2["text"].endswith("… (1,500,000 characters, of which the first 2,000 are shown)")
    assert len(content["items"][q2["before"]][1]) < 800
    assert (content["items"][q2["after"]], content["notes"]) == (["b", "short"], ["Texts are from D."])


def test_a_choice_belongs_to_its_question() -> None:
    unknown = dict.fromkeys(("rank_before", "rank_after", "was_right", "is_right", "gap"))
    change = Changed(input_id="q1", before="0", after="1", **unknown)  # type: ignore[arg-type]
    texts = Texts(choices={"q1": ["yes", "no"], "q2": ["red", "blue"]}, told="")
    content = changes_of([change, replace(change, input_id="q2")], arms=ARMS, right="right", texts=texts, evidence=FOUR)
    answers = [[content["items"][row[which]] for which in ("before", "after")] for row in content["changed"]]
    assert answers == [[["0", "yes"], ["1", "no"]], [["0", "red"], ["1", "blue"]]]


def test_where_there_is_no_room_texts_are_left_out_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = Texts(inputs={f"q{n}": "x" * 1_000 for n in range(4)}, told="texts are from D")
    monkeypatch.setattr(changes, "_ROOM", changes.json_size(of_four()) - 60 + 1_050)
    content = of_four(texts)
    assert ["text" in row for row in content["changed"]] == [True, False]
    assert content["notes"] == ["There is no room for 1 of the texts.", "Texts are from D."]


def test_only_the_worst_are_listed_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "MOST", 1)
    content = of_four()
    assert [row["id"] for row in content["changed"]] == [changed_inputs(FOUR)[0].input_id]
    assert content["notes"] == ["The worst 1 of 2 are listed."]


# --- sentences ---------------------------------------------------------------------------------------


def told(reference: list[list[int]], candidate: list[list[int]], noise: float) -> list[str]:
    n = len(reference)
    floor = Noise(flips=np.zeros(n, dtype=bool), epsilon=np.full(n, noise, dtype=np.float32))
    estimates = measure(evidence_of(reference, candidate, noise=floor))
    return list(findings({"data": {}, "metrics": {name: estimate.to_json() for name, estimate in estimates.items()}}))


def test_flips_that_rest_on_ties_or_noise_are_told() -> None:
    """q2 flips over a gap of 1, q3 over a tie that the reference could have broken the other way."""
    ties, near = told(REFERENCE, CANDIDATE, 0.25)[:2]
    assert ties.startswith("Exact ties: over all ways to break them 25.0 % to 50.0 % of the inputs flip, 37.5 %")
    assert "; 1 of the flips rest" in ties
    assert near.startswith("1 of 2 flips are interchangeable")


def test_where_there_are_neither_nothing_is_said_of_them() -> None:
    assert not [line for line in told(REFERENCE[:3], CANDIDATE[:3], 0.25) if "ties" in line or "interchange" in line]

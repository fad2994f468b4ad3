"""A report as Markdown, read back by a reader of Markdown: figures by hand, and names that stay text."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from quantdrift.finished.texts import Texts
from quantdrift.report import run as of_run
from quantdrift.report.markdown import markdown_of
from quantdrift.report.page import Number, Page, Section, Step
from quantdrift.runs.changes import Changed
from quantdrift.show.changes import changed_columns
from quantdrift.show.tables import Grid, table
from support.beir_folder import write_beir_folder
from support.command_line import cli
from support.gate_result_samples import NASTY
from support.hostile_text import HOSTILE, check_clean
from support.small_evidence import QRELS
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
    # of another program, so that the texts are matched by their ids
    run = written(tmp_path / "run", metrics={"flip@1": {"value": 0.5, "low": 0.15, "high": 0.85, "n": 4}}, diff={})
    text = markdown_of(of_run.page_of(run, data=folder))
    page = rendered(text)
    assert "50.0 % of the inputs have another top-1" in page
    numbers, changed, *_ = tables(page)
    assert ["top-1 changes", "50.0 %", "95 %: 15.0 to 85.0"] in numbers
    assert [row[0] for row in changed[1:]] == ["q2: question 2", "q3: question 3"]
    assert changed[1][1:3] == [
        "a (8.0000, relevant, rank 2 in the candidate) text a",
        "b (7.0000, not relevant, rank 2 in the reference) text b",
    ]
    assert changed[1][3] == "harmful, gap 1, separation 0.25"  # epsilon is 2: a fell by it and c rose
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
    worst = table(changed_columns(texts, exact=True), [change] * 10, title=name)
    grid = Grid(head=["a", name], rows=[[name, name]], title=name, lines=[name])
    page = Page(
        kind="run",
        title=name,
        about=name,
        word=name,
        tone="bad",
        verdict=name,
        words=[name],
        warnings=[name],
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

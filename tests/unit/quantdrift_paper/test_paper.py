"""The paper's tables from a study: the numbers are the runs', and LaTeX can read them."""

import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from quantdrift.base.errors import QuantDriftError
from quantdrift.spec.grammar import parse
from quantdrift.statistics.estimates import Estimate
from quantdrift.study.folder import STUDY, StudyFolder, StudyRecord
from quantdrift_paper.cells import USUAL, RunCell
from quantdrift_paper.latex import Table, escaped
from quantdrift_paper.tables import PLANS, Source, write_paper
from quantdrift_rag.answers import Condition, RagRecord
from support.command_line import cli
from support.study_samples import study_of

SCHEMES = (
    "W4", "W3", "W4-gptq", "W3-gptq", "W3.5+gap", "W3.5+reconstruction", "W4-channel", "W4-g64", "W4A8", "W8A8",
)  # fmt: skip


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    data = ("docs", "papers", "classes1", "classes2", "classes3")
    return study_of(tmp_path_factory.mktemp("a_study"), models=("mini_lm&50%",), schemes=SCHEMES, data=data, n=30)


def tables_of(*studies: StudyFolder) -> tuple[dict[str, Table], dict[str, str]]:
    return Source(folders=studies).tables()


@pytest.fixture(scope="module")
def tables(study: StudyFolder) -> dict[str, Table]:
    return tables_of(study)[0]


def test_every_row_fills_the_columns_of_its_table_and_latex_can_read_it(tables: dict[str, Table]) -> None:
    assert len(tables) >= 15
    for name, table in tables.items():
        text = table.tabular()
        assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}"), name
        for row in text.splitlines():
            if row.endswith(r"\\"):
                spans = [int(n) for n in re.findall(r"\\multicolumn\{(\d+)\}", row)]
                assert len(re.split(r"(?<!\\)&", row)) + sum(spans) - len(spans) == table.width, (name, row)
        assert not re.search(r"(?<!\\)[%#]|nan|inf", text), name


def classes_at(scheme: str, lost: Sequence[float], changed: Sequence[float], n_classes: int = 9) -> list[RunCell]:
    """A run on each of as many data, of which so much accuracy is lost and so many top-5 sets change."""
    parsed = parse(f"m@{scheme}").scheme
    facts = {**USUAL, "bits": parsed.weight_bits, "group": parsed.group_size, "family": "classes", "model": "m_1"}
    return [
        RunCell(
            cell=Any,
            run=Any,
            facts={**facts, "data": f"data{number}"},
            _evidence=SimpleNamespace(n_items=np.array([n_classes])),
            _known={"change.accuracy": Estimate(value=-loss), "set_kept@5": Estimate(value=1 - change)},
        )
        for number, (loss, change) in enumerate(zip(lost, changed, strict=True))
    ]


def test_accuracy_against_rankings_by_hand() -> None:
    # one exchange of neighbours among four: 1 - 6 * 2 / 60; 4 of 24 orders are as near to it
    cells = classes_at("W4", [0.1, 0.2, 0.3, 0.4], [0.1, 0.3, 0.2, 0.4])
    cells += classes_at("W3-channel", [0.1, 0.2, 0.3], [0.7, 0.6, 0.5])  # 1 of 6 orders is as far from it
    cells += classes_at("W4", [0.9, 0.8], [0.0, 0.0], n_classes=5)  # the first five of five classes never change
    table = PLANS["accrank"].made(SimpleNamespace(cells=cells))
    assert isinstance(table, Table)
    assert table.rows == [
        [r"m\_1", r"W4-group\_128", "4", "$+0.800$", "0.333"],
        [r"m\_1", "W3-channel", "3", "$-1.000$", "0.333"],
    ]
    # products of centred ranks 4 and -2, squares 5 and 2
    assert f"of ranks within each row: {2 / 7:+.3f}" in table.about
    few = classes_at("W4", [0.1, 0.2, 0.3], [0.3, 0.2, 0.1], n_classes=5)
    assert "more than 5 classes" in str(PLANS["accrank"].made(SimpleNamespace(cells=few)))


def test_only_what_a_suite_was_to_give_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantdrift_paper.tables.write_pictures", lambda figures, place, form: [])
    monkeypatch.setenv("COLUMNS", "1000")
    study = study_of(tmp_path / "s", models=("m",), schemes=("W4",), data=("docs",), n=10)

    def told(*shows: str) -> list[str]:
        """What is said of the tables, but for those that are written."""
        StudyRecord(cells=study.cells, shows=shows).write(study.path / STUDY)
        written, *rest = cli("tables", study.path, "-o", tmp_path / "tex")[1].split("\n\n")[0].splitlines()
        assert written.startswith("tables: gold, ")
        return rest

    (others,) = told()
    assert re.match(r"\d+ other tables and figures of the paper need other runs; quantdrift list suites", others)
    (missed,) = told("gold", "corpus", "law", "goold")
    assert missed.startswith("not given: corpus (no search at W4-g128-rtn in two sizes")
    assert missed.endswith("; law (it takes 3 runs or more); goold (the paper has no table of this name)")
    assert told("gold") == []  # of what nobody asked for nothing is said


def test_what_a_study_does_not_have_is_named(study: StudyFolder, tmp_path: Path) -> None:
    small = study_of(tmp_path, models=("m",), schemes=("W8",), data=("docs",), n=10)
    tables_there, left_out = tables_of(small)
    assert not tables_there
    assert left_out["quantizers"] == "no search at 4 or 3 bits in groups of 128"
    assert "capture" in left_out["alloc_seed"]
    assert {*left_out} == {*PLANS}
    with pytest.raises(QuantDriftError, match="no run"):
        write_paper([small], tmp_path / "paper")


def test_answers_behind_a_search_lie_beside_a_study_as_the_papers_table(tmp_path: Path) -> None:
    """Of two questions: the reference has both right, AWQ the first, gap changes the wording alone."""
    study = study_of(tmp_path, models=("m",), schemes=("W4",), data=("docs",), n=10)
    assert "quantdrift rag" in tables_of(study)[1]["rag"]
    said = {"W4-awq": ["x", "z"], "W4-g128-rtn": ["w", "z"], "W3.5+gap": ["x!", "y"], "./b_int4": ["x", "y"]}
    passages = {"passages": [["d"], ["d"]], "gold_in_context": [True, False]}
    whole: Any = {"generator": "hf m_1", "kind": "generator", "data": "docs", "n_passages": 1, "gold_by": "labels"}
    asked: Any = {"ids": ["0", "1"], "questions": ["?", "?"], "golds": [["x"], ["y"]]}
    RagRecord(
        **whole,
        **asked,
        control=Condition(name="no passages", answers=["no", "no"]),
        reference=Condition(name="full precision", answers=["x", "y"], **passages),
        candidates=[
            Condition(name=name, spec=f"m@{name}" if "W" in name else f"m vs {name}", answers=answers, **passages)
            for name, answers in said.items()
        ],
    ).write(study.path / "rag" / "rag.json")
    tables_there, left_out = tables_of(study)
    rows = [list(row or ()) for row in tables_there["rag"].rows]
    assert rows == [
        ["No passages", r"0.0\%", r"0.0\%", "--", "--", "--", "--"],
        ["Full-precision retrieval", r"100.0\%", r"100.0\%", r"50.0\%", "--", "--", "--"],
        ["Quantized retrieval, RTN", r"0.0\%", r"0.0\%", r"50.0\%", "2", "2", "0"],
        ["Quantized retrieval, AWQ", r"50.0\%", r"50.0\%", r"50.0\%", "1", "1", "0"],
        [r"Quantized retrieval, ./b\_int4", r"100.0\%", r"100.0\%", r"50.0\%", "0", "0", "0"],
    ]
    assert tables_there["alloc_rag_gap"].rows == [["RTN", "Gap, first order (ours)", "--", "0", "0"]]
    assert "reconstruction" in left_out["alloc_rag_mse"]


def test_files_and_the_document_that_shows_all(study: StudyFolder, tables: dict[str, Table], tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="the extra 'report' is not installed")
    written, *_ = write_paper([study], tmp_path / "paper")
    document = (tmp_path / "paper" / "all.tex").read_text()
    for place in written[:-1]:
        inside = place.relative_to(tmp_path / "paper")
        assert str(inside if place.suffix == ".pdf" else inside.with_suffix("")) in document
    assert document.count(r"\begin{table}") == document.count(r"\end{table}") == len(tables)
    assert r"mini\_lm\&50\%" in (tmp_path / "paper" / "tables" / "gold.tex").read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a_b & 50 % #1 ~ ^ $x$ {y}", r"a\_b \& 50 \% \#1 \textasciitilde{} \textasciicircum{} \$x\$ \{y\}"),
        (r"\input{/etc/passwd}", r"\textbackslash{}input\{/etc/passwd\}"),
        ("two\nlines \u202e☃ é", "two lines ?? é"),
        ("<a|b>", r"\textless{}a\textbar{}b\textgreater{}"),
    ],
)
def test_latex_obeys_nothing_in_a_name(text: str, message: str) -> None:
    assert escaped(text) == message

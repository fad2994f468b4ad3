"""The page on the paper: it is what its command gives, one rule judges, and what is measured is what the runs hold."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from quantdrift.statistics.conformal import observe
from quantdrift_rag.answers import RECORD, Condition, RagRecord
from support.places import ROOT
from support.study_samples import study_of

PLACE = ROOT / "docs" / "measured" / "paper"


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(PLACE)
    return importlib.import_module("paper")


def test_the_page_is_what_its_command_gives(paper: Any) -> None:
    for place, text in paper.made().items():
        assert place.read_text(encoding="utf-8") == text, "python docs/measured/paper/paper.py"
    asked = {(row["suite"], row["here"]) for row in paper.rows_in(paper.COMPARISONS)}
    assert {(row["suite"], row["here"]) for row in paper.rows_in(paper.OFFLINE)} <= asked


def test_one_rule_judges(paper: Any) -> None:
    def one(theirs: float, ours: float, low: float, high: float, certain: str = "") -> Any:
        return {"certain": certain}, paper.Compared(paper=theirs, ours=ours, low=low, high=high)

    nan = float("nan")
    rows = [
        one(-2, -1, -1.2, -0.8),
        one(-2, 1, 0.8, 1.2),
        one(3, 0.1, -0.1, 0.3),
        one(-2, -1, nan, nan),
        one(3, 0, 0, 0),
        one(-2, -1, -1.2, -0.8, certain="a quantile"),
        ({"certain": ""}, None),
    ]
    words = ["shown", "reversed", "not shown", "not shown", "tie", "cannot fail", "not measured"]
    assert paper.judged(rows) == words
    barely = one(-2, -1, -1.9, -0.1)  # p 0.03: shown alone, and not among three
    assert paper.judged([barely]) == ["shown"]
    assert paper.judged([barely] * 3) == ["not shown"] * 3
    assert paper.judged([barely, rows[4], rows[5], rows[6]])[0] == "shown"  # what could not fail is not counted


def test_the_p_of_an_interval_that_ends_at_0_is_five_percent(paper: Any) -> None:
    for ours, low, high in ((1, 0, 3), (-1, -3, 0)):
        assert paper.Compared(paper=1, ours=ours, low=low, high=high).p == pytest.approx(0.05)
    z_of_three = paper.Compared(paper=1, ours=3, low=3 - 1.959964, high=9).p
    assert z_of_three == pytest.approx(2 * stats.norm.sf(3), rel=1e-5)


@pytest.mark.parametrize(
    ("words", "table"),
    [
        (["shown", "cannot fail", "not measured"], "shown"),
        (["shown", "tie"], "not shown"),
        (["shown", "reversed", "not shown"], "reversed"),
        (["tie", "tie"], "tie"),
        (["cannot fail", "not measured"], "cannot fail"),
        (["not measured"], "not measured"),
        ([], "not measured"),
    ],
)
def test_a_table_comes_to_one_word(paper: Any, words: list[str], table: str) -> None:
    assert paper.word_of_table(words) == table


def test_figures_of_the_paper_that_disagree_are_no_comparison(paper: Any) -> None:
    assert paper.pairs_of({"table": "t", "paper": "1>0.5 3>2"}) == [(1, 0.5), (3, 2)]
    for pairs in ("1>0.5 2<3", "1>2", "1<1"):
        with pytest.raises(ValueError, match="one direction"):
            paper.pairs_of({"table": "t", "paper": pairs})


def test_what_is_measured_is_a_paired_difference_of_the_runs(paper: Any, tmp_path: Path) -> None:
    measure = importlib.import_module("measure")
    study = study_of(tmp_path / "s", models=("m",), schemes=("W4", "W3", "W4-gptq"), data=("docs", "classes1"), n=60)

    def tops(scheme: str, data: str = "docs") -> Any:
        (cell,) = (c for c in study.cells if str(c.spec.scheme) == scheme and c.data.called == data)
        evidence = study.run(cell).evidence()  # type: ignore[union-attr]
        return evidence, evidence.reference_top, evidence.candidate_top

    (_, before, w4), (_, _, w3) = tops("W4-g128-rtn"), tops("W3-g128-rtn")
    changed = [(after.items[:, 0] != before.items[:, 0]).astype(float) for after in (w4, w3)]
    row = measure.measured(tmp_path, "s", "W4/docs flip@1 | W3/docs flip@1")
    assert [float(row[name]) for name in ("first", "second")] == pytest.approx(np.mean(changed, axis=1), abs=1e-5)
    wanted = stats.bootstrap((changed[0] - changed[1],), np.mean, method="percentile").confidence_interval
    assert [float(row[end]) for end in ("low", "high")] == pytest.approx([*wanted], abs=0.03)
    evidence, reference, _ = tops("W4-g128-rtn")
    lead = reference.reference_scores[:, 0] - reference.reference_scores[:, 1]
    ratio = lead / (2 * np.maximum(np.abs(evidence.delta_min), np.abs(evidence.delta_max)))
    row = measure.measured(tmp_path, "s", "W4/docs separation | 1")
    assert (float(row["first"]), float(row["second"])) == (pytest.approx(np.median(ratio), rel=1e-4), 1)
    kept = measure.measured(tmp_path, "s", "W4/docs threshold(S,0.10) | 0")
    values = np.sort(observe(evidence).values)
    assert float(kept["first"]) == pytest.approx(values[int(np.ceil(0.9 * (len(values) + 1))) - 1], rel=1e-4)
    broken, n = measure.broken(tmp_path, "s", "W4/docs", "S", "0.10")
    assert broken[0] <= 0.10  # of a gap that bounds what can flip
    assert n == round(30 * float(measure.certify(tmp_path, "s", "W4/docs", "S", "0.10")[0][0]))
    order = measure.measured(tmp_path, "s", "* order(separation,flip@1) | 0")
    size = measure.measured(tmp_path, "s", "* size(separation,flip@1) | 0")
    assert float(size["first"]) == abs(float(order["first"]))
    sides = [[float(measure.quantity(tmp_path, "s", f"{c.spec.scheme}/{c.data.called} {m}")[0][0])
              for c in study.cells] for m in ("separation", "flip@1")]  # fmt: skip
    assert float(order["first"]) == pytest.approx(stats.spearmanr(*sides).statistic, abs=1e-4)


def test_answers_behind_a_search_are_counted(paper: Any, tmp_path: Path) -> None:
    measure = importlib.import_module("measure")
    study_of(tmp_path / "s", models=("m",), schemes=("W4",), data=("docs",))
    said = [
        Condition(name=name, answers=answers) for name, answers in (("full", [*"aabb"]), ("W4-g128-rtn", [*"abac"]))
    ]
    asked = {"ids": [*"1234"], "questions": [*"1234"], "golds": [["a"]] * 4, "data": "docs", "gold_by": "labels"}
    parts = {"generator": "g", "kind": "generator", "n_passages": 1, "control": None}
    record = RagRecord(**asked, **parts, reference=said[0], candidates=said[1:])  # type: ignore[arg-type]
    (tmp_path / "s" / "rag").mkdir()
    record.write(tmp_path / "s" / "rag" / RECORD)
    for what, value in (("change", 0.75), ("n_change", 3), ("n_worse", 1), ("n_better", 1), ("loss", 0)):
        row = measure.measured(tmp_path, "s", f"W4 answers({what}) | 0")
        assert (float(row["first"]), row["n"]) == (value, "4")


def test_a_share_without_a_spread_has_the_interval_of_newcombe(paper: Any) -> None:
    measure = importlib.import_module("measure")
    theirs = pytest.importorskip("statsmodels.stats.proportion").confint_proportions_2indep
    for first, second in (((0, 40), (0, 25)), ((12, 12), (0, 49))):
        sides = [(np.full(9, count / n), n) for count, n in (first, second)]
        wanted = theirs(*first, *second, method="newcomb", compare="diff")
        assert measure.interval(*sides) == pytest.approx([*wanted])

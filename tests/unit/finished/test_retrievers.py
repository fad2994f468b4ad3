"""`drift` of two functions from a query to its answers: LangChain's, LlamaIndex's or anybody's."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quantdrift.api import Run, drift
from quantdrift.base.errors import DataError, QuantDriftError
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.finished.formats.trec import write_trec

QUERIES = {"q1": "milk", "q2": "bread", "q3": "motor"}
QRELS = {"q1": {"cow": 1}, "q2": {"oven": 1}, "q3": {"belt": 1}}
FULL = {"milk": ["cow", "goat", "oven"], "bread": ["oven", "dough"], "motor": ["pump", "belt", "cow"]}
INT8 = {"milk": ["cow", "oven", "goat"], "bread": ["dough", "oven"], "motor": ["belt", "pump", "cow"]}


def full(query: str) -> list[str]:
    return FULL[query]


def int8(query: str) -> Iterator[str]:
    yield from INT8[query]


def scored(lists: dict[str, list[str]], step: float = 0.1) -> Callable[[str], list[tuple[str, float]]]:
    return lambda query: [(name, 1 - step * rank) for rank, name in enumerate(lists[query])]


def test_ids_alone_tell_which_answers_changed_and_whether_right_ones_are_lost() -> None:
    run = drift(full, int8, QUERIES, qrels=QRELS)
    assert run.record["spec"] == "full vs int8"
    assert run["flip@1"].value == pytest.approx(2 / 3)
    assert run["noise_floor"].value == 0
    changed = {one.input_id: (one.before, one.after, one.kind, one.gap) for one in run.changed()}
    assert changed == {"q2": ("oven", "dough", "harmful", None), "q3": ("pump", "belt", "beneficial", None)}
    assert run["reference.mrr@3"].value == pytest.approx((1 + 1 + 1 / 2) / 3)
    # ranks are no scores, so what rests on scores is not known, and says so
    for name in ("epsilon", "separation", "at_risk", "certified"):
        if name in run.metrics:
            assert run[name].value is None
    assert run.metrics["epsilon"].value is None
    assert "full returned fewer than 3 answers to 1 of 3 queries" in run.summary()
    assert run.verdict.word == "answers change"


def test_scores_count_and_are_compared() -> None:
    run = drift(scored(FULL), scored(INT8, 0.2), QUERIES, noise_floor=False)
    gaps = {one.input_id: one.gap for one in run.changed()}
    assert gaps == {"q2": pytest.approx(0.1), "q3": pytest.approx(0.1)}
    assert run["epsilon"].bound == "lower"
    assert "where both score alike" in run.summary()
    alone = drift(full, scored(INT8), QUERIES)
    assert "where both score alike" not in alone.summary()
    assert alone.metrics["epsilon"].value is None
    assert alone["flip@1"].value == run["flip@1"].value


def test_ties_keep_the_order_that_the_retriever_gave() -> None:
    tied = {"milk": ["b", "a"]}
    run = drift(scored(tied, 0.0), scored({"milk": ["a", "b"]}, 0.0), ["milk"])
    assert [(one.before, one.after) for one in run.changed()] == [("b", "a")]


def test_a_retriever_that_changes_its_mind_gets_no_verdict() -> None:
    count = 0

    def fickle(query: str) -> list[int]:
        nonlocal count
        count += 1
        return [count, 0]

    run = drift(fickle, fickle, {str(number): "text" for number in range(200)}, k=2)
    assert run["noise_floor"].value == 1
    assert run.verdict.word == "no verdict"


def test_queries_and_labels_of_data(tmp_path: Path) -> None:
    data = RetrievalDataset.of(
        QUERIES, {name: name for name in ("cow", "goat", "oven")}, {"q1": {"cow": 1}}, name="six"
    )
    run = drift(full, int8, data, out=tmp_path / "run")
    assert run.record["data"]["name"] == "six"
    assert run["gold_lost@1"].n == 1
    with pytest.raises(DataError, match="scores"):
        write_trec(tmp_path / "x.trec", run.evidence(), "candidate", tag="x")


@pytest.mark.parametrize("qrels", [{"q1": "cow"}, [("q1", "cow")]])
def test_labels_of_another_shape_are_refused_in_a_line(qrels: Any) -> None:
    with pytest.raises(DataError, match="expected query id to item id to grade"):
        drift(full, int8, QUERIES, qrels=qrels)


def _of(answers: Any) -> Callable[[str], Any]:
    return lambda _: answers


class Document:
    id = "d1"


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([Document()], "Document"),
        ([(Document(), 0.3)], "Document"),
        ([("a", "b", 0.3)], "too many values"),
        (["a", "b", "a"], "twice"),
        ([("a", 0.1), ("b", 0.9)], "minus sign"),
        ("a b", "expected ids"),
        (None, "TypeError"),
        ({"a": 0.3}, "expected ids"),
        ([("cow", float("inf"))], "finite"),
        ([("a", float("nan")), ("b", 0.1)], "or of none"),
        ([("a", 0.1), "b"], "of all answers, or of none"),
        ([True], "bool"),
        (["\ud800"], "surrogate"),
    ],
)
def test_what_are_no_answers_is_refused_with_the_query(answers: Any, said: str) -> None:
    with pytest.raises(Exception, match=said) as caught:
        drift(full, _of(answers), QUERIES)
    assert type(caught.value).__module__ == "quantdrift.base.errors"


def test_one_query_that_fails_is_named() -> None:
    def broken(query: str) -> list[str]:
        return ["cow"] if query != "bread" else [FULL[query][9]]

    with pytest.raises(DataError, match=r"'q2'.*IndexError"):
        drift(full, broken, QUERIES)


def test_no_queries_and_other_data_are_refused() -> None:
    nothing: tuple[Any, ...] = ([], {}, None, {"q": 0.3})
    for data in nothing:
        with pytest.raises(QuantDriftError):
            drift(full, int8, data)
    with pytest.raises(DataError, match="qrels"):
        drift(full, int8, QUERIES, similarity="dot")


def test_the_run_is_one_that_other_commands_read(tmp_path: Path) -> None:
    run = drift(full, int8, QUERIES, qrels=QRELS, out=tmp_path / "run", tolerance=0.9)
    assert isinstance(run, Run)
    assert run.record["tolerances"]["changed"] == 0.9
    assert run.save(tmp_path / "kept").path == tmp_path / "kept"

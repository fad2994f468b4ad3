"""Two models behind one call, against asking either of them about everything."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from quantdrift.base.errors import DataError, QuantDriftError, UnknownNameError
from quantdrift.trust.router import GapRouter
from quantdrift.trust.serving import RescoredSearch, RoutedModel, batch_length, batch_rows

SURE, UNSURE = [3.0, 1.0, 0.0], [1.0, 0.9, 0.0]
ROUTER = GapRouter(threshold=0.5)


def same(batch: Any) -> Any:
    return batch


def test_the_reference_answers_what_is_routed_and_nothing_else() -> None:
    asked: list[Any] = []

    def reference(batch: Any) -> Any:
        asked.append(np.asarray(batch).tolist())
        return -np.asarray(batch)

    model = RoutedModel(same, reference, ROUTER, classes=["a", "b", "c"])
    assert model.routed_share is None
    batch = model(np.array([SURE, UNSURE, SURE]))
    assert asked == [[UNSURE]]
    assert (batch.labels, batch.index.tolist(), batch.routed.tolist()) == (
        ["a", "c", "a"], [0, 2, 0], [False, True, False],
    )  # fmt: skip
    assert [row.why for row in batch][1] == "reference: gap of 0.1 (routed: gap below 0.5)"
    assert batch[1].confidence == pytest.approx(0.1)
    assert len(model([])) == 0
    assert (model.n_seen, model.n_routed, model.routed_share) == (3, 1, 1 / 3)
    assert [row.label for row in RoutedModel(same, reference, ROUTER)([SURE, SURE])] == [0, 0]
    assert len(asked) == 1  # not called where nothing is routed


TEXTS = ["one", "two", "three"]
LENGTHS = dict(zip(TEXTS, [SURE, UNSURE, SURE], strict=True))


def of_texts(batch: Any) -> Any:
    return np.array([LENGTHS[text] for text in batch])


def of_columns(batch: Any) -> Any:
    return batch["pixels"] * batch["mask"][:, None]


@pytest.mark.parametrize(
    ("batch", "call"),
    [
        (TEXTS, of_texts),
        (np.array(TEXTS, dtype=object), of_texts),
        (torch.tensor([SURE, UNSURE, SURE]), same),
        (torch.tensor([SURE, UNSURE, SURE]), lambda batch: SimpleNamespace(logits=batch)),
        ({"pixels": np.array([SURE, UNSURE, SURE]), "mask": np.ones(3)}, of_columns),
    ],
    ids=["list", "objects", "tensor", "with logits", "columns"],
)
def test_batches_of_every_kind(batch: Any, call: Callable[[Any], Any]) -> None:
    asked: list[Any] = []

    def reference(part: Any) -> Any:
        asked.append(part)
        return call(part)

    assert RoutedModel(call, reference, ROUTER)(batch).routed.tolist() == [False, True, False]
    assert batch_length(asked[0]) == 1
    assert type(asked[0]) is (list if isinstance(batch, list | tuple) else type(batch))


def test_tables_are_cut_by_rows_not_by_columns() -> None:
    table = pytest.importorskip("pandas").DataFrame({"text": TEXTS, "n": [1, 2, 3]})
    assert batch_rows(table, np.array([2, 1])).text.tolist() == ["three", "two"]
    whole = pytest.importorskip("datasets").Dataset.from_dict({"text": TEXTS, "n": [1, 2, 3]})
    part = batch_rows(whole, np.array([2, 1]))
    assert type(part) is type(whole)
    assert list(part["text"]) == ["three", "two"]
    with pytest.raises(DataError, match="whose rows cannot be picked"):
        batch_rows(pytest.importorskip("pyarrow").table({"text": TEXTS}), np.array([2, 1]))


@pytest.mark.parametrize(
    ("batch", "told"),
    [
        (iter(TEXTS), r"list\(batch\)"),
        (3, r"list\(batch\)"),
        ("one text", r"list\(batch\)"),
        ({"a": [1, 2], "return_dict": True}, "equally long columns"),
    ],
)
def test_what_is_no_batch_is_refused(batch: Any, told: str) -> None:
    with pytest.raises(DataError, match=told):
        batch_length(batch)
    with pytest.raises(DataError, match="cannot be picked"):
        batch_rows({1, 2}, np.array([0]))


def test_models_that_do_not_fit_together_are_refused() -> None:
    unsure = np.array([UNSURE])
    for reference, told in (
        (lambda batch: batch[:, :2], r"reference of shape \(1, 3\)"),
        (lambda batch: batch * np.nan, "the reference gave logits that are NaN"),
    ):
        with pytest.raises(QuantDriftError, match=told):
            RoutedModel(same, reference, ROUTER)(unsure)
    with pytest.raises(QuantDriftError, match="2 names of classes"):
        RoutedModel(same, same, ROUTER, classes=["a", "b"])(unsure)


DOCUMENTS = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-1.0, 0.0]])
ALL = GapRouter(threshold=1.0)


def search(positions: Any, scores: Any, query: Any, gate: Any = ALL, **options: Any) -> RescoredSearch:
    """A search that always finds this, and a reference that encodes every query as this."""
    found = np.array(positions), np.array(scores)
    documents = options.pop("documents", DOCUMENTS)
    return RescoredSearch(lambda _: found, lambda asked: np.array([query] * len(asked)), documents, gate, **options)


def test_an_unsure_query_is_rescored_and_a_sure_one_is_not() -> None:
    made = search([[0, 1, 2]] * 2, [[0.9, 0.3, 0.2], [0.9, 0.85, 0.8]], [0.0, 2.0], GapRouter(threshold=0.1), k=3)
    positions, scores, rescored = made(["sure", "unsure"])
    assert rescored.tolist() == [False, True]
    assert positions.tolist() == [[0, 1, 2], [2, 1, 0]]
    assert scores[0].tolist() == [0.9, 0.3, 0.2]
    assert scores[1] == pytest.approx([1.0, 0.6, 0.0])  # cosines with the second axis
    assert (made.n_seen, made.n_rescored, made.rescored_share) == (2, 1, 0.5)
    assert len(made([]).positions) == 0


@pytest.mark.parametrize(
    ("positions", "scores", "query", "options", "wanted", "told"),
    [
        # dot products, of a part of the list
        ([3, 0, 1, 2], [0.9, 0.9, 0.8, 0.7], [0.5, 2.0], {"k": 2, "similarity": "dot"}, [0, 3, 1, 2],
         [0.5, -0.5, 0.8, 0.7]),
        # minus the distance
        ([0, 1, 2], [-0.1, -0.2, -0.3], [0.0, 0.5], {"similarity": "euclidean"}, [2, 1, 0],
         [-0.5, -np.hypot(0.8, 0.1), -np.hypot(1, 0.5)]),
        # cosine 0 with everything: ties go to the lower position
        ([3, 1, 0], [0.9, 0.9, 0.8], [0.0, 0.0], {}, [0, 1, 3], [0, 0, 0]),
        # places without a result stay last
        ([1, 0, -1], [0.5, 0.4, -np.inf], [1.0, 0.0], {}, [0, 1, -1], [1.0, 0.8, -np.inf]),
        # one result has no order to mend
        ([2, -1, -1], [0.5, -np.inf, -np.inf], [1.0, 0.0], {}, [2, -1, -1], [0.5, -np.inf, -np.inf]),
    ],
)  # fmt: skip
def test_rescored_by_hand(*, positions: Any, scores: Any, query: Any, options: Any, wanted: Any, told: Any) -> None:
    found = search([positions], [scores], query, **options)(["query"])
    assert found.positions.tolist() == [wanted]
    assert found.scores[0] == pytest.approx(told)


def test_a_check_may_decide_and_documents_may_lie_on_disk(tmp_path: Path) -> None:
    np.save(tmp_path / "documents.npy", DOCUMENTS.astype(np.float16))
    documents = np.load(tmp_path / "documents.npy", mmap_mode="r")
    never = SimpleNamespace(accepts=lambda scores: np.zeros(len(scores), dtype=bool))
    found = search([[0, 3]], [[0.9, 0.1]], [-1.0, 0.0], never, documents=documents)(["query"])
    assert found.positions.tolist() == [[3, 0]]


def test_what_does_not_fit_is_refused() -> None:
    one: tuple[Any, Any] = [[0, 1]], [[0.9, 0.8]]
    with pytest.raises(UnknownNameError, match="cosine"):
        search(*one, [1.0, 0.0], similarity="cosin")
    for made, told in (
        (lambda: search(*one, [1.0, 0.0], GapRouter(threshold=0.5, score="msp")), "softmax of similarities"),
        (lambda: search(*one, [1.0, 0.0], k=0), "k of at least 1"),
        (lambda: search(*one, [1.0, 0.0], documents=DOCUMENTS[0]), r"shape \[n_docs, dim\]"),
        (lambda: search(*one, [0.0] * 3)(["query"]), r"shape \(1, 2\)"),
        (lambda: search(*one, [np.nan, 0.0])(["query"]), "NaN or infinity"),
        (lambda: search(*one, [1.0, 0.0])(["two", "queries"]), r"shape \(2, any\)"),
        # not best first
        (lambda: search([[0, 1]] * 2, [[0.9, 0.8], [0.1, 0.2]], [1.0, 0.0])([1, 2]), "query 1 of the batch increase"),
        (lambda: search([[0, 1, 2]], [[0.9, 0.8, np.nan]], [1.0, 0.0])([1]), "scores as numbers"),
    ):
        with pytest.raises(QuantDriftError, match=told):
            made()

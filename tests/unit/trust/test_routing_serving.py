"""Two models behind one call, against asking either of them about everything."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import entropy

from quantdrift.errors import DataError, QuantDriftError, ScoreError
from quantdrift.trust.router import GapRouter, batch_length, batch_rows
from quantdrift.trust.serving import RoutedModel

SURE, UNSURE = [3.0, 1.0, 0.0], [1.0, 0.9, 0.0]
ROUTER = GapRouter(threshold=0.5)


class Spy:
    """Turns the classes of its input round, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def __call__(self, batch: Any) -> Any:
        self.asked.append(batch)
        return -np.asarray(batch)


class Check:
    """Stands for a stability check: accepts what leads by at least 0.5."""

    def accepts(self, scores: Any) -> Any:
        return np.asarray(scores)[:, 0] - np.asarray(scores)[:, 1] >= 0.5


def identity(batch: Any) -> Any:
    return batch


def test_the_reference_answers_what_is_routed_and_nothing_else() -> None:
    reference = Spy()
    model = RoutedModel(identity, reference, ROUTER, classes=["a", "b", "c"])
    batch = model(np.array([SURE, UNSURE, SURE]))
    assert [np.asarray(asked).tolist() for asked in reference.asked] == [[UNSURE]]
    assert batch.labels == ["a", "c", "a"]
    assert batch.index.tolist() == [0, 2, 0]
    assert batch.routed.tolist() == [False, True, False]
    assert [row.why for row in batch][:2] == ["candidate: gap 2 is at least 0.5", "reference: gap 0.1 is below 0.5"]
    assert batch[1].confidence == pytest.approx(0.1)
    assert (model.n_seen, model.n_routed, model.routed_share) == (3, 1, 1 / 3)


def test_where_nothing_is_routed_the_reference_is_not_called() -> None:
    reference = Spy()
    model = RoutedModel(identity, reference, ROUTER)
    assert model.routed_share is None
    assert [row.label for row in model([SURE, SURE])] == [0, 0]
    assert len(model([])) == 0
    assert (reference.asked, model.n_seen) == ([], 2)


def test_a_check_routes_what_it_does_not_accept() -> None:
    batch = RoutedModel(identity, Spy(), Check())(np.array([SURE, UNSURE]))
    assert batch.routed.tolist() == [False, True]
    assert batch[0].why == "candidate: the check accepts gap 2"
    assert batch[1].why == "reference: the check does not accept gap 0.1"


def test_entropy_is_told_the_way_round_that_people_know_it() -> None:
    router = GapRouter(threshold=-0.8, score="entropy")
    batch = RoutedModel(identity, Spy(), router)(np.array([SURE, UNSURE]))
    assert batch.routed.tolist() == [False, True]
    told = entropy(softmax(UNSURE))
    assert batch[1].why == f"reference: entropy {told:.4g} nats is above 0.8 nats"


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
        (tuple(TEXTS), of_texts),
        (np.array(TEXTS, dtype=object), of_texts),
        (torch.tensor([SURE, UNSURE, SURE]), lambda batch: batch),
        (torch.tensor([SURE, UNSURE, SURE]), lambda batch: SimpleNamespace(logits=batch)),
        ({"pixels": np.array([SURE, UNSURE, SURE]), "mask": np.ones(3)}, of_columns),
    ],
    ids=["list", "tuple", "objects", "tensor", "with logits", "columns"],
)
def test_batches_of_every_kind(batch: Any, call: Callable[[Any], Any]) -> None:
    asked: list[Any] = []

    def reference(part: Any) -> Any:
        asked.append(part)
        return call(part)

    model = RoutedModel(call, reference, ROUTER)
    assert model(batch).routed.tolist() == [False, True, False]
    assert batch_length(asked[0]) == 1
    wanted = list if isinstance(batch, list | tuple) else type(batch)
    assert type(asked[0]) is wanted


def test_a_table_is_cut_by_rows_not_by_columns() -> None:
    table = pytest.importorskip("pandas").DataFrame({"text": TEXTS, "n": [1, 2, 3]})
    assert batch_rows(table, np.array([2, 1])).text.tolist() == ["three", "two"]


def test_a_dataset_of_hugging_face_stays_one() -> None:
    whole = pytest.importorskip("datasets").Dataset.from_dict({"text": TEXTS, "n": [1, 2, 3]})
    part = batch_rows(whole, np.array([2, 1]))
    assert type(part) is type(whole)
    assert list(part["text"]) == ["three", "two"]
    asked: list[Any] = []

    def call(batch: Any) -> Any:
        asked.append(type(batch))
        return of_texts(batch["text"])

    assert RoutedModel(call, call, ROUTER)(whole).routed.tolist() == [False, True, False]
    assert asked == [type(whole)] * 2


def test_a_table_whose_rows_come_out_as_another_kind_is_refused() -> None:
    class Columns:
        shape = (3, 1)

        def __getitem__(self, rows: Any) -> Any:
            return {"text": [TEXTS[row] for row in rows]}

    with pytest.raises(DataError, match="whose rows cannot be picked"):
        batch_rows(Columns(), np.array([2, 1]))
    table = pytest.importorskip("pyarrow").table({"text": TEXTS})
    with pytest.raises(DataError, match="whose rows cannot be picked"):
        batch_rows(table, np.array([2, 1]))


def test_masked_classes_are_let_pass_behind_the_first_two() -> None:
    masked = np.array([[3.0, 1.0, -np.inf], [1.0, 0.9, -np.inf]])
    for score, threshold in (("gap", 0.5), ("msp", 0.7), ("entropy", -0.6)):
        router = GapRouter(threshold=threshold, score=score)  # type: ignore[arg-type]
        told = RoutedModel(identity, identity, router)(masked)
        plain = RoutedModel(identity, identity, router)(masked[:, :2])
        assert told.routed.tolist() == plain.routed.tolist() == [False, True]
        assert told.confidence == pytest.approx(plain.confidence)
    for logits, message in (
        ([[1.0, -np.inf, -np.inf]], "expected finite scores"),
        ([[-np.inf] * 3], "the candidate gave logits that are NaN or infinite"),
        ([[3.0, 1.0, np.nan]], "the candidate gave"),
        ([[np.inf, 1.0, 0.0]], "the candidate gave"),
    ):
        with pytest.raises(ScoreError, match=message):
            RoutedModel(identity, identity, ROUTER)(np.array(logits))


def test_what_is_no_batch_is_refused() -> None:
    for batch in ((text for text in TEXTS), iter(TEXTS), 3, np.array(3.0)):
        with pytest.raises(DataError, match=r"Make a list of it: list\(batch\)"):
            batch_length(batch)
    with pytest.raises(DataError, match="equally long columns"):
        batch_length({"texts": "three", "n": np.array(5)})
    with pytest.raises(DataError, match="a single text"):
        batch_length("one text")
    with pytest.raises(DataError, match="equally long columns"):
        batch_length({"a": [1, 2], "b": [1]})
    with pytest.raises(DataError, match="equally long columns"):
        batch_length({"a": [1, 2], "return_dict": True})
    with pytest.raises(DataError, match="cannot be picked"):
        batch_rows({1, 2}, np.array([0]))


def test_models_that_do_not_fit_together_are_refused() -> None:
    unsure = np.array([UNSURE])
    with pytest.raises(ScoreError, match=r"shape \(2, 3\) from the candidate"):
        RoutedModel(lambda _: unsure, identity, ROUTER)([1, 2])
    with pytest.raises(ScoreError, match=r"shape \(1, 3\) from the reference"):
        RoutedModel(identity, lambda batch: batch[:, :2], ROUTER)(unsure)
    with pytest.raises(ScoreError, match="the reference gave logits that are NaN"):
        RoutedModel(identity, lambda batch: batch * np.nan, ROUTER)(unsure)
    with pytest.raises(QuantDriftError, match="2 names of classes"):
        RoutedModel(identity, identity, ROUTER, classes=["a", "b"])(unsure)
    with pytest.raises(QuantDriftError, match="a router"):
        RoutedModel(identity, identity, object())  # type: ignore[arg-type]
    with pytest.raises(QuantDriftError, match=r"GapRouter\.load\(FILE\).*got 'r\.json'"):
        RoutedModel(len, len, "r.json")  # type: ignore[arg-type]
    with pytest.raises(QuantDriftError, match="a reference that can be called"):
        RoutedModel(identity, np.zeros(2), ROUTER)  # type: ignore[arg-type]
    with pytest.raises(QuantDriftError, match="a candidate that can be called"):
        RoutedModel("vit", identity, ROUTER)  # type: ignore[arg-type]
    with pytest.raises(QuantDriftError, match="one decision for each of 1"):
        RoutedModel(identity, identity, SimpleNamespace(accepts=lambda _: True))(unsure)


def test_threads_that_share_a_model_lose_no_count() -> None:
    model = RoutedModel(identity, Spy(), ROUTER)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(model, [np.array([SURE, UNSURE])] * 500))
    assert (model.n_seen, model.n_routed) == (1000, 500)


def test_neither_arms_logits_are_rounded_nor_its_input_changed() -> None:
    exact = np.array([[0.1, 0.1 + 1e-12]])
    batch = np.array([UNSURE[:2]], dtype=np.float32)
    answer = RoutedModel(identity, lambda _: exact, ROUTER)(batch)
    assert answer.logits.tolist() == exact.tolist()
    assert batch.tolist() == np.array([UNSURE[:2]], dtype=np.float32).tolist()

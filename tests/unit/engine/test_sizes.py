"""Corpus sizes: which are taken, and which documents they hold."""

import numpy as np
import pytest

from quantdrift.base.errors import DataError
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.engine.run import relevant_inside
from quantdrift.engine.sizes import default_sizes, parse_sizes


@pytest.mark.parametrize(
    ("text", "sizes"),
    [("250,1000,all", (250, 1000, 1400)), (" 250 , all ", (250, 1400)), ("1,2", (1, 2)), ("7,1400", (7, 1400))],
)
def test_sizes_as_typed(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_sizes(text, 1400) == sizes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("250,1401", r"from 1 up to 1400 \('all'\) documents.*got 250, 1401"),
        ("0,10", "got 0, 10"),
        ("-5,10", "expected numbers of documents or 'all'.* got '-5'"),
        ("1e3,all", "got '1e3'"),
        ("250,,all", "got ''"),
        ("250,ALL", "got 'ALL'"),
        ("250,250,all", "rise.*got 250, 250, 1400"),
        ("1000,250", "rise"),
        ("all", "at least two sizes"),
        ("²,all", "got '²'"),
    ],
)
def test_sizes_that_are_refused(text: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        parse_sizes(text, 1400)


@pytest.mark.parametrize(
    ("n_documents", "sizes"),
    [
        (1400, (180, 350, 700, 1400)),  # 175 rounds half to even, to two digits
        (57638, (7200, 14000, 29000, 57638)),
        (300, (50, 75, 150, 300)),
        (100, (50, 100)),
        (60, (50, 60)),
        (51, (50, 51)),
    ],
)
def test_default_sizes(n_documents: int, sizes: tuple[int, ...]) -> None:
    assert default_sizes(n_documents) == sizes


def test_relevant_documents_inside() -> None:
    dataset = RetrievalDataset(
        name="five",
        query_ids=("both", "one", "none", "unlabelled", "stray"),
        queries=("a", "b", "c", "d", "e"),
        document_ids=("d0", "d1", "d2", "d3"),
        documents=("w", "x", "y", "z"),
        qrels={
            "both": {"d0": 1, "d2": 2, "d1": 0},  # grade 0 is not relevant
            "one": {"d0": 1, "d3": 1},
            "none": {"d1": 1},
            "stray": {"elsewhere": 1},
        },
        split="test",
    )
    assert relevant_inside(dataset, np.array([0, 2])) == {"all": 1, "some": 1, "none": 1}
    assert relevant_inside(dataset, np.arange(4)) == {"all": 3, "some": 0, "none": 0}

"""What a run says of what it measured."""

from typing import Any

import pytest

from quantdrift.runs import words

INDEX = {"name": "HNSW32", "library": "faiss 1", "bytes": 433826, "bytes_per_document": 1807.6}


@pytest.mark.parametrize(
    ("deployment", "ratio", "expected"),
    [
        (
            {"precision": "int8", "dim": 384, "bytes_per_document": 384.0, "index": INDEX},
            2.0006,
            "index: HNSW32 by faiss 1, 1,808 bytes a document, more than 384 numbers of plain float32 take (1,536), "
            "a query takes 0.02 ms, 2 times as long as exact search in the same process",
        ),
        (
            {"precision": "int8", "dim": 384, "bytes_per_document": 384.0, "index": None},
            None,
            "embeddings: int8, 384 bytes a document, less than 384 numbers of plain float32 take (1,536)",
        ),
        (
            {"precision": "float32", "dim": 64, "bytes_per_document": 256.0, "index": None},
            None,
            "embeddings: float32, 256 bytes a document, as many as 64 numbers of plain float32 take (256)",
        ),
        (
            {"precision": "int8", "rows_per_document": 9.5, "bytes_per_document": 608.0, "index": None},
            None,
            "embeddings: int8, 608 bytes a document",
        ),
        (
            {"precision": "float32", "dim": 8, "index": {**INDEX, "bytes_per_document": None}},
            0.05,
            "index: HNSW32 by faiss 1, a query takes 0.02 ms, 0.05 times as long as exact search in the same process",
        ),
    ],
)
def test_bytes_and_times_are_told_with_what_they_are_compared_to(
    deployment: dict[str, Any], ratio: float | None, expected: str
) -> None:
    times = {} if ratio is None else {"query": {"index": 2e-5, "ratio": ratio}}
    record = {"data": {}, "deployment": deployment, "times": times}
    assert list(words.candidate_lines(record)) == [expected]

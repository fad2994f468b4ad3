"""What a run says of what it measured."""

import pytest

from quantdrift.runs.words import candidate_lines


@pytest.mark.parametrize(
    ("size", "dim", "beside"),
    [
        (384.0, 384, ", less than 384 numbers of plain float32 take (1,536)"),
        (1807.6, 384, ", more than 384 numbers of plain float32 take (1,536)"),
        (256.0, 64, ", as many as 64 numbers of plain float32 take (256)"),
        (608.0, None, ""),  # of several rows
    ],
)
def test_bytes_and_times_are_told_with_what_they_are_compared_to(size: float, dim: int | None, beside: str) -> None:
    stored = {"precision": "int8", "dim": dim, "bytes_per_document": size}
    (line,) = candidate_lines({"data": {}, "deployment": stored})
    assert line == f"embeddings: int8, {size:,.0f} bytes a document{beside}"
    index = {"name": "HNSW32", "library": "faiss 1", "bytes_per_document": size}
    deployment = {"precision": "int8", "dim": dim, "bytes_per_document": 1.0, "index": index}
    times = {"query": {"index": 2e-5, "ratio": 2.0006}}
    (line,) = candidate_lines({"data": {}, "deployment": deployment, "times": times})
    took = "a query takes 0.02 ms, 2 times as long as exact search in the same process"
    assert line == f"index: HNSW32 by faiss 1, {size:,.0f} bytes a document{beside}, {took}"

"""The gaps of calibration inputs: by hand, in the reference's order, every text once; and what is kept of them."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from quantdrift.engine.readings import Search
from quantdrift.engine.scoring.streamed import Similarity, score_embeddings
from quantdrift.engine.sensitivity.problem import (
    GapProblem,
    KeptArrays,
    classification_problem,
    contenders_for,
    draw_queries,
    retrieval_problem,
)
from quantdrift.errors import DataError
from support.worlds import Rower, rows_of


class Side:
    """Inputs that are vectors already, and a record of what was encoded."""

    def __init__(self, role: str, vectors: Any, lengths: Any = None) -> None:
        self.vectors = np.array(vectors, dtype=np.float32)
        self.calls: list[list[int]] = []
        lengths = None if lengths is None else np.array(lengths)
        self.inputs = rows_of(role, len(self.vectors), prefix=role, lengths=lengths)

    def run(self, _: str, rows: NDArray[np.int64], batch_size: int) -> NDArray[np.float32]:
        assert len(rows) <= batch_size
        self.calls.append(rows.tolist())
        return self.vectors[rows]


def problem_of(
    queries: Side, documents: Side, similarity: Similarity = Similarity.DOT, excluded: Any = None, **options: Any
) -> GapProblem:
    settings = {"chosen": np.arange(len(queries.vectors)), "batch_size": 8, "n_contenders": 4, **options}
    reference = (queries.vectors, documents.vectors)
    sides = {side.inputs.role: side for side in (queries, documents)}
    encoder = Rower(lambda role, rows, size: sides[role].run(role, rows, size))
    search = Search(queries=queries.inputs, documents=documents.inputs, similarity=similarity, excluded=excluded)
    return retrieval_problem(encoder, search, reference, **settings)


QUERY = [[1.0, 0.0]]
DOCUMENTS = [[1.0, 0.0], [3.0, 4.0], [0.0, 2.0]]


@pytest.mark.parametrize("query_only", [False, True])
@pytest.mark.parametrize(
    ("similarity", "gaps"),
    [
        (Similarity.COSINE, [1 - 0.6, 1 - 0]),  # 1, 0.6, 0
        (Similarity.DOT, [3 - 1, 3 - 0]),  # 1, 3, 0: the second document is the first
        (Similarity.EUCLIDEAN, [5**0.5, 20**0.5]),  # distances 0, sqrt(20), sqrt(5)
    ],
)
def test_gaps_by_hand(similarity: Similarity, gaps: list[float], query_only: bool) -> None:
    problem = problem_of(Side("q", QUERY), Side("d", DOCUMENTS), similarity, query_only=query_only)
    assert problem.gaps(problem.outputs())[0, :2] == pytest.approx(gaps)
    assert problem.n_rows == (1 if query_only else 4)


def test_with_an_index_that_stays_only_the_query_moves_the_gap() -> None:
    problem = problem_of(Side("q", QUERY), Side("d", DOCUMENTS), query_only=True)
    moved = np.array([[1.0, -1.0]], dtype=np.float32)
    assert problem.gaps(moved)[0, :2] == pytest.approx([-1 - 1, -1 + 2])  # scores 1, -1, -2


def test_a_document_that_does_not_count_is_no_contender() -> None:
    """For the second query of the pool the document that would be its first is left out."""
    queries, excluded = Side("q", [[0.0, 1.0], *QUERY]), np.array([-1, 0])
    problem = problem_of(queries, Side("d", DOCUMENTS), Similarity.COSINE, chosen=np.array([1]), excluded=excluded)
    assert problem.valid.sum() == 1
    assert problem.gaps(problem.outputs())[0, 0] == pytest.approx(0.6)
    assert problem.n_rows == 3


def test_where_there_are_fewer_documents_than_contenders_gaps_are_missing() -> None:
    problem = problem_of(Side("q", QUERY), Side("d", DOCUMENTS))
    assert problem.valid[0].tolist() == [True, True] + [False] * (problem.valid.shape[1] - 2)
    assert np.array_equal(np.isnan(problem.gaps(problem.outputs())), ~problem.valid)
    with pytest.raises(DataError, match="no calibration query has two documents"):
        problem_of(Side("q", QUERY), Side("d", DOCUMENTS[:1]))
    with pytest.raises(DataError, match="no calibration query has two documents"):
        problem_of(Side("q", QUERY), Side("d", DOCUMENTS[:2]), excluded=np.array([1]))


def random_sides(n_queries: int = 9, n_docs: int = 30) -> tuple[Side, Side]:
    rng = np.random.default_rng(0)
    lengths = [rng.integers(1, 50, size=n) for n in (n_queries, n_docs)]
    return (Side("q", rng.normal(size=(n_queries, 5)), lengths[0]), Side("d", rng.normal(size=(n_docs, 5)), lengths[1]))


@pytest.mark.parametrize("similarity", list(Similarity))
def test_gaps_are_differences_of_the_scores_that_a_run_computes(similarity: Similarity) -> None:
    queries, documents = random_sides()
    chosen = np.array([0, 2, 3, 8])
    problem = problem_of(queries, documents, similarity, chosen=chosen, n_contenders=3)
    part = queries.vectors[chosen]
    state = score_embeddings(part, part, documents.vectors, documents.vectors, similarity=similarity, k=4)
    scores = state.reference_top()[1]
    np.testing.assert_allclose(problem.gaps(problem.outputs()), scores[:, :1] - scores[:, 1:], atol=1e-5)


def test_every_row_is_embedded_once_in_batches_of_one_side_the_longest_first() -> None:
    queries, documents = random_sides()
    chosen = [1, 4, 5, 6, 7]
    problem = problem_of(queries, documents, chosen=np.array(chosen), batch_size=4)
    assert sorted(np.concatenate(problem.batches).tolist()) == list(range(problem.n_rows))
    outputs = problem.outputs()
    np.testing.assert_array_equal(outputs, problem.reference)
    np.testing.assert_array_equal(outputs[: len(chosen)], queries.vectors[chosen])
    assert sorted(chain(*queries.calls)) == chosen
    encoded = list(chain(*documents.calls))
    assert len(set(encoded)) == len(encoded) == problem.n_rows - len(chosen)
    scores = queries.vectors[chosen] @ documents.vectors.T
    assert set(encoded) == set(np.argsort(-scores, axis=1)[:, :5].ravel().tolist())
    assert all(len(call) <= 4 for call in queries.calls + documents.calls)
    for side in (queries, documents):
        assert side.inputs.lengths is not None
        longest_first = [side.inputs.lengths[row] for call in side.calls for row in call]
        assert longest_first == sorted(longest_first, reverse=True)


def test_gaps_have_gradients_and_none_depends_on_anothers_rows() -> None:
    queries, documents = random_sides()
    problem = problem_of(queries, documents, Similarity.COSINE, n_contenders=2)
    chosen = torch.from_numpy(problem.outputs()[problem.rows]).double().requires_grad_()
    problem.gap(chosen)[3, 1].backward()  # type: ignore[no-untyped-call]  # untyped in torch
    assert chosen.grad is not None
    assert (chosen.grad.abs().sum(dim=(-1, -2)) > 0).nonzero().tolist() == [[3, 1]]


def test_the_draw_is_seeded_ascending_and_a_quarter_at_most() -> None:
    drawn = draw_queries(1000, wanted=128, seed=3)
    assert drawn.tolist() == sorted(set(drawn.tolist()))
    assert len(drawn) == 128
    np.testing.assert_array_equal(drawn, draw_queries(1000, wanted=128, seed=3))
    assert drawn.tolist() != draw_queries(1000, wanted=128, seed=4).tolist()
    assert [len(draw_queries(n, wanted=128)) for n in (4, 7, 8, 511, 512, 513)] == [1, 1, 2, 127, 128, 128]
    with pytest.raises(DataError, match=r"at least 4 queries, .* got 3"):
        draw_queries(3, wanted=1)
    assert [contenders_for(n) for n in (1, 32, 42, 43, 64, 127, 128, 500)] == [4, 4, 4, 3, 2, 2, 1, 1]


def test_gaps_between_classes_by_hand() -> None:
    outputs = np.array([[1, 5, 3], [7, 0, 2]], dtype=np.float32)
    train = Side("train", outputs)
    encoder, side = Rower(train.run), train.inputs
    problem = classification_problem(encoder, side, outputs, logits=lambda x: x, batch_size=1, n_contenders=4)
    assert problem.valid.shape == (2, 2)  # as many as there are other classes
    assert problem.gaps(problem.outputs()).tolist() == [[2, 4], [5, 7]]
    moved = outputs + np.array([[0, 0, 3], [0, 6, 0]], dtype=np.float32)
    # the classes stay those of the reference: 3 is ahead of 5 by 1 now, 0 ahead of 6 by 1
    assert problem.gaps(moved).tolist() == [[-1, 4], [5, 1]]
    with pytest.raises(DataError, match="only one class"):
        classification_problem(encoder, side, outputs, logits=lambda x: x[..., :1], batch_size=1)


# --- what is kept --------------------------------------------------------------------------------

ARRAY = np.array([[1.0, np.nan], [-0.5, 1e-300]])


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


@pytest.mark.parametrize("where", ["disk", "memory"])
def test_what_is_put_is_what_is_got(where: str, tmp_path: Path) -> None:
    kept = KeptArrays(tmp_path, "ab12") if where == "disk" else KeptArrays()
    assert kept.get("gap") is None
    for array in (ARRAY, ARRAY + 1):
        kept.put("gap", array)
        np.testing.assert_array_equal(kept.get("gap"), array)


def test_another_process_finds_it_and_another_key_does_not(tmp_path: Path) -> None:
    KeptArrays(tmp_path, "ab12").put("gap", ARRAY)
    np.testing.assert_array_equal(KeptArrays(tmp_path, "ab12").get("gap"), ARRAY)
    assert KeptArrays(tmp_path, "ab13").get("gap") is None
    assert [path.parent for path in files(tmp_path)] == [tmp_path / "sensitivities/ab/ab12"]


def test_names_that_no_file_could_have_stay_apart(tmp_path: Path) -> None:
    """Some file systems do not tell case, and all have a limit."""
    names = ["a/b", "a_b", "a:b", "a b", "A_b", "é", "è", "..", "a.b.c", "x" * 300, "x" * 300 + "y"]
    kept = KeptArrays(tmp_path, "ab12")
    for number, name in enumerate(names):
        kept.put(name, np.array([float(number)]))
    found = [kept.get(name) for name in names]
    assert [array.item() for array in found if array is not None] == list(range(len(names)))
    assert len({path.name.lower() for path in files(tmp_path)}) == len(names)

"""First documents among those near the first; test_allocation_contest has that they are a run's."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quantdrift.engine.inputs import Inputs
from quantdrift.engine.scoring.streamed import Similarity
from quantdrift.engine.sensitivity.problem import FirstAnswers

N_DOCS = 300
"""More than one step of the progress bar, and more than are looked at."""


class World:
    """A model that places texts on a line; a query's score is that of the document's place."""

    def __init__(self) -> None:
        self.places = np.arange(N_DOCS, dtype=np.float32)  # the last document is the first
        self.encoded: list[str] = []

    def side(self, role: str, n: int) -> Inputs:
        def encode(rows: NDArray[np.int64], batch_size: int) -> NDArray[np.float32]:
            self.encoded += [f"{role}{row}" for row in rows]
            if role == "q":
                return np.array([[1.0], [-1.0], [1.0]], dtype=np.float32)[rows]
            return self.places[rows][:, None]

        ids = [f"{role}{number}" for number in range(n)]
        return Inputs(role=role, ids=ids, encode=encode, key=None, lengths=np.arange(n) * 7 % 5)

    def answers(self, depth: int, excluded: tuple[int, ...] | None = None) -> FirstAnswers:
        queries, documents = self.side("q", 3), self.side("d", N_DOCS)
        reference = (queries.encode(np.arange(3), 8), documents.encode(np.arange(N_DOCS), 8))
        self.encoded.clear()
        return FirstAnswers(
            queries,
            documents,
            reference,
            similarity=Similarity.DOT,
            batch_size=8,
            depth=depth,
            excluded=None if excluded is None else np.array(excluded),
        )


def now(answers: FirstAnswers) -> list[int]:
    told: list[int] = []
    found = answers.now(told.append).tolist()
    assert sum(told) == answers.n_rows
    return found


def test_the_pool_is_what_is_first_for_any_query() -> None:
    world = World()
    answers = world.answers(depth=2)
    assert answers.reference.tolist() == [299, 0, 299]
    assert answers.pool.tolist() == [0, 1, 298, 299]
    assert answers.n_rows == 3 + 4
    assert now(answers) == [299, 0, 299]
    assert sorted(world.encoded) == ["d0", "d1", "d298", "d299", "q0", "q1", "q2"]


def test_a_document_of_the_pool_becomes_the_first_for_any_query() -> None:
    world = World()
    answers = world.answers(depth=2)
    world.places[1] = 500  # not near the first for queries 0 and 2, but for query 1
    world.places[298] = -7
    assert now(answers) == [1, 298, 1]


def test_a_document_from_beyond_is_not_seen() -> None:
    world = World()
    shallow, deep = world.answers(depth=2), world.answers(depth=1000)
    world.places[150] = 500
    assert deep.pool.tolist() == list(range(N_DOCS))
    assert now(shallow) == [299, 0, 299]
    assert now(deep) == [150, 0, 150]


def test_an_excluded_document_is_nobody_elses() -> None:
    world = World()
    answers = world.answers(depth=1, excluded=(299, -1, -1))
    assert answers.reference.tolist() == [298, 0, 299]
    assert answers.pool.tolist() == [0, 298, 299]
    assert now(answers) == [298, 0, 299]
    world.places[298] = 500
    assert now(answers) == [298, 0, 298]


def test_an_excluded_document_that_is_not_in_the_pool_excludes_nothing() -> None:
    world = World()
    answers = world.answers(depth=1, excluded=(298, 150, 150))
    assert answers.pool.tolist() == [0, 299]
    assert now(answers) == [299, 0, 299]

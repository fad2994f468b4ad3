"""Bitext mining in mteb: every sentence searches its translation among another language's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mteb._evaluators import BitextMiningEvaluator

from quantdrift.engine.inputs import Vectors
from quantdrift.engine.pair import Arm
from quantdrift.engine.scoring.streamed import Similarity, score_embeddings
from quantdrift.engine.search import assemble
from quantdrift.errors import UnsupportedError
from quantdrift.harness import similarity_of
from quantdrift_mteb.search import DEPTH
from quantdrift_mteb.watching import Compared, Heard, Where, as_vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sides:
    """The embeddings of one arm, and what they are compared by.

    Attributes:
        queries: float32 [n_queries, dim].
        documents: float32 [n_docs, dim].
        similarity: the model's own.
        device: where scores are made.
        gold: per query the position of its translation.
    """

    queries: Vectors
    documents: Vectors
    similarity: Similarity
    device: Any
    gold: list[int]


MOST_SEARCHES = 100
"""Pairs of languages in one split whose embeddings and evidence are held side by side."""


class BitextListener:
    """Listens to mteb's searches, whose evaluator is an object of its own each time."""

    method = "_similarity_search"
    holder: type | None = BitextMiningEvaluator

    def __init__(self, task: Any) -> None:
        self.task = task

    def hear(self, heard: Heard, so_far: list[_Sides], arm: Arm) -> None:
        """Note both sides of a search by the pair."""
        given = heard.arguments
        model = given["model"]
        if not getattr(model, "is_quantdrift_pair", False):
            return  # of a stock run beside this one
        sides = [as_vectors(given[f"{side}_embeddings"]) for side in ("query", "corpus")]
        similarity = similarity_of(model.base.similarity, sides[0].shape[1])
        if similarity is None:
            raise UnsupportedError("the model's similarity is none that quantdrift computes")
        if len(so_far) >= MOST_SEARCHES:
            so_far.clear()  # what was noted would stay in memory to the end
            raise UnsupportedError(
                f"more than {MOST_SEARCHES} pairs of languages are searched at once, whose drift "
                "memory would not hold; choose languages with --languages"
            )
        so_far.append(
            _Sides(
                queries=sides[0],
                documents=sides[1],
                similarity=similarity,
                device=model.pair.device if model.pair.device.type == "cuda" else "cpu",
                gold=_gold(given["self"].sentences, len(sides[0])),
            )
        )

    def reference(self, so_far: list[_Sides], where: Where) -> list[_Sides]:
        """Keep the embeddings: scores of all against all would be larger."""
        return so_far

    def candidate(self, so_far: list[_Sides], where: Where, kept: list[_Sides]) -> Mapping[Where, Compared]:
        """Stream the scores of both arms, search by search."""
        names = [where[1]]
        if self.task.parallel_subsets:  # one split of many languages, searched pair by pair
            names = ["-".join(pair) for pair in self.task._get_pairs(True)]
        return {
            (where[0], name): _searched(full, low, where[0])
            for name, full, low in zip(names, kept, so_far, strict=True)
        }


def _searched(reference: _Sides, candidate: _Sides, split: str) -> Compared:
    state = score_embeddings(
        reference.queries,
        candidate.queries,
        reference.documents,
        candidate.documents,
        similarity=reference.similarity,
        k=DEPTH,
        device=reference.device,
    )
    input_ids = [f"{split}-{number}" for number in range(len(reference.queries))]
    item_ids = [str(number) for number in range(len(reference.documents))]
    gold = zip(input_ids, reference.gold, strict=True)
    evidence = assemble(
        state,
        input_ids=input_ids,
        item_ids=item_ids,
        qrels={name: {str(position): 1} for name, position in gold},
        depth=DEPTH,
    )
    return Compared(
        evidence=evidence,
        keys={},
        reading={"similarity": str(reference.similarity)},
        n_items=len(item_ids),
        searched=True,
    )


def _gold(sentences: Any, n_queries: int) -> list[int]:
    """As mteb has it: the sentence of the same position, unless the data are a dict that says."""
    if isinstance(sentences, dict) and "gold" in sentences:
        return [int(position) for _, position in sentences["gold"]][:n_queries]
    return list(range(n_queries))

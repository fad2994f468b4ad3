"""A search backend for mteb: embeddings at a precision, and an approximate index, for a model without a pair."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.errors import UnsupportedError
from quantdrift.engine.refusals import refuse_settings
from quantdrift.engine.scoring.deployed import as_ranked, score_deployed
from quantdrift.engine.stages import vector_stages
from quantdrift.harness import as_vectors, similarity_of
from quantdrift.spec.grammar import parse_scheme
from quantdrift.stages import STAGES


class DeployedIndex:
    """An index for `SearchEncoderWrapper(model, index_backend=DeployedIndex("emb=int8+index=HNSW32"))`.

    A model alone gets the scores that it would have as deployed; what that changes is told by a pair,
    `quantdrift:MODEL@fp+emb=int8+index=HNSW32`. Ranges of codes are those of the corpus.

    Args:
        deployment: precision, dimensions, rescoring and index, as in a spec.

    Raises:
        SpecError: it does not parse.
        UnsupportedError: it says nothing of stored embeddings or an index, or more than that.
    """

    def __init__(self, deployment: str) -> None:
        scheme = parse_scheme(f"fp+{deployment}")
        if any(STAGES[name].kind != "vectors" for name in scheme.stages):
            raise UnsupportedError(
                f"{deployment} says more than how embeddings are stored and searched; expected for example "
                "emb=int8+rescore=4+index=HNSW32"
            )
        refuse_settings(scheme)
        self._stages = vector_stages(scheme)
        self._parts: list[NDArray[Any]] = []

    def add_documents(self, embeddings: Any, idxs: list[str]) -> None:
        """Keep embeddings [n, dim]; the index is built when a search asks for it."""
        del idxs
        self._parts.append(as_vectors(embeddings))

    def search(
        self,
        embeddings: Any,
        top_k: int,
        similarity_fn: Callable[[Any, Any], Any],
        top_ranked: Mapping[str, list[str]] | None = None,
        query_idx_to_id: Mapping[int, str] | None = None,
    ) -> tuple[list[list[float]], list[list[int]]]:
        """Scores and positions of the documents that are returned, best first, for queries [n, dim].

        Raises:
            UnsupportedError: it is a reranking, or the model compares embeddings in its own way.
        """
        del query_idx_to_id
        if top_ranked is not None:
            raise UnsupportedError(
                "this task reranks a shortlist, which no index is searched for; leave the backend out"
            )
        queries, documents = as_vectors(embeddings), np.concatenate(self._parts)
        similarity = similarity_of(similarity_fn, documents.shape[1])
        if similarity is None:
            raise UnsupportedError("the model's similarity is neither cosine nor dot product nor Euclidean distance")
        both = (queries, documents)
        state = score_deployed(self._stages, both, both, similarity=similarity, k=min(top_k, len(documents)))
        positions, _, scores = state.candidate_top()
        kept = positions >= 0  # an index may find fewer
        return (
            [row[there].tolist() for row, there in zip(as_ranked(scores), kept, strict=True)],
            [row[there].tolist() for row, there in zip(positions, kept, strict=True)],
        )

    def clear(self) -> None:
        """Forget the documents."""
        self._parts = []

"""One search of mteb's, measured for both arms by embedding and streaming."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.engine.pair import Arm, QuantizedPair
from quantdrift.engine.scoring.streamed import Similarity
from quantdrift.engine.search import Measured, Settings, measure_retrieval
from quantdrift.engine.store import default_store
from quantdrift.harness import similarity_of
from quantdrift.progress import Progress, Silent, Terminal
from quantdrift_mteb.calibration import file_inputs
from quantdrift_mteb.encoding import inputs_of

DEPTH = 200
"""Ranks kept in the evidence; mteb itself asks for more."""

Results = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchCall:
    """What mteb asked for."""

    queries: Any
    corpus: Any
    task_metadata: Any
    hf_split: str
    hf_subset: str
    top_k: int
    encode_kwargs: dict[str, Any]
    top_ranked: Mapping[str, list[str]] | None
    num_proc: int | None
    skip_identical: bool

    @property
    def progress(self) -> Progress:
        """As loud as mteb was told to be."""
        return Terminal() if self.encode_kwargs.get("show_progress_bar", True) else Silent()

    @property
    def batch_size(self) -> int:
        """Inputs per forward pass."""
        return int(self.encode_kwargs.get("batch_size", 32))

    def run(self, searcher: Any, *, top_k: int | None = None) -> Results:
        """Ask a search model of mteb's.

        Args:
            searcher: the model.
            top_k: documents per query, as many as mteb asked for if not given.
        """
        context = {
            "task_metadata": self.task_metadata,
            "hf_split": self.hf_split,
            "hf_subset": self.hf_subset,
            "encode_kwargs": self.encode_kwargs,
            "num_proc": self.num_proc,
        }
        searcher.index(self.corpus, **context)
        results: Results = searcher.search(
            self.queries, top_k=top_k or self.top_k, top_ranked=self.top_ranked, **context
        )
        return results

    def streamed_similarity(self, model: Any) -> Similarity | None:
        """The similarity, if this search is one that both arms can be streamed through."""
        if self.top_ranked is not None:
            return None
        if self.encode_kwargs.get("precision") not in {None, "float32"}:
            return None  # quantized embeddings depend on what else is in their batch
        if "sparse" in model.mteb_model_meta.model_type:
            return None  # as dense vectors they would be as long as the vocabulary
        known = model.mteb_model_meta.embed_dim
        return similarity_of(model.similarity, known if isinstance(known, int) else None)

    def excluded(self) -> NDArray[np.int64] | None:
        """Per query the position of the document of the same id, where that does not count."""
        if not self.skip_identical:
            return None
        position = {name: number for number, name in enumerate(self.corpus["id"])}
        found = [position.get(name, -1) for name in self.queries["id"]]
        return np.array(found, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Both arms of one search.

    Attributes:
        measured: evidence and what else the run record needs.
        results: of an arm, query id to document id to score, as deep as mteb asked; made anew for
            each call, as mteb changes what it gets.
        query_ids: what was searched for.
        settings: how it was measured.
        similarity: how scores were made.
        n_documents: size of the corpus.
    """

    measured: Measured
    results: Callable[[Arm], Results]
    query_ids: list[str]
    settings: Settings
    similarity: str
    n_documents: int

    def answers(self, call: SearchCall) -> bool:
        """Whether this is what the call would find."""
        same_size = self.n_documents == len(call.corpus)
        return same_size and self.query_ids == list(call.queries["id"])


def search_by_embedding(pair: QuantizedPair, model: Any, call: SearchCall, similarity: Similarity) -> Found:
    """Embed with both arms and stream the scores.

    Args:
        pair: the model's weights.
        model: mteb's encoder.
        call: what mteb asked for.
        similarity: how embeddings are compared.
    """
    settings = Settings(k=max(DEPTH, call.top_k), batch_size=call.batch_size)
    queries = inputs_of(model, call, "query", call.queries)
    documents = inputs_of(model, call, "document", call.corpus)
    measured = measure_retrieval(
        pair,
        queries,
        documents,
        similarity=similarity,
        settings=settings,
        store=default_store(),
        progress=call.progress,
        excluded=call.excluded(),
        depth=DEPTH,
        calibration=file_inputs(model, call, pair.scheme),
        dataset=call.task_metadata.name,
    )

    def results(arm: Arm) -> Results:
        state = measured.state
        top = state.reference_top()[:2] if arm == "reference" else state.candidate_top()[::2]
        return _results(top, queries.ids, documents.ids, call.top_k)

    return Found(
        measured=measured,
        results=results,
        query_ids=list(queries.ids),
        settings=settings,
        similarity=str(similarity),
        n_documents=len(documents.ids),
    )


def _results(top: tuple[NDArray[Any], ...], query_ids: Any, document_ids: Any, top_k: int) -> Results:
    positions, scores = (part[:, :top_k] for part in top)
    results: Results = {}
    for query_id, row, row_scores in zip(query_ids, positions, scores, strict=True):
        ranked = zip(row.tolist(), row_scores.tolist(), strict=True)
        # from the last rank to the first: of documents that share an id the best one counts
        results[query_id] = {
            document_ids[position]: score for position, score in reversed(list(ranked)) if position >= 0
        }
    return results

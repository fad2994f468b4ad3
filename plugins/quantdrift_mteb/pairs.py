"""The model objects that mteb gets: a pair that answers as one of its arms.

Embedding models remain encoders for every task; in retrieval they search themselves, so that both arms are scored in
one pass. A shortlist is reranked once per arm.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

from mteb import models
from mteb.types import PromptType
from sentence_transformers import MultiVectorEncoder

from quantdrift.base.errors import UnsupportedError
from quantdrift.candidate.pair import Arm, QuantizedPair
from quantdrift.harness import Arms, Outcome, Results, refuse_without_search, weights_of
from quantdrift.models.files.named import ModelSource
from quantdrift.spec.grammar import Spec
from quantdrift_mteb import search as searches

Where = tuple[str, str]
"""Split and subset."""


def make_pair(model: Any, spec: Spec, source: ModelSource, *, notes: Sequence[str] = ()) -> "MtebPair":
    """Pair a model that mteb loaded with its candidate; `notes` are those of loading."""
    weights = weights_of(model, spec.scheme, spec.model, notes=notes)
    if isinstance(getattr(model, "model", None), MultiVectorEncoder):
        return PairedSearcher(model, weights, spec=spec, source=source)
    encodes, own = (isinstance(model, kind) for kind in (models.EncoderProtocol, models.SearchProtocol))
    if own or not (encodes or isinstance(model, models.CrossEncoderProtocol)):
        raise UnsupportedError(
            f"{spec.model} is no model of mteb's that embeds or reranks, and a search of its own is not measured. Run "
            "both models by themselves, and compare: quantdrift diff A B"
        )
    if not encodes:
        refuse_without_search(weights, f"{spec.model} reads query and document together", named=searches.NAMED)
    return (PairedEncoder if encodes else PairedReranker)(model, weights, spec=spec, source=source)


class MtebPair:
    """The base of all kinds of pair: the candidate to mteb, or inside `as_arm` the arm that is named there.

    Attributes:
        base: mteb's own model object, with the weights of either arm.
        pair: its reference and candidate weights.
        arms: chooses the arm that answers.
        spec: the pair's spec.
        source: the model's origin.
        found: searches of the present evaluation and their outcomes, by split and subset.
        mteb_model_meta: mteb's metadata of the pair.
    """

    is_quantdrift_pair = True

    def __init__(self, base: Any, pair: QuantizedPair, *, spec: Spec, source: ModelSource) -> None:
        self.base, self.pair, self.arms = base, pair, Arms(pair)
        self.spec, self.source = spec, source
        self.mteb_model_meta = base.mteb_model_meta
        self.found: dict[Where, tuple[searches.SearchCall, Outcome]] = {}
        self._task: Any = None
        self._corpus: Any = None
        self._encoded = searches.Encoded()
        self._calibrated = False

    @contextmanager
    def as_arm(self, arm: Arm, task: Any) -> Iterator[None]:
        """Answer as one arm on a task; afterwards the reference's weights are in place.

        The reference comes first: its searches measure both arms, and those of the candidate reuse the outcomes.
        """
        if arm == "reference":
            self._encoded, self.found = searches.Encoded(), {}
        previous, self._task, self._calibrated = self._task, task, False
        try:
            with self.arms.answering(arm):
                yield
        finally:
            self._task, self._corpus = previous, None

    def _in_place(self, prompt_type: Any = None) -> None:
        """Put in place the present arm's weights for this kind of input."""
        if self.arms.arm == "candidate":
            if not self.arms.session and self.pair.needs_widths:
                refuse_without_search(self.pair, "nothing is searched here", named=searches.NAMED)
            if self.pair.needs_calibration and self.arms.session and not self._calibrated:
                self._encoded.calibrate(self.pair, self.base, self._task.metadata.name)
                self._calibrated = True
        self.arms.put_in_place(indexed=prompt_type == PromptType.document)

    def index(self, corpus: Any, **_: Any) -> None:
        """Keep the corpus for the search that follows (mteb's SearchProtocol)."""
        self._corpus = corpus

    def search(self, queries: Any, *, top_k: int, top_ranked: Any = None, **context: Any) -> Results:
        """Rank the corpus for every query (mteb's SearchProtocol).

        In an evaluation the reference's search measures both arms; elsewhere the candidate searches and nothing is
        measured.
        """
        corpus, self._corpus = self._corpus, None
        if corpus is None:
            raise ValueError("Corpus must be indexed before searching.")
        call = searches.SearchCall(
            queries=queries,
            corpus=corpus,
            top_k=top_k,
            top_ranked=top_ranked,
            context=context,
            skip_identical=bool(getattr(self._task, "ignore_identical_ids", False)),
        )
        if not self.arms.session:
            self._in_place()
            return call.run(self._searcher(self))
        where = (context["hf_split"], context["hf_subset"])
        if self.arms.arm == "reference" or not call.answered_by(self.found.get(where)):
            self.arms.restore()
            self.found[where] = (call, self._measure(call))
        return self.found[where][1].results(self.arms.arm)

    def _measure(self, call: searches.SearchCall) -> Outcome:
        if call.top_ranked is None:
            return searches.search_by_embedding(self.pair, self.base, call)
        return searches.rerank(self.arms, self._searcher(self.base), call)

    def _searcher(self, model: Any) -> Any:
        """Return the searcher that mteb itself would use for a model."""
        return models.SearchEncoderWrapper(model)


class PairedEncoder(MtebPair):
    """A pair of embedding models; an encoder and a search model to mteb."""

    def encode(self, inputs: Any, **kwargs: Any) -> Any:
        """Embed with the present arm (mteb's EncoderProtocol)."""
        reference = self.arms.arm == "reference"
        if reference and self.pair.needs_calibration:
            self._encoded.note(inputs, kwargs)
        self._in_place(kwargs.get("prompt_type"))
        embeddings = self.base.encode(inputs, **kwargs)
        if reference:
            searches.watch_layers(self.pair, self.base, inputs, kwargs)
        return embeddings

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """The base model's similarity."""
        return self.base.similarity(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """The base model's pairwise similarity."""
        return self.base.similarity_pairwise(embeddings1, embeddings2)


class PairedSearcher(MtebPair):
    """A pair of late-interaction models, which are searches to mteb."""

    def _searcher(self, model: Any) -> Any:
        return copy(self.base)  # a searcher keeps its corpus


class PairedReranker(MtebPair):
    """A pair of cross-encoders."""

    def _measure(self, call: searches.SearchCall) -> Outcome:
        if call.top_ranked is None:
            raise UnsupportedError(
                f"{self.spec.model} is a cross-encoder: it reranks a given shortlist. {call.task.name} has none; "
                "choose a reranking task"
            )
        return super()._measure(call)

    def _searcher(self, model: Any) -> Any:
        return models.SearchCrossEncoderWrapper(model)

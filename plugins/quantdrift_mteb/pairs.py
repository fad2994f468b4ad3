"""The model objects that mteb gets: a pair that answers as one of its two arms.

Encoders stay encoders for every task; for retrieval a pair searches by itself, so that both arms
are scored in one pass. Whatever else can search (cross-encoders, late interaction, sparse) is run
once per arm.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from mteb.models import (
    CrossEncoderProtocol,
    EncoderProtocol,
    SearchCrossEncoderWrapper,
    SearchEncoderWrapper,
    SearchProtocol,
)
from mteb.types import PromptType

from quantdrift.engine.layers import modules_of
from quantdrift.engine.pair import Arm, QuantizedPair
from quantdrift.errors import UnsupportedError
from quantdrift.models.checkpoint import refuse_quantized
from quantdrift.models.named import ModelSource
from quantdrift.spec import Spec
from quantdrift_mteb.calibration import Encoded
from quantdrift_mteb.choice import refuse_unchosen
from quantdrift_mteb.comparison import Comparison
from quantdrift_mteb.encoding import watch_layers
from quantdrift_mteb.own_search import search_by_model
from quantdrift_mteb.search import Found, SearchCall, search_by_embedding


def make_pair(model: Any, spec: Spec, source: ModelSource) -> MtebPair:
    """Pair a model that mteb loaded with its candidate.

    Args:
        model: an encoder, cross-encoder or search model of mteb.
        spec: what was asked for.
        source: where the model came from.

    Raises:
        UnsupportedError: there are no torch weights to quantize, they are quantized already, mteb
            could not search with it, or a criterion would have to choose widths.
    """
    modules = modules_of(model)
    if not modules:
        raise UnsupportedError(
            f"{spec.model} holds no torch module, so there is nothing to quantize; a pair needs a "
            "model that runs here in torch (not bm25, an API or a served model)"
        )
    if spec.scheme.query_only and not isinstance(model, EncoderProtocol):
        raise UnsupportedError(
            f"+query keeps the index at full precision, but {spec.model} has none: it reads query "
            "and document together. Leave +query out."
        )
    if not isinstance(model, EncoderProtocol | CrossEncoderProtocol | SearchProtocol):
        raise UnsupportedError(f"mteb can neither encode nor search with {spec.model}")
    refuse_quantized(modules, spec.model)
    core = QuantizedPair(modules, spec.scheme, name=spec.model)
    if not isinstance(model, EncoderProtocol):
        refuse_unchosen(core, f"{spec.model} gives none: it searches or reranks in its own way")
    kind = PairedEncoder if isinstance(model, EncoderProtocol) else PairedSearcher
    return kind(model, core, spec=spec, source=source)


class MtebPair:
    """What both kinds of pair share.

    Used by mteb as an ordinary model it is the candidate; while `as_arm` says so, the reference.

    Attributes:
        base: mteb's own model object, in whatever arm is in place.
        pair: its reference and candidate weights.
        spec: what was asked for.
        source: where the model came from.
        mteb_model_meta: mteb's metadata of the pair.
    """

    is_quantdrift_pair = True

    def __init__(self, base: Any, pair: QuantizedPair, *, spec: Spec, source: ModelSource) -> None:
        self.base, self.pair = base, pair
        self.spec, self.source = spec, source
        self.mteb_model_meta = base.mteb_model_meta
        self._arm: Arm = "candidate"
        self._comparison: Comparison | None = None
        self._quantized: ExitStack | None = None
        self._corpus: Any = None
        self._encoded = Encoded()
        self._calibrated = False

    @contextmanager
    def as_arm(self, arm: Arm, comparison: Comparison) -> Iterator[None]:
        """Inside, answer as one arm of a comparison; afterwards the reference's weights are back.

        The reference comes first: its searches measure both arms, the candidate's then take what
        was found.
        """
        previous = self._arm, self._comparison
        self._arm, self._comparison = arm, comparison
        if arm == "reference":
            self._encoded = Encoded()
        self._calibrated = False
        try:
            yield
        finally:
            self._arm, self._comparison = previous
            self._corpus = None
            self.restore()

    def restore(self) -> None:
        """Put the reference's weights back, where a call outside of an evaluation left others."""
        if self._quantized is not None:
            self._quantized.close()
            self._quantized = None

    def _in_place(self, prompt_type: Any = None) -> None:
        """Put in place the weights that the present arm has for this kind of input."""
        indexed = self.pair.scheme.query_only and prompt_type == PromptType.document
        if self._arm == "reference" or indexed:
            self.restore()
        elif self._quantized is None:
            if self._comparison is None and self.pair.allocation is None:
                refuse_unchosen(self.pair, "nothing is searched here")
            if self.pair.needs_calibration and self._comparison and not self._calibrated:
                name = self._comparison.task.metadata.name
                self._encoded.prepare(self.pair, self.base, name)
                self._calibrated = True
            with ExitStack() as stack:
                stack.enter_context(self.pair.candidate())
                self._quantized = stack.pop_all()

    def index(self, corpus: Any, **kwargs: Any) -> None:
        """Keep the corpus for the search that follows (mteb's SearchProtocol)."""
        self._corpus = corpus

    def search(
        self,
        queries: Any,
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        top_k: int,
        encode_kwargs: Any,
        top_ranked: Any = None,
        num_proc: int | None = None,
        **kwargs: Any,
    ) -> dict[str, dict[str, float]]:
        """Rank the corpus for every query (mteb's SearchProtocol).

        In an evaluation the reference's search measures both arms. Outside of one it is the
        candidate's search, and nothing is measured.

        Returns:
            query id to document id to score, of the present arm.
        """
        if self._corpus is None:
            raise ValueError("Corpus must be indexed before searching.")
        comparison = self._comparison
        call = SearchCall(
            queries=queries,
            corpus=self._corpus,
            task_metadata=task_metadata,
            hf_split=hf_split,
            hf_subset=hf_subset,
            top_k=top_k,
            encode_kwargs=dict(encode_kwargs),
            top_ranked=top_ranked,
            num_proc=num_proc,
            skip_identical=bool(comparison and getattr(comparison.task, "ignore_identical_ids", 0)),
        )
        self._corpus = None
        if comparison is None:
            return self._search_alone(call)
        where = (hf_split, hf_subset)
        found = comparison.found.get(where)
        if self._arm == "reference" or found is None or not found.answers(call):
            self.restore()
            found = comparison.found[where] = self._measure(call)
        return found.results(self._arm)

    def _measure(self, call: SearchCall) -> Found:
        return search_by_model(self.pair, self._searcher(), call)

    def _search_alone(self, call: SearchCall) -> dict[str, dict[str, float]]:
        self._in_place()
        return call.run(self._searcher())

    def _searcher(self) -> Any:
        """What mteb itself would search with."""
        if isinstance(self.base, CrossEncoderProtocol):
            return SearchCrossEncoderWrapper(self.base)
        if isinstance(self.base, SearchProtocol):
            return self.base
        return SearchEncoderWrapper(self.base)


class PairedEncoder(MtebPair):
    """A pair of embedding models; an encoder and a search model to mteb."""

    def encode(self, inputs: Any, **kwargs: Any) -> Any:
        """Embed with the present arm (mteb's EncoderProtocol)."""
        if self._arm == "reference" and self.pair.needs_calibration:
            self._encoded.note(inputs, kwargs)
        self._in_place(kwargs.get("prompt_type"))
        embeddings = self.base.encode(inputs, **kwargs)
        if self._arm == "reference":
            watch_layers(self.pair, self.base, inputs, kwargs)
        return embeddings

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """The base model's similarity."""
        return self.base.similarity(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """The base model's pairwise similarity."""
        return self.base.similarity_pairwise(embeddings1, embeddings2)

    def _measure(self, call: SearchCall) -> Found:
        if not isinstance(self.base, SearchProtocol):
            similarity = call.streamed_similarity(self.base)
            if similarity is not None:
                return search_by_embedding(self.pair, self.base, call, similarity)
        return super()._measure(call)

    def _search_alone(self, call: SearchCall) -> dict[str, dict[str, float]]:
        if isinstance(self.base, SearchProtocol):
            return super()._search_alone(call)
        return call.run(SearchEncoderWrapper(self))


class PairedSearcher(MtebPair):
    """A pair of models that mteb searches with: cross-encoders, late interaction, sparse."""

    def _measure(self, call: SearchCall) -> Found:
        if isinstance(self.base, CrossEncoderProtocol) and call.top_ranked is None:
            raise UnsupportedError(
                f"{self.spec.model} is a cross-encoder: it reranks a given shortlist. "
                f"{call.task_metadata.name} has none; choose a reranking task"
            )
        return super()._measure(call)

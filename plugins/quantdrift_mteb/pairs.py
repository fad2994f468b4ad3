"""The model objects that mteb gets: a pair that answers as one of its two arms.

Encoders stay encoders for every task; for retrieval a pair searches by itself, so that both arms
are scored in one pass. Whatever else can search (cross-encoders, late interaction, sparse) is run
once per arm.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from mteb.models import (
    CrossEncoderProtocol,
    EncoderProtocol,
    SearchCrossEncoderWrapper,
    SearchEncoderWrapper,
    SearchProtocol,
)
from quantdrift.spec import Spec

from quantdrift.errors import UnsupportedError
from quantdrift.models.layers import modules_of
from quantdrift.models.resolve import ModelSource
from quantdrift.pair import Arm, QuantizedPair
from quantdrift_mteb.own_search import search_by_model
from quantdrift_mteb.search import Found, SearchCall, search_by_embedding

__all__ = ["MtebPair", "PairedEncoder", "PairedSearcher", "make_pair"]


def make_pair(model: Any, spec: Spec, source: ModelSource) -> MtebPair:
    """Pair a model that mteb loaded with its candidate.

    Args:
        model: an encoder, cross-encoder or search model of mteb.
        spec: what was asked for.
        source: where the model came from.

    Raises:
        UnsupportedError: there are no torch weights to quantize, or mteb could not search with it.
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
    core = QuantizedPair(modules, spec.scheme, name=spec.model)
    state = _State(model=model, pair=core, spec=spec, source=source)
    if isinstance(model, EncoderProtocol) and not isinstance(model, SearchProtocol):
        return PairedEncoder(state)
    if isinstance(model, CrossEncoderProtocol | SearchProtocol):
        return PairedSearcher(state)
    raise UnsupportedError(f"mteb can neither encode nor search with {spec.model}")


@dataclass(slots=True, kw_only=True)
class _State:
    """What a pair object holds; one attribute, so that nothing is mistaken for a model's own."""

    model: Any
    pair: QuantizedPair
    spec: Spec
    source: ModelSource
    arm: Arm = "candidate"
    task: Any = None
    found: dict[tuple[str, str, str], Found] = field(default_factory=dict)
    quantized: ExitStack | None = None


class MtebPair:
    """What both kinds of pair share.

    Used by mteb as an ordinary model it is the candidate; while `as_arm` says so, the reference.
    """

    is_quantdrift_pair = True

    def __init__(self, state: _State) -> None:
        self._state = state
        self._corpus: Any = None
        self.mteb_model_meta = state.model.mteb_model_meta

    @property
    def spec(self) -> Spec:
        """What was asked for."""
        return self._state.spec

    @property
    def source(self) -> ModelSource:
        """Where the model came from."""
        return self._state.source

    @property
    def pair(self) -> QuantizedPair:
        """Reference and candidate weights."""
        return self._state.pair

    @property
    def base(self) -> Any:
        """mteb's own model object, in whatever arm is in place."""
        return self._state.model

    @contextmanager
    def as_arm(self, arm: Arm, task: Any) -> Iterator[None]:
        """Inside, answer as one arm of a task."""
        previous = self._state.arm, self._state.task
        self._state.arm, self._state.task = arm, task
        try:
            yield
        finally:
            self._state.arm, self._state.task = previous
            self._restore()

    def take_found(self) -> dict[tuple[str, str, str], Found]:
        """What searches have measured since the last call, by (task, split, subset)."""
        found, self._state.found = self._state.found, {}
        return found

    def _in_place(self) -> None:
        """Put the weights of the present arm in place."""
        if self._state.arm == "reference":
            self._restore()
        elif self._state.quantized is None:
            with ExitStack() as stack:
                stack.enter_context(self._state.pair.candidate())
                self._state.quantized = stack.pop_all()

    def _restore(self) -> None:
        if self._state.quantized is not None:
            self._state.quantized.close()
            self._state.quantized = None

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

        Both arms are measured the first time; the other arm's results come from memory.

        Returns:
            query id to document id to score, of the present arm.
        """
        key = (task_metadata.name, hf_split, hf_subset)
        if key not in self._state.found:
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
                skip_identical=bool(getattr(self._state.task, "ignore_identical_ids", False)),
            )
            self._restore()
            self._state.found[key] = self._measure(call)
        found = self._state.found[key]
        results = found.results[self._state.arm]
        if self._state.task is None:  # outside an evaluation nobody will ask for the other arm
            self._state.found.pop(key)
        # mteb removes identical ids from what it gets, in place
        return {query: dict(scores) for query, scores in results.items()}

    def _measure(self, call: SearchCall) -> Found:
        raise NotImplementedError


class PairedEncoder(MtebPair):
    """A pair of embedding models; an encoder and a search model to mteb."""

    def encode(self, inputs: Any, **kwargs: Any) -> Any:
        """Embed with the present arm (mteb's EncoderProtocol)."""
        self._in_place()
        return self.base.encode(inputs, **kwargs)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """The base model's similarity."""
        return self.base.similarity(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """The base model's pairwise similarity."""
        return self.base.similarity_pairwise(embeddings1, embeddings2)

    def _measure(self, call: SearchCall) -> Found:
        similarity = call.streamed_similarity(self.base)
        if similarity is not None:
            return search_by_embedding(self.pair, self.base, call, similarity)
        return search_by_model(self.pair, SearchEncoderWrapper(self.base), call)


class PairedSearcher(MtebPair):
    """A pair of models that mteb searches with: cross-encoders, late interaction, sparse."""

    def _measure(self, call: SearchCall) -> Found:
        searcher = self.base
        if isinstance(searcher, CrossEncoderProtocol):
            if call.top_ranked is None:
                raise UnsupportedError(
                    f"{self.spec.model} is a cross-encoder: it reranks a given shortlist. "
                    f"{call.task_metadata.name} has none; choose a reranking task"
                )
            searcher = SearchCrossEncoderWrapper(searcher)
        return search_by_model(self.pair, searcher, call)

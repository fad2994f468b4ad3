"""A model of beir's that answers as one of its two arms."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from quantdrift import spec as unchosen
from quantdrift.engine.calibration.sample import calibration_texts
from quantdrift.engine.layers import modules_of
from quantdrift.engine.pair import Arm
from quantdrift.engine.pair import QuantizedPair as Weights
from quantdrift.engine.quantizers.registry import methods_of
from quantdrift.errors import UnsupportedError
from quantdrift.models.checkpoint import refuse_quantized
from quantdrift.models.named import name_in_config
from quantdrift.spec import Scheme, Spec, parse_scheme

_ANSWERS = frozenset({"encode", "encode_corpus", "encode_queries", "encode_query", "predict"})
"""Methods of beir's models that go through the weights of the present arm."""

_COPIES = frozenset({"encode_corpus_parallel", "start_multi_process_pool"})
"""Methods that would send the model to other processes."""

_SIDES = 2


class TwoSides:
    """Two models of beir's as one: queries by the first, documents by the second."""

    def __init__(self, queries: Any, documents: Any) -> None:
        self.queries, self.documents = queries, documents

    @property
    def sep(self) -> str:
        """What stands between a document's title and its text."""
        return str(getattr(self.documents, "sep", " "))

    def encode_queries(self, queries: Any, batch_size: int = 16, **kwargs: Any) -> Any:
        """Embed queries."""
        return self.queries.encode_queries(queries, batch_size=batch_size, **kwargs)

    def encode_corpus(self, corpus: Any, batch_size: int = 8, **kwargs: Any) -> Any:
        """Embed documents."""
        return self.documents.encode_corpus(corpus, batch_size=batch_size, **kwargs)


class QuantizedPair:
    """A model of beir's and its quantized candidate, in place of the model.

    beir's searches and its reranking measure both arms of it. Asked directly, it answers as the
    candidate. Everything else about it is the model's own.

    Attributes:
        base: beir's own model object, at full precision between calls.
        pair: its reference and candidate weights.
        spec: name of the model, and the scheme.
    """

    is_quantdrift_pair = True

    base: Any
    pair: Weights
    spec: Spec
    _arm: Arm
    _session: bool
    _found: dict[str, Any]
    _quantized: ExitStack | None

    def __init__(self, model: Any, scheme: str | Scheme, *, name: str | None = None) -> None:
        """Find the model's layers and check that the scheme can be made.

        Args:
            model: a model of beir's (SentenceBERT, HuggingFace, CrossEncoder, ...), or anything
                with its methods that holds torch modules; or two models, (queries, documents).
            scheme: how the candidate is made, e.g. "W4-rtn".
            name: of the model, for messages and records; what its config says if not given.

        Raises:
            QuantDriftError: the scheme cannot be read or made, or the model has nothing to
                quantize.
        """
        if isinstance(model, QuantizedPair):
            raise UnsupportedError(f"this model is a pair already ({model.spec}); wrap the model itself, once")
        if isinstance(model, tuple) and len(model) == _SIDES:
            model = TwoSides(*model)
        made = scheme if isinstance(scheme, Scheme) else parse_scheme(scheme)
        methods_of(made)
        calibration_texts(made)  # a file that is not there is better known now
        modules = modules_of(model)
        shown = name or name_in_config(modules) or type(model).__name__
        if not modules:
            raise UnsupportedError(
                f"{shown} holds no torch module, so there is nothing to quantize; a pair needs a "
                "model that runs here in torch (not an API or a served model)"
            )
        refuse_quantized(modules, shown)
        own = vars(self)
        own["base"] = model
        own["pair"] = Weights(modules, made, name=shown)
        own["spec"] = Spec(model=shown, scheme=made)
        own["_arm"] = "candidate"
        own["_session"] = False
        own["_found"] = {}
        own["_quantized"] = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "base" not in vars(self):  # half made, as copies are
            raise AttributeError(name)
        value = getattr(self.base, name)
        if name in _COPIES:
            return self._refused(name)
        return self._answering(name, value) if name in _ANSWERS else value

    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(self):
            vars(self)[name] = value
        else:
            setattr(self.base, name, value)

    def __repr__(self) -> str:
        return f"QuantizedPair({type(self.base).__name__}, {str(self.spec)!r})"

    def _answering(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def answer(*args: Any, **kwargs: Any) -> Any:
            self._put_in_place(indexed=name == "encode_corpus")
            try:
                return method(*args, **kwargs)
            finally:
                if not self._session:
                    self.restore()

        return answer

    def _refused(self, name: str) -> Callable[..., Any]:
        def refuse(*_: Any, **__: Any) -> Any:
            raise UnsupportedError(
                f"{name} copies the model to other processes, where only one arm would be; "
                f"search with {self.spec} in this process"
            )

        return refuse

    @property
    def in_session(self) -> bool:
        """Whether a search is being run once per arm."""
        return self._session

    @property
    def arm(self) -> Arm:
        """Which arm answers."""
        return self._arm

    @property
    def found(self) -> dict[str, Any]:
        """What searches inside a session have measured, by what they were asked."""
        return self._found

    @contextmanager
    def both_arms(self) -> Iterator[Callable[[Arm], None]]:
        """Inside, one arm answers, the one that was asked for last; the reference at first.

        Raises:
            UnsupportedError: a session inside a session.
        """
        if self._session:
            raise UnsupportedError(f"{self.spec} is being searched with; finish that search first")

        def choose(arm: Arm) -> None:
            self.restore()
            self._arm = arm

        self._session, self._arm = True, "reference"
        try:
            yield choose
        finally:
            self.restore()
            self._session, self._arm = False, "candidate"
            self.found.clear()

    def restore(self) -> None:
        """Put the reference's weights back, where others are in place."""
        if self._quantized is not None:
            self._quantized.close()
            self._quantized = None

    def _put_in_place(self, *, indexed: bool) -> None:
        """Put in place the weights that the present arm has for queries, or for the index."""
        if self._arm == "reference" or (indexed and self.pair.query_only):
            self.restore()
        elif self._quantized is None:
            with ExitStack() as stack:
                stack.enter_context(self.pair.candidate())
                self._quantized = stack.pop_all()


def held_pair(holder: object) -> QuantizedPair | None:
    """The pair that an object of beir's keeps in one of its attributes; None if it keeps none."""
    values = getattr(holder, "__dict__", {}).values()
    return next((value for value in values if isinstance(value, QuantizedPair)), None)


def refuse_unchosen(pair: QuantizedPair, why: str) -> None:
    """Refuse a pair whose widths would have to be chosen where they cannot be.

    Args:
        pair: the model.
        why: that cannot be, a clause.

    Raises:
        UnsupportedError: a criterion has to choose its widths, and has not.
    """
    unchosen.refuse_unchosen(pair.pair, why, named='QuantizedPair(model, "allocation.json")')

"""Cross-encoders, which read a query and a document together and give one score.

Scores are raw, without the activation of sentence-transformers, a sigmoid for most models. It keeps the order but
squeezes the differences that epsilon and the gap consist of.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from quantdrift.base.errors import ScoreError, UnsupportedError
from quantdrift.builtin.sentence.work import floating_dtype, load_sentence_transformer, reading_digest, tokenizer_digest
from quantdrift.models.files.named import ModelSource
from quantdrift.models.heads import find_head, head_modules
from quantdrift.models.loading import Placed
from quantdrift.models.model import LoadedModel

Results = dict[str, dict[str, float]]

_LOW = (torch.float16, torch.bfloat16)
_ONE_BY_ONE = (nn.Sigmoid, nn.Tanh)
"""Activations of single scores, which keep the order."""
_SEVERAL = (
    "{name} gives a pair {n} scores (as models of textual entailment do), and which of them ranks documents it does "
    "not say; expected a reranker of one score"
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CrossEncoderModel(LoadedModel):
    """A cross-encoder of sentence-transformers, which applies prompt, template and length limit itself.

    Attributes:
        model: the CrossEncoder.
        source: its origin.
        notes: notes of loading and differences from a reference, one sentence each.
        layers: None, as its quantized layers are not known.
        similarity: None, as scores have none.
    """

    model: Any
    source: ModelSource
    notes: tuple[str, ...] = ()
    layers: Sequence[str] | None = None
    similarity: None = None

    @property
    def module(self) -> nn.Module:
        """The torch module (a CrossEncoder is one)."""
        module: nn.Module = self.model
        return module

    @property
    def max_length(self) -> int | None:
        """Most tokens of a query and a document together; longer ones are cut."""
        length = self.model.max_seq_length
        return None if length is None else int(length)

    def encode(self, items: Sequence[Any], role: str, batch_size: int) -> NDArray[np.float32]:
        """Return the raw scores of query-document pairs by the present weights, float32 [n, 1]."""
        predicted = self.model.predict(
            [list(pair) for pair in items],
            batch_size=batch_size,
            show_progress_bar=False,
            activation_fn=nn.Identity(),
            convert_to_tensor=True,
        )
        scores = np.asarray(predicted.float().cpu().numpy(), dtype=np.float32)
        if scores.shape != (len(items),):
            raise ScoreError(
                f"expected one score per pair, shape [{len(items)}], from {self.source.name!r}; got shape "
                f"{list(scores.shape)}"
            )
        return scores[:, None]

    def key(self, role: str) -> dict[str, Any]:
        """Return what decides a score beside weights, texts and libraries; the activation is left out."""
        model = self.model
        parts = [
            self._prompt,
            model.max_seq_length,
            *map(repr, model.children()),
            getattr(model.tokenizer, "chat_template", None),
            getattr(model, "keep_in_fp32_modules", None),
            reading_digest([model], [model]),
        ]
        return {"cross_encoder": "\n".join(map(str, parts))}

    def beside_weights(self) -> dict[str, str]:
        """Return what decides a score beside the weights, by name."""
        tokenizer = self.model.tokenizer
        return {
            "prompt": self._prompt,
            "length limit": str(self.max_length),
            "what follows the transformer": " ".join(map(repr, list(self.model.children())[1:])),
            "tokenizer or chat template": f"{tokenizer_digest(tokenizer)} {getattr(tokenizer, 'chat_template', None)}",
            "dtype": floating_dtype(self),
        }

    @property
    def _prompt(self) -> str:
        return self.model.prompts.get(self.model.default_prompt_name) or ""


def load_cross_encoder(source: ModelSource, **where: Unpack[Placed]) -> CrossEncoderModel:
    """Load a cross-encoder of one score per pair."""
    model, notes = load_sentence_transformer(source, kind="CrossEncoder", reads="head", **where)
    return cross_encoder_of(model, source, notes=notes)


def cross_encoder_of(model: Any, source: ModelSource, *, notes: Sequence[str] = ()) -> CrossEncoderModel:
    """Make a model of a loaded CrossEncoder.

    In a model of low precision the head is computed in float32, as mteb does: rounding would make many scores equal.
    """
    if model.num_labels != 1:
        raise UnsupportedError(_SEVERAL.format(name=source.name, n=model.num_labels))
    model.eval()
    low = [
        name
        for name, module in head_modules([model], find_head([model]))
        if type(module) is nn.Linear and module.out_features == 1 and module.weight.dtype in _LOW
    ]
    if low and hasattr(model, "set_keep_in_fp32_modules"):  # sentence-transformers 6.2
        model.set_keep_in_fp32_modules([*(model.keep_in_fp32_modules or []), *low])
    return CrossEncoderModel(model=model, source=source, notes=tuple(notes))


# --- raw scores inside a harness ------------------------------------------------------------------


@contextmanager
def raw_scores(modules: Sequence[Any], harness: str) -> Iterator[Callable[[Results], Results]]:
    """Let a cross-encoder of sentence-transformers give raw scores; yield the function that applies its activation.

    Other models, and other activations, are left unchanged.
    """
    for module in modules:
        n_scores = getattr(module, "num_labels", 1)
        if isinstance(n_scores, int) and n_scores > 1:
            raise UnsupportedError(_SEVERAL.format(name=f"the cross-encoder that {harness} ranks by", n=n_scores))
    active = _with_activation(modules)
    if active is None:
        yield lambda results: results
        return
    model, activation = active

    def of_query(scores: dict[str, float]) -> dict[str, float]:
        # as sentence-transformers does, in float32 on its device
        raw = torch.tensor(list(scores.values()), dtype=torch.float32, device=model.device)
        return dict(zip(scores, activation(raw).cpu().tolist(), strict=True))

    model.activation_fn = nn.Identity()
    try:
        yield lambda results: {query: of_query(scores) for query, scores in results.items()}
    finally:
        model.activation_fn = activation


def activation_of(modules: Sequence[Any]) -> str | None:
    """Return the name of the activation that `raw_scores` removes, if any."""
    active = _with_activation(modules)
    return None if active is None else type(active[1]).__name__.lower()


def _with_activation(modules: Sequence[Any]) -> tuple[Any, nn.Module] | None:
    for module in modules:
        activation = getattr(module, "activation_fn", None)
        if isinstance(activation, _ONE_BY_ONE) and getattr(module, "num_labels", None) == 1:
            return module, activation
    return None

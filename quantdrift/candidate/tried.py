"""Parts of other packages, tried on two texts and one small weight before anything long begins."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from quantdrift.candidate.quantized import LayerQuantizer, Moments, QuantizedWeight
from quantdrift.candidate.stages import ModelStage
from quantdrift.kinds.quantizer import QUANTIZERS
from quantdrift.kinds.stage import STAGES
from quantdrift.models.model import EmbeddingModel
from quantdrift.scheme import Scheme
from quantdrift.scoring.ragged import Ragged
from quantdrift.scoring.similarity import Similarity
from quantdrift.scoring.stored import Stored
from quantdrift.spec.grammar import stages_of

_TEXTS = ("How is bread baked?", "Knead the dough, and let it rise for an hour before it goes into the oven.")
_ROWS, _DIM = 64, 32


def embedded(model: object) -> np.ndarray[Any, Any] | None:
    """Embed two texts; None for a model that embeds no texts or makes several rows of each."""
    if not isinstance(model, EmbeddingModel) or "text" not in model.takes:
        return None
    vectors = model.encode(_TEXTS, "query", len(_TEXTS))
    if isinstance(vectors, Ragged):
        return None
    _expect(vectors, np.ndarray, (len(_TEXTS), *np.shape(vectors)[1:2]), finite=np.isfinite)
    return vectors


def try_parts(
    scheme: Scheme, encoder: Any, stages: Mapping[str, ModelStage], methods: Sequence[LayerQuantizer]
) -> None:
    """Try the quantizer and the stages of a candidate that come from other packages.

    An index is not built, as it may need more documents than a trial has.

    Raises:
        UnsupportedError: a part fails or gives a wrong result; the line names package and part.
    """
    quantizer = QUANTIZERS[scheme.quantizer]
    for method in methods if QUANTIZERS.versions(quantizer) else ():
        with QUANTIZERS.tried(quantizer):
            _quantized(method, 2 * (scheme.group_size or _DIM))
    for name in stages_of(scheme):
        stage = STAGES[name]
        if not STAGES.versions(stage):
            continue
        with STAGES.tried(stage):
            if (made := stages.get(name)) is not None and not stage.calibrates(scheme):
                with made.applied():
                    embedded(encoder)
            elif stage.kind == "vectors":
                of_texts = embedded(encoder)
                dim = _DIM if of_texts is None else of_texts.shape[1]
                _through(stage.make(scheme), dim, getattr(encoder, "similarity", Similarity.COSINE))


def _quantized(method: LayerQuantizer, n: int) -> None:
    weight = torch.randn(8, n, generator=torch.Generator().manual_seed(0))
    moments = Moments(second=torch.eye(n), mean_abs=torch.ones(n), absmax=1.0, n_tokens=n)
    made = method.quantize(weight, moments if method.needs_moments else None)
    _expect(made, QuantizedWeight)
    _expect(made.dequantize(torch.float32), torch.Tensor, (8, n), finite=torch.isfinite)


def _through(stage: Any, dim: int, similarity: Similarity) -> None:
    if "vectors" not in stage.takes:
        return
    given = np.random.default_rng(0).normal(size=(_ROWS, dim)).astype(np.float32)
    vectors = stage.vectors(given)
    _expect(vectors, np.ndarray, (_ROWS, *np.shape(vectors)[1:2]), finite=np.isfinite)
    stored = stage.stored(Stored.plain(vectors, vectors, similarity), vectors)
    _expect(stored, Stored)
    for side in (stored.queries, stored.documents):
        _expect(side, torch.Tensor, (_ROWS, *np.shape(side)[1:2]), finite=torch.isfinite)


def _expect(value: object, kind: type, shape: tuple[int, ...] | None = None, *, finite: Any = None) -> None:
    """Refuse a value of another type or shape, or with numbers that are not finite."""
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")
    there = tuple(getattr(value, "shape", ()))
    if shape is not None and (there != shape or not bool(finite(value).all())):
        raise ValueError(f"expected finite numbers of shape {shape}, got {there}")

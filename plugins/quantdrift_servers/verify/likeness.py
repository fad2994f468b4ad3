"""Compare two runtimes of one quantized model by their embeddings, and a folder also by its weights.

The bound on rounding is a random walk of half a unit in the last place over L linear layers, whose products of n
numbers are summed in float32 at least: eps(type) / 2 * sqrt(L) + eps(float32) / 2 * sqrt(L * n), relative to an
embedding's length, where n is the width of the widest layer. If the two sides together change more by themselves in
other batches, that is the bound instead.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import sqrt
from typing import Any, Literal

import numpy as np
import torch
from numpy.linalg import norm
from torch import Tensor, nn

from quantdrift.parts import QuantDriftError, QuantizedPair
from quantdrift_servers.texts import Texts, Vectors, embedded

_TYPES = {torch.float64, torch.float32, torch.float16, torch.bfloat16}
"""Number types of products; a narrower type holds codes, which are unpacked first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The weights of a module in the simulation, compared with those of the same name in a folder.

    Attributes:
        name: path in the model.
        difference: largest difference of two weights, over the largest weight of their row; None if it cannot be seen.
        bound: rounding in the coarser number type of the two.
    """

    name: str
    difference: float | None
    bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """The comparison of a deployed model with its simulation.

    Attributes:
        verdict: "equal" (bit for bit), "within rounding" or "other".
        n: number of texts.
        difference: largest distance of two embeddings of a text, over the length of the simulated one.
        bound: largest `difference` that rounding can cause.
        dtype: the coarser number type of the two sides.
        noise: the `difference` of the simulation, and of the deployed model, from itself in other batches.
        to_reference: the `difference` of the deployed model from the model at full precision.
        parts: the modules with weights, in order; empty for a server.
        others: the modules whose weights differ by more than rounding.
    """

    verdict: Literal["equal", "within rounding", "other"]
    n: int
    difference: float
    bound: float
    dtype: str
    noise: tuple[float, float]
    to_reference: float
    parts: Sequence[Part]
    others: Sequence[Part]


def held_against(pair: QuantizedPair, deployed: Any, texts: Texts, batch_size: int) -> Likeness:
    """Compare a deployed model with the candidate of a prepared pair.

    Args:
        pair: the pair with the simulated candidate.
        deployed: a loaded checkpoint, or a server.
        texts: the texts with their roles.
        batch_size: texts in a pass or request; the noise is against one text at a time.

    Raises:
        QuantDriftError: embeddings or weights have other sizes, or are not finite.
    """
    reference, modules = embedded(pair.encoder, texts, batch_size), [pair.encoder.module, *deployed.modules]
    visible = deployed.modules and getattr(deployed, "foreign", None) is None  # another library hides its weights
    with pair.candidate():
        with pair.observed():
            simulated = embedded(pair.encoder, texts, batch_size)
        own = _apart(simulated, embedded(pair.encoder, texts, 1))
        coarsest = max(map(_coarsest, modules), key=_eps)
        parts = list(_parts(*modules, unused=pair.never_reached)) if visible else []
    there = embedded(deployed, texts, batch_size)
    if there.shape != simulated.shape:
        raise QuantDriftError(
            f"it is another model: expected embeddings of {simulated.shape[1]} numbers; got {there.shape[1]}"
        )
    noise = own, _apart(there, embedded(deployed, texts, 1))
    n_layers, widest = len(pair.layers), max((layer.weight.shape[1] for layer in pair.layers), default=1)
    walk = sqrt(n_layers) / 2 * (_eps(coarsest) + sqrt(widest) * _eps(torch.float32))
    difference, bound = _apart(simulated, there), max(walk, sum(noise))
    others = [part for part in parts if part.difference is not None and part.difference > part.bound]
    near: Literal["equal", "within rounding"] = "equal" if np.array_equal(simulated, there) else "within rounding"
    return Likeness(
        verdict="other" if difference > bound or others else near,
        n=len(there),
        difference=difference,
        bound=bound,
        dtype=str(coarsest).removeprefix("torch."),
        noise=noise,
        to_reference=_apart(reference, there),
        parts=parts,
        others=others,
    )


def _apart(before: Vectors, now: Vectors) -> float:
    """The largest distance of two embeddings of a text, over the length of the first."""
    first, second = before.astype(np.float64), now.astype(np.float64)
    return float((norm(first - second, axis=1) / np.maximum(norm(first, axis=1), 1e-30)).max())


# --- weights ----------------------------------------------------------------------------------------


def _eps(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps


def _coarsest(module: nn.Module) -> torch.dtype:
    """The coarsest number type that a module computes with, scales included."""
    tensors = (*module.parameters(), *module.buffers())
    return max({tensor.dtype for tensor in tensors} & _TYPES or {torch.float32}, key=_eps)


def _parts(simulated: nn.Module, deployed: nn.Module, *, unused: Sequence[str]) -> Iterator[Part]:
    """Compare the weights of every used module with those of the same name."""
    there = dict(deployed.named_modules())
    for name, module in simulated.named_modules():
        mine = {key: value.detach().float() for key, value in module.named_parameters(recurse=False)}
        if mine and name not in unused:
            theirs = [_weight(there.get(name), key, value, name) for key, value in mine.items()]
            worst = [_largest(*each) for each in zip(mine.values(), theirs, strict=True)]
            types = {_coarsest(each) for each in (module, there.get(name, module))}
            difference = None if None in worst else float(np.max(np.array(worst, dtype=np.float64)))
            yield Part(name=name, difference=difference, bound=max(map(_eps, types)))


def _largest(mine: Tensor, theirs: Tensor | None) -> float | None:
    """The largest difference of two weights, over the largest one of its row."""
    if theirs is None:
        return None
    differences, rows = (each.reshape(-1, mine.shape[-1]) for each in (mine - theirs.to(mine.device), mine))
    return float((differences.abs() / rows.abs().amax(dim=1, keepdim=True).clamp(min=1e-30)).max())


def _weight(module: nn.Module | None, key: str, mine: Tensor, name: str) -> Tensor | None:
    """A weight in float32; that of a packed layer is read off its product with the unit matrix."""
    value = getattr(module, key, None)
    if isinstance(value, Tensor) and type(value) in {Tensor, nn.Parameter} and value.dtype in _TYPES:
        if value.shape != mine.shape:
            raise QuantDriftError(f"it is another model: expected {name}.{key} {[*mine.shape]}; got {[*value.shape]}")
        if not value.isfinite().all():
            raise QuantDriftError(f"expected finite weights; those of {name} are not")
        return value.detach().float()
    if module is not None and key == "weight" and mine.ndim == 2:  # noqa: PLR2004 -- a matrix
        unit = torch.eye(mine.shape[1], device=mine.device)
        with suppress(RuntimeError, TypeError, ValueError), torch.inference_mode():  # a kernel may refuse it
            product = module(unit).float() - module(0 * unit[:1]).float()
            return product.T if product.T.shape == mine.shape else None
    return None

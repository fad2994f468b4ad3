"""Where a layer's error moves the gap: second moments of inputs, weighted by the gradient of the gap.

What GPTQ makes small is the error of a layer's output, wherever it points. What changes an answer is the part of it
along the gap's gradient. So every token's row x of the second moment is weighted by the squared gradient g^2 of the gap
by that token's output, its mean over some block of output rows:

    H_block = mean over gaps of sum over tokens t of mean over rows r of the block of (g_tr)^2 x_t x_t^T.

The idea is that of GuidedQuant (ICML 2025), with the ranking gap in place of a language model's loss. Gaps are those of
pseudo-queries, sentences of the calibration documents themselves: no query is looked at, so none has to be left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from quantdrift.base.errors import DataError, UnsupportedError
from quantdrift.base.progress import Progress
from quantdrift.engine.calibration.inputs import gram, plain_products
from quantdrift.engine.inputs import Inputs, text_inputs
from quantdrift.engine.layers import LinearLayer
from quantdrift.engine.scoring.streamed import Similarity
from quantdrift.engine.sensitivity.gaps import asking_gradients, seeds_of, with_graph
from quantdrift.engine.sensitivity.problem import GapProblem, retrieval_problem

if TYPE_CHECKING:
    from quantdrift.engine.pair import QuantizedPair

N_QUERIES = 200
"""Pseudo-queries: one backward pass for each, and for each of their first two documents."""
BLOCKS = 4
"""Blocks of a layer's output rows, each with a moment of its own; fewer where there are more inputs than outputs."""
_LEAST, _MOST = 20, 200
"""Characters of a sentence that stands for a query."""
_AMONG = 50
"""Sentences of one document that are looked at."""
_ROOM = 4 * 2**30
"""Bytes for all moments."""
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")


def pseudo_queries(documents: Sequence[str], n: int, *, seed: int) -> list[str]:
    """Up to n sentences of the documents, drawn evenly; DataError where there is none of 20 to 200 characters."""
    sentences = []
    for text in documents:
        parts = (part.strip() for part in _SENTENCE.split(text)[:_AMONG])
        sentences += [part for part in parts if _LEAST <= len(part) <= _MOST]
    if not sentences:
        raise DataError(
            f"guided rounding asks with sentences of the documents, of {_LEAST} to {_MOST} characters, and there is "
            "none; leave +guided out"
        )
    chosen = np.random.default_rng([seed, 3]).permutation(len(sentences))[:n]
    return [sentences[row] for row in np.sort(chosen)]


def guide_of(
    pair: QuantizedPair, documents: Inputs, *, seed: int, batch_size: int, progress: Progress
) -> list[Tensor | None]:
    """The moments of every layer, float32 [n_blocks, in_features, in_features], with a mean diagonal of 1.

    None for a layer that no gap depends on. The model is the reference, and left so.

    Raises:
        UnsupportedError: the model does not search texts, has no gradients, or is too large.
        DataError: the documents have no sentence to ask with.
    """
    encoder = pair.encoder
    similarity = getattr(encoder, "similarity", None)
    if not isinstance(similarity, Similarity) or not all(isinstance(text, str) for text in documents.items):
        raise UnsupportedError("guided rounding follows the gaps of a search among texts; leave +guided out")
    if (needed := 4 * sum(n_blocks(*layer.weight.shape) * layer.weight.shape[1] ** 2 for layer in pair.layers)) > _ROOM:
        raise UnsupportedError(
            f"guided rounding would keep {needed / 2**30:.0f} GB of moments for this model, and {_ROOM / 2**30:.0f} "
            "are allowed; leave +guided out"
        )
    queries = text_inputs(pseudo_queries(list(documents.items), N_QUERIES, seed=seed), role="query")
    reference = []
    with torch.inference_mode():
        for side in (queries, documents):
            order = side.order()
            reference.append(encoder.encode(side.at(order), side.role, batch_size)[np.argsort(order)])
    problem = retrieval_problem(
        encoder,
        queries,
        documents,
        reference,
        similarity=similarity,
        chosen=np.arange(len(queries.ids)),
        batch_size=batch_size,
    )
    return guided_moments(pair.modules, pair.layers, problem, progress=progress)


def guided_moments(
    modules: Sequence[nn.Module], layers: Sequence[LinearLayer], problem: GapProblem, *, progress: Progress
) -> list[Tensor | None]:
    """The moments of every layer for these gaps, as `guide_of` has them."""
    sums: list[Tensor | None] = [None] * len(layers)
    numbers = {module: number for number, layer in enumerate(layers) for module in layer.modules}
    seen: list[tuple[int, Tensor, Tensor]] = []

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        x = args[0] if args else kwargs.get("input")
        if isinstance(x, Tensor) and isinstance(output, Tensor) and output.requires_grad:
            seen.append((numbers[module], x.detach(), output))

    with ExitStack() as stack:
        stack.enter_context(plain_products(modules))
        stack.enter_context(asking_gradients(modules, {layer.parameter for layer in layers}))
        for module in numbers:
            stack.callback(module.register_forward_hook(note, with_kwargs=True).remove)
        seeds = seeds_of(problem)
        with progress.stage("gap by every layer's output", len(seeds)) as tell:
            for row, of_row in seeds.items():
                seen.clear()
                outputs = with_graph(modules, problem, row)
                weights: list[Tensor | None] = [None] * len(seen)
                for vector, gaps in of_row.values():
                    gradients = torch.autograd.grad(
                        outputs,
                        [output for _, _, output in seen],
                        vector[None].to(outputs),
                        retain_graph=True,
                        allow_unused=True,
                    )
                    for place, ((_, x, _), gradient) in enumerate(zip(seen, gradients, strict=True)):
                        if gradient is not None:
                            sum_so_far, by_token = weights[place], len(gaps) * _token_weights(x, gradient)
                            weights[place] = by_token if sum_so_far is None else sum_so_far + by_token
                for (number, x, _), weight in zip(seen, weights, strict=True):
                    if weight is not None:
                        sums[number] = _added(sums[number], x, weight)
                tell(1)
        seen.clear()
    return [None if total is None else _scaled(total) for total in sums]


def _token_weights(x: Tensor, gradient: Tensor) -> Tensor:
    """The squared gradient by every token's outputs, its mean over each block of rows, [n_tokens, n_blocks]."""
    by_row = gradient.detach().reshape(-1, gradient.shape[-1]).float().square()
    blocks = torch.tensor_split(by_row, n_blocks(by_row.shape[1], x.shape[-1]), dim=1)
    return torch.stack([part.mean(dim=1) for part in blocks], dim=1)


def _added(total: Tensor | None, x: Tensor, weight: Tensor) -> Tensor:
    """Add the tokens of one text, which count by these weights in every block of rows."""
    rows = x.reshape(-1, x.shape[-1]).float()
    moments = torch.stack([gram(rows * of_block.sqrt()[:, None]) for of_block in weight.T])
    return moments if total is None else total.add_(moments)


def n_blocks(out_features: int, in_features: int) -> int:
    """Into how many blocks so many output rows are split: fewer where a moment is larger than the weight itself."""
    return max(1, min(BLOCKS, out_features, BLOCKS * out_features // in_features))


def _scaled(total: Tensor) -> Tensor | None:
    mean = total.diagonal(dim1=1, dim2=2).mean(dim=1)
    return None if not bool((mean > 0).all()) else total / mean[:, None, None]

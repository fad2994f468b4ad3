"""What is tuned for: outputs of pseudo-queries and documents of the calibration sample, as the reference has them."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from quantdrift.base.errors import DataError, UnsupportedError
from quantdrift.builtin.classifier.work import Classifier
from quantdrift.builtin.cross_encoder.work import CrossEncoderModel
from quantdrift.candidate.calibration.inputs import hooked_inputs
from quantdrift.models.inputs import Inputs
from quantdrift.models.layers import LinearLayer
from quantdrift.models.model import EmbeddingModel, check_vectors
from quantdrift.scoring.similarity import Similarity

Rows = NDArray[np.int64]
Batch = tuple[Rows, ...]
"""Rows of each side that the model sees in one step."""
Inside = dict[int, list[Tensor]]
"""Inputs of layers, [..., in_features], by the number of the first layer that gets one, of one call of the model."""

Outputs = tuple[list[Tensor], list[list[Inside]]]
"""Outputs of each side, and what is inside of each of its parts."""

DOCUMENTS = 32
"""Documents of a step, and as many pseudo-queries; twice as many where these are alone."""
PAIRED = 4
"""Documents that a cross-encoder reads with each pseudo-query: its own, and others."""
_HELD_OUT, _MOST_HELD = 8, 32
"""One document in so many is held out, and at most so many are."""
_WORDS, _CHARACTERS = 24, 200
"""Of a document that are read at a time: any text gives as many numbers to tune by."""
_LEAST, _MOST = 16, 240
"""Characters of a sentence that is asked."""
_TINY = 1e-30
_END = re.compile("(?<=[.!?])\\s+|(?<=[\u3002\uff01\uff1f\u0964])|[\r\n]+")  # full stops of China and India, too


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Side:
    """Items that the model takes in one role."""

    role: str
    items: Sequence[Any]

    def parts(self, rows: Rows, n: int) -> list[Rows]:
        """At most `n` parts of the rows, of items about as long as one another."""
        lengths = [len(str(self.items[row])) if isinstance(self.items[row], str | tuple) else 0 for row in rows]
        return np.array_split(rows[np.argsort(lengths, kind="stable")], min(n, len(rows)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """What both arms are compared on.

    Attributes:
        sides: what goes into the model.
        batch: rows of a step, by a generator.
        held_out: rows that no step sees, in batches.
        what: the inputs are called in words.
        unit: whether the lengths of outputs do not matter.
    """

    sides: tuple[Side, ...]
    batch: Callable[[np.random.Generator], Batch]
    held_out: tuple[Batch, ...]
    what: str
    unit: bool = False


def problem_of(encoder: Any, kinds: Sequence[Inputs], *, query_only: bool, seed: int) -> Problem:
    """The problem of a model and its calibration inputs; DataError where there are too few to hold some out."""
    rng = np.random.default_rng([seed, 5])
    fewest = min((len(kind.ids) for kind in kinds), default=0)
    if fewest < 2:  # noqa: PLR2004 -- one to tune on, one to hold out
        raise DataError(f"+tuned tunes on inputs of each kind and holds some out; expected at least 2, got {fewest}")
    order = rng.permutation(len(kinds[0].ids))
    n_held = min(_MOST_HELD, max(1, len(order) // _HELD_OUT))
    parts: Batch = (order[n_held:], order[:n_held])
    items, role = _all(kinds[0]), kinds[0].role
    if isinstance(encoder, CrossEncoderModel):
        return _paired([text for _, text in items], parts, rng)
    if isinstance(encoder, Classifier):
        return _drawn([(role, [[item] for item in items], parts)], DOCUMENTS, what="inputs")
    asked, of_asked = [sentences(item) for item in items], parts
    if len(kinds) > 1:  # a tower of its own is calibrated on queries
        asked = [pieces(item)[:1] for item in _all(kinds[1])]
        n = max(1, len(asked) // _HELD_OUT)
        of_asked = np.arange(n, len(asked)), np.arange(n)
    sides = [("query" if role == "document" else role, asked, of_asked), (role, list(map(pieces, items)), parts)]
    sides = sides[: 1 if query_only else 2]
    unit = Similarity(encoder.similarity) is Similarity.COSINE
    return _drawn(sides, 2 * DOCUMENTS // len(sides), what="pseudo-queries", unit=unit)


def check_encoder(encoder: Any) -> None:
    """Refuse a model whose outputs are not compared, or that somebody else runs."""
    if not isinstance(encoder, EmbeddingModel | Classifier | CrossEncoderModel):
        raise UnsupportedError(
            "+tuned is for models that quantdrift loads itself; write the tuned candidate to a folder with quantdrift "
            "quantize, and let the harness load that"
        )
    check_vectors(encoder, "+tuned compares scores")


def sentences(text: Any) -> list[Any]:
    """The sentences of a text that could be asked; where there is none, how it begins; anything else as it is.

    >>> sentences("Yes. The ferry leaves twice a day! Is it the one to the island?")
    ['The ferry leaves twice a day!', 'Is it the one to the island?']
    """
    if not isinstance(text, str):
        return [text]
    parts = [part.strip() for part in _END.split(text)]
    return [part for part in parts if _LEAST <= len(part) <= _MOST] or [text.strip()[:_MOST] or "."]


def pieces(text: Any) -> list[Any]:
    """A text in pieces, one of which is read at a time; anything else as it is.

    >>> pieces("The ferry leaves. " * 10)[1]
    'The ferry leaves. The ferry leaves.'
    """
    if not isinstance(text, str):
        return [text]
    words = text.split()
    parts = [" ".join(words[at : at + _WORDS]) for at in range(0, len(words), _WORDS)]
    return [text[at : at + _CHARACTERS] for text in parts for at in range(0, len(text), _CHARACTERS)] or ["."]


def _all(inputs: Inputs) -> list[Any]:
    return list(inputs.at(np.arange(len(inputs.ids))))


# --- of a step ------------------------------------------------------------------------------------


def _drawn(
    sides: Sequence[tuple[str, Sequence[Sequence[Any]], Batch]], n: int, *, what: str, unit: bool = False
) -> Problem:
    """`n` texts of each side in a step; a side is a role, what each item gives, and which are drawn and held out."""
    made, pools = [], []
    for role, given, parts in sides:
        own = [np.arange(*ends) for ends in pairwise(np.cumsum([0, *map(len, given)]))]
        drawn, held = (np.concatenate([own[row] for row in part]) for part in parts)
        pools.append((drawn, held[:: -(-len(held) // _MOST_HELD)]))
        made.append(Side(role=role, items=[item for part in given for item in part]))

    def batch(rng: np.random.Generator) -> Batch:
        return tuple(rng.permutation(drawn)[:n] for drawn, _ in pools)

    return Problem(sides=tuple(made), batch=batch, held_out=(tuple(held for _, held in pools),), what=what, unit=unit)


def _paired(texts: Sequence[str], parts: Batch, rng: np.random.Generator) -> Problem:
    """Pseudo-queries with their own document and others, by the scores of a cross-encoder."""
    pairs: list[tuple[str, str]] = []

    def groups(rows: Rows) -> Rows:
        """Numbers of pairs, [n_pseudo_queries, n_documents]."""
        first, n = len(pairs), min(PAIRED, len(rows))
        for row in rows.tolist():
            for sentence in rng.permutation(sentences(texts[row]))[:2]:
                others = rng.permutation(rows[rows != row])[: n - 1].tolist()
                pairs.extend((str(sentence), pieces(texts[other])[0]) for other in (row, *others))
        return np.arange(first, len(pairs)).reshape(-1, n)

    of_rest, of_held = map(groups, parts)
    size = DOCUMENTS // of_rest.shape[1]
    return Problem(
        sides=(Side(role="pair", items=pairs),),
        batch=lambda rng: (rng.permutation(of_rest)[:size].ravel(),),
        held_out=tuple((of_held[at : at + size].ravel(),) for at in range(0, len(of_held), size)),
        what="pairs of a pseudo-query and a document",
    )


# --- outputs and their loss -----------------------------------------------------------------------


def change(outputs: Sequence[Tensor], wanted: Sequence[Tensor], *, unit: bool) -> Tensor:
    """How far outputs are from the reference's: |y - y_0|^2 / |y_0|^2, summed over sides; of `unit` length if so."""
    total = torch.zeros((), device=outputs[0].device)
    for found, exact in zip(outputs, wanted, strict=True):
        made, right = (normalize(part, dim=1) for part in (found, exact)) if unit else (found, exact)
        total = total + (made - right).square().sum() / right.square().sum().clamp(min=_TINY)
    return total


@contextmanager
def seen_inside(modules: Sequence[nn.Module], layers: Sequence[LinearLayer]) -> Iterator[Inside]:
    """Inside, inputs of layers are noted, without padding; what several layers get, once."""
    seen: Inside = {}
    last: list[Tensor] = []

    def arrive(number: int, x: Tensor, mask: Tensor | None) -> None:
        if not (last and x is last[0]):
            seen.setdefault(number, []).append(x if mask is None else x[mask])
        last[:] = [x]

    with hooked_inputs(modules, layers, arrive):
        yield seen


def change_inside(found: Sequence[Sequence[Inside]], wanted: Sequence[Sequence[Inside]]) -> Tensor | float:
    """How far inputs of layers are from the reference's, as in `change`: summed over sides, the mean over layers.

    Each side comes in parts, which change nothing but how much is padded. What was routed to another expert, so that
    the number of tokens differs, does not count.
    """
    total: Tensor | float = 0.0
    for parts, exact in zip(found, wanted, strict=True):
        sums: dict[int, Tensor] = {number: torch.tensor([0, _TINY]) for seen in exact for number in seen}
        for seen, right in zip(parts, exact, strict=True):
            for number, rights in right.items():
                for x, asked in zip(seen.get(number, []), rights, strict=False):
                    if x.shape == asked.shape:
                        y = asked.clone().float()  # what inference made has no place in a graph
                        both = torch.stack([(x.float() - y).square().sum(), y.square().sum()])
                        sums[number] = sums[number].to(both) + both
        total = total + sum(apart / of for apart, of in sums.values()) / max(1, len(sums))
    return total

"""What layers are measured on: calibration inputs, and the gaps that a model's outputs for them make.

A gap is a difference of two scores: of the first document and of a contender (retrieval), of the first class and of
another (classification). Criteria ask how it moves when a layer is quantized.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from quantdrift.base.cache import array_in, cache_file, read_cache
from quantdrift.base.errors import DataError
from quantdrift.base.progress import Progress
from quantdrift.base.records import bytes_digest
from quantdrift.models.inputs import Encoder, Inputs, Vectors
from quantdrift.models.layers import LinearLayer
from quantdrift.models.store import keeping
from quantdrift.scoring.similarity import Similarity
from quantdrift.scoring.streamed import score_embeddings

LEAST_SHARE = 4
"""At most one query in this many is taken for calibration."""
GAPS = 128
"""Gaps that layers are measured on: to the runner-up, and to more where queries are few."""
CONTENDERS = 4
"""Documents behind the first that are watched at most: a flip is mostly to one of them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GapProblem:
    """Calibration inputs, their contenders in the reference, and the gaps between them.

    A row is what the model sees at once: a text, a pair of texts, an image. A text that several inputs have to do
    with is one row.

    Attributes:
        encode: puts some rows, int64 [n], through the model as it is now, float32 [n, dim].
        batches: int64, the rows of every forward pass; every row exactly once.
        rows: int64 [n_inputs, n_contenders, n_roles], the rows that a gap depends on. For retrieval the roles are
            query, first document and contender.
        valid: bool [n_inputs, n_contenders]; False where there are fewer contenders. They are in the reference's
            order, so the first is its runner-up.
        gap: from outputs [n_inputs, n_contenders, n_roles, dim] to gaps [n_inputs, n_contenders]; differentiable, and
            no gap depends on another's outputs.
        reference: float32 [n_rows, dim], outputs of the reference where they are known already.
    """

    encode: Callable[[NDArray[np.int64]], Vectors]
    batches: Sequence[NDArray[np.int64]]
    rows: NDArray[np.int64]
    valid: NDArray[np.bool_]
    gap: Callable[[Tensor], Tensor]
    reference: Vectors | None = None

    @property
    def n_rows(self) -> int:
        """The number of rows that the model sees."""
        return sum(map(len, self.batches))

    def outputs(self, tell: Callable[[int], None] = lambda _: None) -> Vectors:
        """Encode every row by the model as it is now, float32 [n_rows, dim]; `tell` gets the rows done."""
        outputs = []
        for batch in self.batches:
            outputs.append(self.encode(batch))
            tell(len(batch))
        return np.asarray(np.concatenate(outputs)[np.argsort(np.concatenate(self.batches))])

    def reference_outputs(self) -> Vectors:
        """Outputs of the reference, which is in place if they are not known already."""
        return self.outputs() if self.reference is None else self.reference

    @property
    def digest(self) -> str:
        """A digest of the reference's outputs, of the gaps between them and of the batches, 40 hex digits."""
        outputs = self.reference_outputs()
        parts = (outputs, self.rows, self.gaps(outputs), *self.batches)
        return bytes_digest(b"".join(np.ascontiguousarray(part).tobytes() for part in parts))

    def gaps(self, outputs: Vectors) -> NDArray[np.float64]:
        """The gaps of outputs [n_rows, dim], float64 [n_inputs, n_contenders]; nan without a contender."""
        chosen = torch.from_numpy(outputs[np.maximum(self.rows, 0)]).double()
        return np.where(self.valid, self.gap(chosen).numpy(), np.nan)


class CachedArrays:
    """Arrays that were measured of one model on one set of calibration inputs, by name.

    Args:
        root: cache folder; None holds arrays in memory alone.
        key: of model and inputs, from `key_of`.
    """

    def __init__(self, root: Path | None = None, key: str = "") -> None:
        self._folder = None if root is None else root / "sensitivities" / key[:2] / key
        self._held: dict[str, NDArray[np.float64]] = {}

    def get(self, name: str, measure: Callable[[], NDArray[np.float64]]) -> NDArray[np.float64]:
        """The array of that name; measured, and kept, where there is none or a damaged one."""
        path = None if self._folder is None else self._folder / f"{name}.npy"
        array = self._held.get(name)
        if array is None and path is not None:
            array = read_cache(path, lambda content: array_in(content).copy())
        if array is None:
            array = measure()
            if path is not None:
                self._write(path, array)
        self._held[name] = array
        return array

    def _write(self, path: Path, array: NDArray[np.float64]) -> None:
        with keeping(path.parent), cache_file(path) as partial, partial.open("wb") as file:
            np.save(file, array, allow_pickle=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setting:
    """The setting in which layers are scored.

    Attributes:
        modules: the model's outermost modules, in the reference arm.
        layers: what gets a width.
        widths: bits per weight to choose from, ascending, at least two.
        group_size: input weights that share a scale, None for a whole output channel.
        seed: of what is drawn at random.
        progress: where progress is shown.
        problem: calibration inputs; None where the criterion needs none.
        kept: what was measured before, of this model and these calibration inputs.
    """

    modules: Sequence[nn.Module]
    layers: Sequence[LinearLayer]
    widths: tuple[int, ...]
    group_size: int | None
    seed: int
    progress: Progress
    problem: GapProblem | None = None
    kept: CachedArrays = field(default_factory=CachedArrays)

    @property
    def gaps(self) -> GapProblem:
        """The calibration inputs, for a criterion that needs them."""
        assert self.problem is not None  # whoever calls has them
        return self.problem


def draw_queries(
    n_queries: int, *, wanted: int, seed: int = 0, held_out: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Positions of the calibration queries, ascending: `wanted`, but at most a quarter of all.

    Where queries are held out, at positions `held_out`: `wanted` of the others, as far as there are so many.
    """
    pool = np.arange(n_queries) if held_out is None else np.setdiff1d(np.arange(n_queries), held_out)
    n = min(wanted, n_queries // LEAST_SHARE if held_out is None else len(pool))
    if n < 1:
        raise DataError(
            f"expected at least {LEAST_SHARE} queries, of which a quarter is taken to measure "
            f"layers on; got {n_queries}"
        )
    return np.sort(np.random.default_rng(seed).choice(pool, size=n, replace=False)).astype(np.int64)


def hold_out(queries: Sequence[str], *, share: float, seed: int) -> NDArray[np.int64]:
    """Positions of the queries that rates are over, ascending, about `share` of all; the others are for criteria.

    A text that is there twice is on one side only.
    """
    number = {text: place for place, text in enumerate(dict.fromkeys(queries))}
    rest = np.random.default_rng([seed, 2]).permutation(len(number))[: max(1, round((1 - share) * len(number)))]
    held = np.flatnonzero(~np.isin([number[text] for text in queries], rest)).astype(np.int64)
    if not len(held):
        raise DataError(f"expected queries to hold out and others for criteria to look at; got {len(queries)} in all")
    return held


def contenders_for(n_queries: int) -> int:
    """The number of documents behind the first that each calibration query is measured against."""
    return min(CONTENDERS, -(-GAPS // n_queries))


def retrieval_problem(
    encoder: Encoder,
    queries: Inputs,
    documents: Inputs,
    reference: Sequence[Vectors],
    *,
    similarity: Similarity,
    chosen: NDArray[np.int64],
    batch_size: int,
    n_contenders: int = 1,
    excluded: NDArray[np.int64] | None = None,
    query_only: bool = False,
) -> GapProblem:
    """The gaps between the first document and those behind it, in the order of the reference's embeddings.

    Of the queries at the positions `chosen`; per query of all, `excluded` is one document that does not count, or -1.
    With `query_only` the documents stay at the reference's embeddings.
    """
    asked, index = np.asarray(reference[0])[chosen], reference[-1]
    without = None if excluded is None else excluded[chosen]
    state = score_embeddings(asked, asked, index, index, similarity=similarity, k=n_contenders + 1, excluded=without)
    tops = state.reference_top()[0]  # [n_inputs, up to n_contenders + 1], -1 behind the last
    valid = (tops[:, 1:] >= 0) & (tops[:, :1] >= 0)
    if not valid.any():
        raise DataError("no calibration query has two documents, so there is no gap to measure")
    sides, roles = [queries.part(chosen)], [np.broadcast_to(np.arange(len(chosen))[:, None], valid.shape)]
    fixed = torch.from_numpy(np.asarray(index)[np.maximum(tops, 0)]) if query_only else None
    if fixed is None:
        needed = np.unique(tops[tops >= 0])
        places = len(chosen) + np.searchsorted(needed, tops)
        sides.append(documents.part(needed))
        roles += [np.broadcast_to(places[:, :1], valid.shape), places[:, 1:]]
        asked = np.concatenate([asked, np.asarray(index)[needed]])

    def gap(outputs: Tensor) -> Tensor:
        if fixed is None:
            return _gap(outputs[:, :, 0], outputs[:, :, 1], outputs[:, :, 2], similarity)
        ranked = fixed.to(outputs)
        return _gap(outputs[:, :, 0], ranked[:, :1], ranked[:, 1:], similarity)

    return _problem(encoder, sides, roles, gap, batch_size=batch_size, valid=valid, reference=asked)


def classification_problem(
    encoder: Encoder,
    inputs: Inputs,
    outputs: Vectors,
    *,
    logits: Callable[[Tensor], Tensor],
    batch_size: int,
    n_contenders: int = 1,
) -> GapProblem:
    """The gaps between the first class and those behind it, in the reference's order.

    gap_c = logit of the reference's first class - logit of its class c + 1, for at most `n_contenders` classes.
    `outputs` are the reference's, logits or embeddings that a probe reads; `logits` makes logits [..., n_classes] of
    them, differentiable.
    """
    with torch.no_grad():
        scores = logits(torch.from_numpy(np.array(outputs)))
    tops = torch.argsort(scores, dim=1, descending=True, stable=True)[:, : n_contenders + 1]
    n_contenders = tops.shape[1] - 1

    def gap(outputs_of_rows: Tensor) -> Tensor:
        scored = logits(outputs_of_rows[:, :, 0])  # [n_inputs, n_contenders, n_classes]
        ranked = tops.to(scored.device)
        best = scored.gather(2, ranked[:, :1, None].expand(-1, n_contenders, 1))
        return (best - scored.gather(2, ranked[:, 1:, None]))[..., 0]

    shape = (len(inputs.ids), n_contenders)
    rows = np.broadcast_to(np.arange(shape[0])[:, None], shape)
    valid = np.ones(shape, dtype=np.bool_)
    return _problem(encoder, [inputs], [rows], gap, batch_size=batch_size, valid=valid, reference=np.asarray(outputs))


def _problem(
    encoder: Encoder,
    sides: Sequence[Inputs],
    roles: Sequence[NDArray[np.int64]],
    gap: Callable[[Tensor], Tensor],
    *,
    batch_size: int,
    valid: NDArray[np.bool_],
    reference: Vectors,
) -> GapProblem:
    """The problem whose rows are the inputs of one side after the other, in batches of similar lengths."""
    starts = np.cumsum([0, *(len(side.ids) for side in sides)])

    def encode(rows: NDArray[np.int64]) -> Vectors:
        side = int(np.searchsorted(starts, rows[0], side="right")) - 1  # a batch is of one side
        return encoder.encode(sides[side].at(rows - starts[side]), sides[side].role, len(rows))

    orders = [start + side.order() for start, side in zip(starts, sides, strict=False)]
    return GapProblem(
        encode=encode,
        batches=[order[at : at + batch_size] for order in orders for at in range(0, len(order), batch_size)],
        rows=np.where(valid[..., None], np.stack(roles, axis=-1), -1),
        valid=valid,
        gap=gap,
        reference=reference,
    )


def _gap(queries: Tensor, firsts: Tensor, others: Tensor, similarity: Similarity) -> Tensor:
    """Score of the first minus score of the other, each [..., dim]."""
    if similarity is Similarity.EUCLIDEAN:
        farther: Tensor = (queries - others).norm(dim=-1) - (queries - firsts).norm(dim=-1)
        return farther
    if similarity is Similarity.COSINE:
        queries, firsts, others = (normalize(part, dim=-1) for part in (queries, firsts, others))
    return (queries * (firsts - others)).sum(dim=-1)

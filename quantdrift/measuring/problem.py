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


def gap_problem(
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


def gap_of(queries: Tensor, firsts: Tensor, others: Tensor, similarity: Similarity) -> Tensor:
    """Score of the first minus score of the other, each [..., dim]."""
    if similarity is Similarity.EUCLIDEAN:
        farther: Tensor = (queries - others).norm(dim=-1) - (queries - firsts).norm(dim=-1)
        return farther
    if similarity is Similarity.COSINE:
        queries, firsts, others = (normalize(part, dim=-1) for part in (queries, firsts, others))
    return (queries * (firsts - others)).sum(dim=-1)

"""Calibration inputs and the gaps between their scores, on which criteria measure layers.

A gap is a difference of two scores: first document minus contender (retrieval), or first class minus another
(classification). Criteria measure how it moves when a layer is quantized.
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
"""At most one query in so many is used for calibration."""
GAPS = 128
"""Number of gaps to measure layers on: those to the runner-up, and to more contenders if queries are few."""
CONTENDERS = 4
"""Most contenders of a query, as most flips go to one of the next four documents."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GapProblem:
    """Calibration inputs, their contenders in the reference, and the gaps between them.

    A row is one input of the model: a text, a pair of texts or an image. A text that several gaps depend on is one row.

    Attributes:
        encode: function that encodes rows, int64 [n], by the model as it is now, float32 [n, dim].
        batches: int64, the rows of every forward pass; every row exactly once.
        rows: int64 [n_inputs, n_contenders, n_roles], the rows that a gap depends on. In retrieval the roles are query,
            first document and contender.
        valid: bool [n_inputs, n_contenders], False for a missing contender. Contenders are in the reference's order, so
            the first is its runner-up.
        gap: differentiable function from outputs [n_inputs, n_contenders, n_roles, dim] to gaps [n_inputs,
            n_contenders]; each gap depends on its own outputs only.
        reference: float32 [n_rows, dim], outputs of the reference if they are known already.
    """

    encode: Callable[[NDArray[np.int64]], Vectors]
    batches: Sequence[NDArray[np.int64]]
    rows: NDArray[np.int64]
    valid: NDArray[np.bool_]
    gap: Callable[[Tensor], Tensor]
    reference: Vectors | None = None

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return sum(map(len, self.batches))

    def outputs(self, tell: Callable[[int], None] = lambda _: None) -> Vectors:
        """Encode every row by the model as it is now, float32 [n_rows, dim]; `tell` gets the rows done."""
        outputs = []
        for batch in self.batches:
            outputs.append(self.encode(batch))
            tell(len(batch))
        return np.asarray(np.concatenate(outputs)[np.argsort(np.concatenate(self.batches))])

    def reference_outputs(self) -> Vectors:
        """Return the outputs of the reference; if they are unknown, it has to be in place."""
        return self.outputs() if self.reference is None else self.reference

    @property
    def digest(self) -> str:
        """The digest of the reference's outputs, their gaps and the batches, 40 hex digits."""
        outputs = self.reference_outputs()
        parts = (outputs, self.rows, self.gaps(outputs), *self.batches)
        return bytes_digest(b"".join(np.ascontiguousarray(part).tobytes() for part in parts))

    def gaps(self, outputs: Vectors) -> NDArray[np.float64]:
        """Compute the gaps of outputs [n_rows, dim], float64 [n_inputs, n_contenders]; nan without a contender."""
        chosen = torch.from_numpy(outputs[np.maximum(self.rows, 0)]).double()
        return np.where(self.valid, self.gap(chosen).numpy(), np.nan)


class CachedArrays:
    """Arrays measured for one model on one set of calibration inputs, by name.

    Args:
        root: cache folder; None holds arrays in memory alone.
        key: key of model and inputs, from `key_of`.
    """

    def __init__(self, root: Path | None = None, key: str = "") -> None:
        self._folder = None if root is None else root / "sensitivities" / key[:2] / key
        self._held: dict[str, NDArray[np.float64]] = {}

    def get(self, name: str, measure: Callable[[], NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return the array of a name; measure and keep it if it is missing or damaged."""
        path = None if self._folder is None else self._folder / f"{name}.npy"
        array = self._held.get(name)
        if array is None and path is not None:
            array = read_cache(path, lambda content: array_in(content).copy())
        if array is None:
            array = measure()
            if path is not None:
                with keeping(path.parent), cache_file(path) as partial, partial.open("wb") as file:
                    np.save(file, array, allow_pickle=False)
        self._held[name] = array
        return array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setting:
    """The setting in which layers are measured.

    Attributes:
        modules: the model's outermost modules, in the reference arm.
        layers: the layers to choose widths for.
        widths: bits per weight to choose from, ascending, at least two.
        group_size: input weights that share a scale; None for a whole output channel.
        seed: seed of random draws.
        progress: display of progress.
        problem: calibration inputs and their gaps; None if the criterion needs none.
        kept: earlier measurements of this model on these calibration inputs.
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
        """The problem, for a criterion that needs one."""
        assert self.problem is not None  # a caller has checked that there is one
        return self.problem

    def once(self, name: str, measure: Callable[[], NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return the array of a name for these widths; measure and keep it if it is missing."""
        return self.kept.get(f"{name}-{'-'.join(map(str, self.widths))}", measure)


def draw_queries(
    n_queries: int, *, wanted: int, seed: int = 0, held_out: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Draw the positions of `wanted` calibration queries, ascending: at most a quarter of all.

    If queries are held out, at positions `held_out`, they are drawn from all others.
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
    """Draw the positions of the queries for rates, ascending, about `share` of all; criteria use the others.

    All queries with the same text are on the same side.
    """
    number = {text: place for place, text in enumerate(dict.fromkeys(queries))}
    rest = np.random.default_rng([seed, 2]).permutation(len(number))[: max(1, round((1 - share) * len(number)))]
    held = np.flatnonzero(~np.isin([number[text] for text in queries], rest)).astype(np.int64)
    if not len(held):
        raise DataError(f"expected queries to hold out and others for criteria to look at; got {len(queries)} in all")
    return held


def contenders_for(n_queries: int) -> int:
    """Return the number of contenders per calibration query."""
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
    """Make a problem whose rows are the inputs of one side after the other, in batches of similar lengths."""
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
    """Compute the score of the first minus the score of the other; all vectors are [..., dim]."""
    if similarity is Similarity.EUCLIDEAN:
        farther: Tensor = (queries - others).norm(dim=-1) - (queries - firsts).norm(dim=-1)
        return farther
    if similarity is Similarity.COSINE:
        queries, firsts, others = (normalize(part, dim=-1) for part in (queries, firsts, others))
    return (queries * (firsts - others)).sum(dim=-1)

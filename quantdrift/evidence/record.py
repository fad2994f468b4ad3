"""The evidence of a run, one row for each input, from which every metric is computed.

A row holds the top of both rankings with both arms' scores, the extremes of delta over all items, relevance labels and
the noise floor. Nothing here needs torch.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.errors import DataError, RunError

_LARGEST = 10**9
"""The largest grade: sums of grades are exact."""

Deltas = Literal["all", "listed", "none"]
"""The items that the extremes of delta are over: all that were scored; only those that truncated lists share, so that
epsilon and S are lower bounds; or none, for answers and rankings without scores."""

Stage = Literal["codes", "index"]
"""A stage of a deployment with an index: the stored codes, or the search."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
    """Arrays with one row per input."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def part(self, rows: NDArray[np.int64]) -> Self:
        """The rows of these inputs, in this order."""
        return replace(self, **{field.name: getattr(self, field.name)[rows] for field in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Top(_Rows):
    """The first k items of one arm's ranking, best first, with both arms' scores.

    Attributes:
        items: int64 [n_inputs, k], indices into `Evidence.item_ids`; -1 if there are fewer.
        reference_scores: float32 [n_inputs, k], NaN if there are fewer.
        candidate_scores: float32 [n_inputs, k], likewise.
    """

    items: NDArray[np.int64]
    reference_scores: NDArray[np.float32]
    candidate_scores: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Judgements:
    """Relevance labels of the inputs, row i at offsets[i]:offsets[i + 1].

    Attributes:
        offsets: int64 [n_inputs + 1].
        items: int64, indices into `Evidence.item_ids`.
        grades: int64, relevant if greater than 0.
    """

    offsets: NDArray[np.int64]
    items: NDArray[np.int64]
    grades: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def of(self, row: int) -> dict[int, int]:
        """The labels of one input: item index to grade."""
        part = slice(self.offsets[row], self.offsets[row + 1])
        return dict(zip(self.items[part].tolist(), self.grades[part].tolist(), strict=True))

    @classmethod
    def from_qrels(cls, qrels: Mapping[str, Mapping[str, int]], input_ids: Sequence[str], names: list[str]) -> Self:
        """Read the labels of inputs from qrels.

        Args:
            qrels: input to item to grade; inputs without an entry have no judgement.
            input_ids: ids of the rows, in order.
            names: item names by index; judged items that are missing are appended.

        Raises:
            DataError: a grade is too large.
        """
        index = {name: number for number, name in enumerate(names)}
        labels = [qrels.get(input_id, {}) for input_id in input_ids]
        new = dict.fromkeys(item for part in labels for item in part if item not in index)
        index |= {name: len(names) + number for number, name in enumerate(new)}
        names.extend(new)
        items = [index[item] for part in labels for item in part]
        grades = [int(grade) for part in labels for grade in part.values()]
        if any(abs(grade) > _LARGEST for grade in grades):
            raise DataError(f"expected grades from {-_LARGEST:,} to {_LARGEST:,}; one is beyond")
        counts = np.array([len(part) for part in labels], dtype=np.int64)
        return cls(
            offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            items=np.array(items, dtype=np.int64),
            grades=np.array(grades, dtype=np.int64),
        )

    def part(self, rows: NDArray[np.int64]) -> "Judgements":
        """The labels of these inputs, in this order."""
        counts = np.diff(self.offsets)[rows]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        # position within the part, shifted to the start of the input's labels in the whole
        places = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], counts)
        return Judgements(offsets=offsets, items=self.items[places], grades=self.grades[places])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Noise(_Rows):
    """The noise floor: the reference against itself, run again with another batch size and order.

    Attributes:
        flips: bool [n_inputs], whether the top-1 differed.
        epsilon: float32 [n_inputs], largest absolute score difference over the items compared.
    """

    flips: NDArray[np.bool_]
    epsilon: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Confidence(_Rows):
    """The candidate's confidence, from the softmax of all its logits.

    It is not defined for similarities, whose softmax is not a probability.

    Attributes:
        msp: float64 [n_inputs], maximum softmax probability, from 1 / n_items to 1.
        entropy: float64 [n_inputs], predictive entropy in nats, from 0 to log n_items.
    """

    msp: NDArray[np.float64]
    entropy: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class Evidence:
    """The evidence of one run, a row for each input.

    Attributes:
        input_ids: str [n_inputs].
        item_ids: str, the items that occur in a top list or a judgement.
        reference_top: the reference's ranking.
        candidate_top: the candidate's ranking.
        delta_min: float32 [n_inputs], least candidate-minus-reference score over all items.
        delta_max: float32 [n_inputs], greatest one.
        n_items: int64 [n_inputs], number of scored items.
        judgements: relevance labels, if there are any.
        noise: the noise floor, if it was measured.
        confidence: the candidate's confidence, if scores are logits.
        exhaustive_top: the candidate's ranking by exhaustive search of the same codes, if `candidate_top` is from an
            approximate index.
        deltas: the items that the extremes of delta are over. If it is not "all", `n_items` counts the known items.
    """

    input_ids: NDArray[Any]
    item_ids: NDArray[Any]
    reference_top: Top
    candidate_top: Top
    delta_min: NDArray[np.float32]
    delta_max: NDArray[np.float32]
    n_items: NDArray[np.int64]
    judgements: Judgements | None = None
    noise: Noise | None = None
    confidence: Confidence | None = None
    exhaustive_top: Top | None = None
    deltas: Deltas = "all"

    def __post_init__(self) -> None:
        n = self.n_inputs
        wrong = {name: len(part) for name, part in self._parts() if len(part) != n}
        if wrong:
            raise RunError(f"evidence needs one row per input ({n}); got {wrong}")
        if len(set(self.input_ids.tolist())) < n:
            raise RunError("evidence needs input ids that differ, to pair runs by; some occur twice")

    def rows_of(self, input_ids: Iterable[str]) -> NDArray[np.int64]:
        """Positions of the inputs with these ids."""
        row_of = {name: row for row, name in enumerate(self.input_ids.tolist())}
        return np.array([row_of[name] for name in input_ids], dtype=np.int64)

    def part(self, rows: NDArray[np.int64]) -> Self:
        """The evidence of these inputs.

        Args:
            rows: int64, positions of the inputs, each at most once.
        """
        parts: dict[str, Any] = {
            name: whole[rows] if isinstance(whole, np.ndarray) else whole.part(rows) for name, whole in self._parts()
        }
        return replace(self, **parts)

    def _parts(self) -> Iterator[tuple[str, Any]]:
        """Yield the existing parts that have a row for each input, by name."""
        for name in _PER_INPUT:
            if (part := getattr(self, name)) is not None:
                yield name, part

    def seen(self, stage: Stage) -> Self | None:
        """Evidence of the changes by one stage of a deployment; None if no approximate index was searched.

        Args:
            stage: "codes", from the reference to exhaustive search of the codes; or "index", from there to the answers
                of the index.
        """
        exact = self.exhaustive_top
        if exact is None:
            return None
        if stage == "codes":
            return replace(self, candidate_top=exact, exhaustive_top=None)
        first, second = (replace(top, reference_scores=top.candidate_scores) for top in (exact, self.candidate_top))
        zero = np.zeros(self.n_inputs, dtype=np.float32)
        made = replace(self, reference_top=first, candidate_top=second, exhaustive_top=None, noise=None)
        return replace(made, delta_min=zero, delta_max=zero)

    @property
    def n_inputs(self) -> int:
        """Number of inputs."""
        return len(self.input_ids)

    @property
    def cut_short(self) -> bool:
        """Whether some input has, or may have, more items than stored ranks."""
        listed = self.deltas == "listed" or (self.deltas == "none" and not self.unranked)
        return listed or int(self.n_items.max(initial=0)) > self.depth

    @property
    def unranked(self) -> bool:
        """Whether an input has one answer, such as a text, in place of a ranking."""
        return self.deltas == "none" and self.depth == 1

    @property
    def exact(self) -> bool:
        """Whether the extremes of delta are over all items, not only over known ones."""
        return self.deltas == "all"

    @property
    def depth(self) -> int:
        """The number of stored ranks, k."""
        return int(self.reference_top.items.shape[1])


_PER_INPUT = [field.name for field in fields(Evidence) if field.name not in {"item_ids", "deltas"}]

Result = TypeVar("Result")
Options = ParamSpec("Options")


def once(
    function: Callable[Concatenate[Evidence, Options], Result],
) -> Callable[Concatenate[Evidence, Options], Result]:
    """Cache the results of a function of evidence for as long as the evidence lives.

    Arrays in the results become read-only.
    """
    kept: WeakKeyDictionary[Evidence, dict[Any, Result]] = WeakKeyDictionary()

    @wraps(function)
    def cached(evidence: Evidence, /, *args: Options.args, **options: Options.kwargs) -> Result:
        of = kept.setdefault(evidence, {})
        key = (*args, *options.items())
        if key not in of:
            made = of[key] = function(evidence, *args, **options)
            for array in made if isinstance(made, tuple) else (made,):
                if isinstance(array, np.ndarray):
                    array.setflags(write=False)
        return of[key]

    return cached

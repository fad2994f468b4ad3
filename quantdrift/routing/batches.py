"""Batches of any kind: how long they are, and some of their rows.

Tensors are told by what they have, so that nothing here imports a framework.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.confidence import as_array
from quantdrift.errors import DataError, ScoreError

__all__ = ["as_scores", "batch_length", "batch_rows"]


def as_scores(values: Any) -> NDArray[Any]:
    """A matrix of scores, of an array, a nested list or a tensor on any device.

    Raises:
        ScoreError: it has not two axes, or numpy cannot read it.
    """
    scores = as_array(values)
    if scores.ndim != 2:  # noqa: PLR2004 -- a matrix
        raise ScoreError(
            f"expected scores of shape [n_inputs, n_items]; got shape {scores.shape}. One input "
            "is a batch of one: scores[None]"
        )
    return scores


def batch_length(batch: Any) -> int:
    """How many inputs a batch has.

    Args:
        batch: a sequence of inputs, an array or tensor with inputs along the first axis, a table
            with `iloc`, or a mapping of equally long arrays, tensors or sequences (input_ids,
            attention_mask and so on).

    Raises:
        DataError: a single text, something without a length (a generator, a single number), an
            empty mapping, or columns of different lengths.
    """
    if isinstance(batch, str | bytes):
        raise DataError("expected a batch of inputs; got a single text. Pass a list: [text]")
    if not isinstance(batch, Mapping):
        length = _length(batch)
        if length is None:
            raise DataError(
                "expected a batch of inputs that has a length and whose rows can be picked; got "
                f"{type(batch).__name__}. Make a list of it: list(batch), or [input] of one input"
            )
        return length
    lengths = {str(name): _length(column) for name, column in batch.items()}
    different = set(lengths.values())
    if len(different) != 1 or None in different:
        raise DataError(
            "expected a mapping of equally long columns, one row per input; got lengths "
            f"{lengths}. Settings that are not per input belong into the callable"
        )
    return int(next(iter(lengths.values())) or 0)


def _length(values: Any) -> int | None:
    if isinstance(values, str | bytes):
        return None
    try:
        return len(values)
    except TypeError:  # a generator, a number, an array without axes
        return None


def batch_rows(batch: Any, rows: NDArray[np.int64]) -> Any:
    """Some inputs of a batch, in the order given, as a batch of the same kind.

    An array or tensor is indexed along its first axis (a tensor stays on its device), a table by
    `iloc`, a Dataset of Hugging Face by `select`, a mapping column by column, as a dict. Any other
    sequence becomes a list.

    Args:
        batch: as of `batch_length`.
        rows: int64, positions of inputs.

    Raises:
        DataError: its rows cannot be picked.
    """
    if isinstance(batch, Mapping):
        return {name: batch_rows(column, rows) for name, column in batch.items()}
    if hasattr(batch, "iloc"):
        return batch.iloc[rows]
    if hasattr(batch, "select") and hasattr(batch, "features"):  # a Dataset; other tables' select
        return batch.select(rows.tolist())  # is of columns
    if hasattr(batch, "shape") and hasattr(batch, "dtype"):
        return batch[rows]
    listed = hasattr(batch, "__getitem__") and not hasattr(batch, "shape")
    if isinstance(batch, Sequence) or listed:
        return [batch[row] for row in rows.tolist()]
    raise DataError(
        "expected a batch as a sequence, array, tensor, table or mapping of those; got "
        f"{type(batch).__name__}, whose rows cannot be picked"
    )

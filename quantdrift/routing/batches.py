"""Batches of any kind: how long they are, and some of their rows.

Tensors are told by what they can do, so that nothing here imports a framework.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.errors import DataError, ScoreError

__all__ = ["as_array", "as_scores", "batch_length", "batch_rows"]


def as_array(values: Any) -> NDArray[Any]:
    """An array of what a model returned: array, nested list, or a tensor on any device.

    A result with `logits` (as of transformers) stands for these.
    """
    values = getattr(values, "logits", values)
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        try:
            return np.asarray(values)
        except TypeError:  # numpy has no bfloat16; float32 holds every value of it
            return np.asarray(values.float())
    return np.asarray(values)


def as_scores(values: Any) -> NDArray[Any]:
    """The same as a matrix of scores.

    Raises:
        ScoreError: it has not two axes.
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
        DataError: a single text, an empty mapping, or columns of different lengths.
    """
    if isinstance(batch, str | bytes):
        raise DataError("expected a batch of inputs; got a single text. Pass a list: [text]")
    if not isinstance(batch, Mapping):
        return len(batch)
    lengths = {
        str(name): len(column) if hasattr(column, "__len__") else None
        for name, column in batch.items()
    }
    different = set(lengths.values())
    if len(different) != 1 or None in different:
        raise DataError(
            "expected a mapping of equally long columns, one row per input; got lengths "
            f"{lengths}. Settings that are not per input belong into the callable"
        )
    return int(next(iter(batch.values())).__len__())


def batch_rows(batch: Any, rows: NDArray[np.int64]) -> Any:
    """Some inputs of a batch, in the order given, as a batch of the same kind.

    An array or tensor is indexed along its first axis (a tensor stays on its device), a table by
    `iloc`, a mapping column by column; a mapping becomes a dict, except that the subclasses of
    UserDict (the BatchEncoding of transformers) stay what they are. Any other sequence becomes a
    list.

    Args:
        batch: as of `batch_length`.
        rows: int64, positions of inputs.
    """
    if isinstance(batch, Mapping):
        chosen = {name: batch_rows(column, rows) for name, column in batch.items()}
        return type(batch)(chosen) if isinstance(batch, UserDict) else chosen
    if hasattr(batch, "iloc"):
        return batch.iloc[rows]
    if hasattr(batch, "shape"):
        return batch[rows]
    if isinstance(batch, Sequence) or hasattr(batch, "__getitem__"):
        return [batch[row] for row in rows.tolist()]
    raise DataError(
        "expected a batch as a sequence, array, tensor, table or mapping of those; got "
        f"{type(batch).__name__}, whose rows cannot be picked"
    )

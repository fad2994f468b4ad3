"""How many weights share a scale: one output channel, or a group of its input weights."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["group_absmax", "n_groups", "spread"]


def n_groups(in_features: int, group_size: int | None) -> int:
    """Number of groups in a row; the last may be shorter.

    >>> n_groups(384, 128), n_groups(100, 64), n_groups(384, None)
    (3, 2, 1)
    """
    return 1 if group_size is None else -(-in_features // group_size)


def group_absmax(weight: Tensor, group_size: int | None) -> Tensor:
    """Largest absolute weight of every group.

    Args:
        weight: [out_features, in_features].
        group_size: weights per group along in_features, None for one group per output channel.

    Returns:
        [out_features, n_groups], at least 0.
    """
    in_features = weight.shape[1]
    size = in_features if group_size is None else group_size
    missing = n_groups(in_features, group_size) * size - in_features
    padded = torch.nn.functional.pad(weight.abs(), (0, missing))  # zeros never are the maximum
    return padded.view(len(weight), -1, size).amax(dim=2)


def spread(per_group: Tensor, in_features: int, group_size: int | None) -> Tensor:
    """Repeat a value of every group over the group's weights.

    Args:
        per_group: [out_features, n_groups].
        in_features: number of weights in a row.
        group_size: as in `group_absmax`.

    Returns:
        [out_features, in_features].
    """
    size = in_features if group_size is None else group_size
    return per_group.repeat_interleave(size, dim=1)[:, :in_features]

"""An allocation: which layer gets how many bits, how that was found, and for which weights."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise

from quantdrift import __version__
from quantdrift.errors import DataError
from quantdrift.widths import POSSIBLE_BITS

__all__ = ["AllocatedLayer", "Allocation", "SettingValue", "digest"]

SettingValue = str | int | float | bool | None
"""Value of a criterion's own setting."""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedLayer:
    """A layer and its width.

    Attributes:
        name: as `find_linears` gives it.
        shape: out_features, in_features.
        width: bits per weight; 16 says that it is not quantized.
        loss: loss at each width offered; None for a layer that was left out of the allocation and
            is kept at its width.
        unit: layers of the same number share a width; None, as for layers left out, ties to none.
    """

    name: str
    shape: tuple[int, int]
    width: int
    loss: tuple[float, ...] | None = None
    unit: int | None = None

    @property
    def n_weights(self) -> int:
        """How many weights it has."""
        return self.shape[0] * self.shape[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A width for every linear layer of a model, and how it was found.

    Attributes:
        model: name of the model.
        fingerprint: of its weights, see `weights_fingerprint`.
        group_size: input weights that share a scale, None for a whole output channel.
        quantizer: the one it was made for; None if for any.
        criterion: by which layers were scored.
        settings: the criterion's own settings.
        seed: of what was drawn.
        dataset: name of the calibration data; None if the criterion looked at none.
        data_digest: of the data.
        input_ids: the calibration inputs.
        widths: bits per weight that were offered, ascending.
        budget: bits per weight there were, over the layers that were not left out.
        method: of the solver.
        status: how the solver ended.
        bound: no widths within the budget have a smaller loss; None where that does not hold.
        layers: all linear layers, in the model's order.
        n_others: parameters that belong to none of them: embeddings, norms, biases.
        others_bits: bits that these are stored in, with the scales of all layers.
        edited: whether somebody changed widths by hand.
        version: of the quantdrift that made it.
        date: when, as ISO 8601.

    Raises:
        DataError: the values contradict each other; says which and how.
    """

    model: str
    fingerprint: str
    group_size: int | None
    criterion: str
    widths: tuple[int, ...]
    budget: float
    method: str
    status: str
    bound: float | None
    layers: tuple[AllocatedLayer, ...]
    n_others: int
    others_bits: int
    quantizer: str | None = None
    settings: Mapping[str, SettingValue] = field(default_factory=dict)
    seed: int = 0
    dataset: str | None = None
    data_digest: str | None = None
    input_ids: tuple[str, ...] = ()
    edited: bool = False
    version: str = __version__
    date: str = field(default_factory=_now)

    def __post_init__(self) -> None:
        _check_layers(self.layers, self.widths)
        if not self.widths[0] <= self.budget <= self.widths[-1]:
            raise DataError(
                f"budget: expected {self.widths[0]} to {self.widths[-1]} bits per weight, as the "
                f"widths are, got {self.budget}"
            )
        spent = self.bits_per_weight
        if spent is not None and spent > self.budget and not self.edited:
            raise DataError(
                f"the layers take {spent} bits per weight; expected at most the budget of "
                f"{self.budget}"
            )

    @property
    def width_of(self) -> dict[str, int]:
        """Width by name of layer."""
        return {layer.name: layer.width for layer in self.layers}

    @property
    def bits_per_weight(self) -> float | None:
        """Average over the weights of the layers that were not left out; None if all were."""
        allocated = [layer for layer in self.layers if layer.loss is not None]
        return _average(allocated) if allocated else None

    @property
    def linear_bits(self) -> float:
        """Average over the weights of all layers; 16 for those that are not quantized."""
        return _average(self.layers)

    @property
    def all_parameters_bits(self) -> float:
        """Average over all parameters of the model, scales counted among the bits."""
        bits = sum(layer.n_weights * layer.width for layer in self.layers) + self.others_bits
        return bits / (sum(layer.n_weights for layer in self.layers) + self.n_others)

    @property
    def loss(self) -> float:
        """Sum of the losses at the widths that the layers have."""
        return math.fsum(
            layer.loss[self.widths.index(layer.width)]
            for layer in self.layers
            if layer.loss is not None
        )

    @property
    def gap(self) -> float | None:
        """(loss - bound) / loss, 0 where nothing is lost; None without a bound."""
        if self.bound is None:
            return None
        return (self.loss - self.bound) / self.loss if self.loss else 0.0


def digest(allocation: Allocation) -> str:
    """A digest of the widths by name of layer, and of nothing else.

    Returns:
        32 hex digits; the order of the layers has no part in it.
    """
    text = json.dumps(sorted(allocation.width_of.items()), separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _check_layers(layers: Sequence[AllocatedLayer], widths: tuple[int, ...]) -> None:
    if not layers:
        raise DataError("layers: expected at least one")
    possible = sorted(POSSIBLE_BITS)
    if not widths or list(widths) != [width for width in possible if width in widths]:
        raise DataError(f"widths: expected {possible} or some of them in this order, got {widths}")
    seen: set[str] = set()
    tied: dict[int, AllocatedLayer] = {}
    for layer in layers:
        where = f"layer {layer.name}"
        if layer.name in seen:
            raise DataError(f"{where} is there twice; expected each layer once")
        seen.add(layer.name)
        if layer.loss is None and layer.width not in possible:
            raise DataError(f"{where}: expected a width of {_or(possible)}, got {layer.width}")
        if layer.loss is not None:
            if layer.width not in widths:
                raise DataError(
                    f"{where}: expected one of the widths offered, {_or(widths)}, got "
                    f"{layer.width}. For another, give the layer a loss and a unit of null: it is "
                    "then left out of the allocation and kept at its width."
                )
            falls = all(one >= other for one, other in pairwise(layer.loss))
            if len(layer.loss) != len(widths) or not falls or not 0 <= layer.loss[-1] < math.inf:
                raise DataError(
                    f"{where}: expected a loss for each of {_or(widths)}, 0 or more and not rising "
                    f"with the width, got {', '.join(map(str, layer.loss))}"
                )
        if layer.unit is not None:
            other = tied.setdefault(layer.unit, layer)
            if other.width != layer.width:
                raise DataError(
                    f"{where} is tied to {other.name} (unit {layer.unit}), which has a width of "
                    f"{other.width}, not {layer.width}; expected one width for both, or units of "
                    "their own"
                )


def _average(layers: Sequence[AllocatedLayer]) -> float:
    n_weights = sum(layer.n_weights for layer in layers)
    return sum(layer.n_weights * layer.width for layer in layers) / n_weights


def _or(numbers: Sequence[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} or {last}" if first else last

"""An allocation: which layer gets how many bits, how that was found, and for which weights."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from quantdrift import __version__
from quantdrift.errors import DataError, QuantDriftError, SpecError
from quantdrift.records import AS_LIST, Record, sealed
from quantdrift.spec import DEFAULT_QUANTIZER, POSSIBLE_BITS, QUANTIZERS

Text = Annotated[str, Field(min_length=1)]
Whole = Annotated[int, Field(ge=0, lt=2**63)]
Some = Annotated[int, Field(ge=1, lt=2**63)]
Number = Annotated[float, Field(ge=0)]

_PLACES = {
    "version": "quantdrift",
    "model": "model.name",
    "fingerprint": "model.fingerprint",
    "group_size": "scheme.group_size",
    "quantizer": "scheme.quantizer",
    "criterion": "criterion.name",
    "settings": "criterion.settings",
    "seed": "criterion.seed",
    "dataset": "criterion.dataset",
    "data_digest": "criterion.data_digest",
    "input_ids": "criterion.input_ids",
    "method": "solver.method",
    "status": "solver.status",
    "bound": "solver.bound",
    "n_others": "others.n_parameters",
    "others_bits": "others.bits",
}
"""Where in the file a field stands that is not at its top under its own name."""
_FOLLOWS: dict[str, Callable[[Allocation], Any]] = {
    "criterion.n_inputs": lambda allocation: len(allocation.input_ids),
    "solver.loss": lambda allocation: allocation.loss,
    "solver.gap": lambda allocation: allocation.gap,
    "bits_per_weight.allocated": lambda allocation: allocation.bits_per_weight,
    "bits_per_weight.linear": lambda allocation: allocation.linear_bits,
    "bits_per_weight.all_parameters": lambda allocation: allocation.all_parameters_bits,
}
"""What stands there, too, and follows from the fields."""


class AllocatedLayer(BaseModel):
    """A layer and its width.

    Attributes:
        name: as `find_linears` gives it.
        shape: out_features, in_features.
        width: bits per weight; 16 says that it is not quantized.
        loss: loss at each width offered; None for a layer that was left out of the allocation and is kept at its
            width.
        unit: layers of the same number share a width; None, as for layers left out, ties to none.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    name: Text
    shape: Annotated[tuple[Some, Some], AS_LIST]
    width: Some
    loss: Annotated[tuple[Number, ...], AS_LIST] | None = None
    unit: Whole | None = None

    @property
    def n_weights(self) -> int:
        """How many weights it has."""
        return self.shape[0] * self.shape[1]


class Allocation(Record):
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

    FORMAT: ClassVar[str] = "quantdrift-allocation"
    VERSION: ClassVar[int] = 2
    VERSION_KEY: ClassVar[str] = "version"
    WHAT: ClassVar[str] = "an allocation"
    MAKE: ClassVar[str] = 'quantdrift allocate (or, if you changed its widths, set "edited" to true)'
    ERROR: ClassVar[type[QuantDriftError]] = DataError

    version: Text = __version__
    date: Text = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    edited: bool = False
    model: Text
    fingerprint: Text
    group_size: Some | None
    quantizer: Text | None = None
    criterion: Text
    settings: Mapping[str, str | int | float | bool | None] = {}
    seed: Whole = 0
    dataset: Text | None = None
    data_digest: Text | None = None
    input_ids: Annotated[tuple[str, ...], AS_LIST] = ()
    widths: Annotated[tuple[int, ...], AS_LIST]
    budget: Number
    method: Text
    status: Text
    bound: Number | None
    n_others: Whole
    others_bits: Whole
    layers: Annotated[tuple[AllocatedLayer, ...], AS_LIST]

    @field_validator("widths")
    @classmethod
    def _ascending(cls, widths: tuple[int, ...]) -> tuple[int, ...]:
        if not widths or list(widths) != sorted(POSSIBLE_BITS & set(widths)):
            raise ValueError(f"expected {sorted(POSSIBLE_BITS)} or some of them in this order, got {widths}")
        return widths

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for problem in self._contradictions():
            raise DataError(problem)
        return self

    def _contradictions(self) -> Iterator[str]:
        if not self.layers:
            yield "layers: expected at least one"
        if not self.widths[0] <= self.budget <= self.widths[-1]:
            yield f"budget: expected {self.widths[0]} to {self.widths[-1]} bits per weight, got {self.budget}"
        seen: set[str] = set()
        tied: dict[int, AllocatedLayer] = {}
        for layer in self.layers:
            where, loss = f"layer {layer.name}", layer.loss
            if layer.name in seen:
                yield f"{where} is there twice; expected each layer once"
            seen.add(layer.name)
            offered = sorted(POSSIBLE_BITS) if loss is None else list(self.widths)
            if layer.width not in offered:
                yield (
                    f"{where}: expected one of the widths {', '.join(map(str, offered))}, got {layer.width}. For a "
                    "width that was not offered, give the layer a loss and a unit of null: it is left out then"
                )
            falls = loss is None or all(one >= other for one, other in pairwise(loss))
            if not falls or (loss is not None and len(loss) != len(self.widths)):
                yield f"{where}: expected a loss for each of {self.widths}, not rising with the width, got {loss}"
            if layer.unit is not None and (other := tied.setdefault(layer.unit, layer)).width != layer.width:
                yield (
                    f"{where} is tied to {other.name} (unit {layer.unit}), which has a width of {other.width}, not "
                    f"{layer.width}; expected one width for both, or units of their own"
                )
        spent = self.bits_per_weight
        if spent is not None and spent > self.budget and not self.edited:
            yield f"the layers take {spent} bits per weight; expected at most the budget of {self.budget}"

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
        return math.fsum(layer.loss[self.widths.index(layer.width)] for layer in self.layers if layer.loss is not None)

    @property
    def gap(self) -> float | None:
        """(loss - bound) / loss, 0 where nothing is lost; None without a bound."""
        if self.bound is None:
            return None
        return (self.loss - self.bound) / self.loss if self.loss else 0.0

    # --- the file: one layer a line

    @classmethod
    def is_sealed(cls, content: Mapping[str, Any]) -> bool:
        """Of one that was changed by hand, the digest is of what it was before."""
        return content.get("edited") is not True

    @classmethod
    def checked(cls, content: Mapping[str, Any], path: Path) -> Self:
        """The fields of a file; what follows from them is computed anew, and there is no bound if it was edited."""
        names = {place: name for name, place in _PLACES.items()}
        fields: dict[str, Any] = {}
        for key, value in content.items():
            parts = {f"{key}.{part}": value[part] for part in value} if isinstance(value, dict) else {key: value}
            fields |= {names.get(place, place): parts[place] for place in parts if place not in _FOLLOWS}
        widths, layers = fields.get("widths"), fields.get("layers")
        if isinstance(widths, list) and isinstance(layers, list):
            fields["layers"] = [_layer_of(layer, widths) for layer in layers]
        allocation = super().checked(fields, path)
        return allocation.model_copy(update={"bound": None}) if allocation.edited else allocation

    def content(self) -> dict[str, Any]:
        """The JSON object in the file, sealed."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        fields |= {place: value_of(self) for place, value_of in _FOLLOWS.items()}
        fields["layers"] = [_content_of(layer, self.widths) for layer in self.layers]
        found: dict[str, Any] = {"format": self.FORMAT, self.VERSION_KEY: self.VERSION}
        for name, value in fields.items():
            part, _, key = _PLACES.get(name, name).partition(".")
            if key:
                found.setdefault(part, {})[key] = value
            else:
                found[part] = value
        return sealed(found)

    def text(self) -> str:
        """The file: a line for each part, and for each layer."""
        lines = []
        for key, value in self.content().items():
            text = _json(value)
            if key == "layers":
                text = "[\n" + ",\n".join(f"    {_json(layer)}" for layer in value) + "\n  ]"
            lines.append(f"  {_json(key)}: {text}")
        return "{\n" + ",\n".join(lines) + "\n}\n"


def _layer_of(content: Any, widths: Sequence[int]) -> Any:
    """A layer's fields: a loss by width becomes a sequence."""
    if not isinstance(content, dict):
        return content
    fields = {key: value for key, value in content.items() if key != "n_weights"}
    loss = fields.get("loss")
    if isinstance(loss, dict) and set(loss) == {str(width) for width in widths}:
        fields["loss"] = [loss[str(width)] for width in widths]
    return fields


def _content_of(layer: AllocatedLayer, widths: Sequence[int]) -> dict[str, Any]:
    loss = layer.loss and {str(width): loss for width, loss in zip(widths, layer.loss, strict=True)}
    return {**layer.model_dump(), "n_weights": layer.n_weights, "loss": loss}


def _json(value: object) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def _average(layers: Sequence[AllocatedLayer]) -> float:
    return sum(layer.n_weights * layer.width for layer in layers) / sum(layer.n_weights for layer in layers)


def digest(allocation: Allocation) -> str:
    """A digest of the widths by name of layer, and of nothing else: 32 hex digits."""
    text = json.dumps(sorted(allocation.width_of.items()), separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


# --- whether a stored allocation is one for the model at hand, and the scheme that it stands for ------


def check_fits(
    allocation: Allocation, names: Sequence[str], n_weights: Sequence[int] | NDArray[np.int64], fingerprint: str
) -> None:
    """Check that an allocation is one for a model: the same layers, and the same weights."""
    given = {layer.name: layer.n_weights for layer in allocation.layers}
    there = {name: int(n) for name, n in zip(names, n_weights, strict=True)}
    of = f"the allocation of {allocation.model}"
    for problem, layers in (
        ("has layers that this model has not", [name for name in given if name not in there]),
        ("says nothing of some of this model's layers", [name for name in there if name not in given]),
        ("has other numbers of weights in some layers", [name for name in given if given[name] != there.get(name)]),
    ):
        if layers:
            more = f" and {len(layers) - 3} more" if len(layers) > 3 else ""  # noqa: PLR2004 -- as many are shown
            raise DataError(f"{of} {problem}: {', '.join(layers[:3])}{more}; expected one made for this model")
    if fingerprint != allocation.fingerprint:
        raise DataError(
            f"{of} was measured on other weights (fingerprint {allocation.fingerprint}, this model's is "
            f"{fingerprint}): which layers need bits may differ. Measure again: quantdrift allocate"
        )


def can_be_named(file: str) -> bool:
    """Whether a spec can hold this name of a file."""
    plain = file.isprintable() and not any(c.isspace() or c in "+@" for c in file)
    return plain and file.encode("utf-8", "replace").decode() == file


def scheme_of(file: str, rest: str) -> str:
    """A scheme, written in full, whose widths are those of a file.

    >>> scheme_of("allocation.json", "-gptq+query")  # doctest: +SKIP
    'W3.5-g128-gptq+gap+allocation=allocation.json+query'
    """
    if not can_be_named(file):
        problem = f"{file}: an allocation in a spec has a name without spaces, '+' and '@'; rename it"
        raise SpecError(problem, text=file, start=0, end=len(file))
    allocation = Allocation.read(Path(file).expanduser())
    parts, plus, options = rest.partition("+")
    named = any(part in QUANTIZERS for part in parts.split("-"))
    quantizer = "" if named else f"-{allocation.quantizer or DEFAULT_QUANTIZER}"
    granularity = "channel" if allocation.group_size is None else f"g{allocation.group_size}"
    low = int(allocation.budget)
    by_default = allocation.budget > low and allocation.widths == (low, low + 1)
    widths = "" if by_default else f"+widths={','.join(map(str, allocation.widths))}"
    return (
        f"W{str(allocation.budget).removesuffix('.0')}-{granularity}{parts}{quantizer}+{allocation.criterion}"
        f"+allocation={file}{widths}{plus}{options}"
    )

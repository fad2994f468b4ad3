"""An allocation: the width of each layer, the way it was chosen, and the weights it is for."""

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AliasPath, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from quantdrift import __version__
from quantdrift.base.errors import DataError, SpecError
from quantdrift.base.records import AS_LIST, Amount, Bits, Record, Some, Whole, bytes_digest, with_checksum
from quantdrift.base.text import some
from quantdrift.kinds.quantizer import QUANTIZERS
from quantdrift.scheme import DEFAULT_QUANTIZER, POSSIBLE_BITS

Text = Annotated[str, Field(min_length=1)]


def _by_width(loss: Any) -> Any:
    """The losses as a list; the file has them by width."""
    return list(loss.values()) if isinstance(loss, dict) else loss


class AllocatedLayer(BaseModel):
    """A layer and its width.

    Attributes:
        name: its name in `find_linears`.
        shape: out_features, in_features.
        width: bits per weight; 16 for a layer that is not quantized.
        loss: loss at each offered width; None for a layer that is left out of the allocation and keeps its width.
        unit: layers with the same number share a width; None for a layer that shares it with none.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", allow_inf_nan=False)

    name: Text
    shape: Annotated[tuple[Some, Some], AS_LIST]
    width: Some
    loss: Annotated[tuple[Amount, ...] | None, AS_LIST, BeforeValidator(_by_width)] = None
    unit: Whole | None = None

    @property
    def n_weights(self) -> int:
        """The number of weights."""
        return self.shape[0] * self.shape[1]


class Allocation(Record):
    """The widths of all linear layers of a model, and the way they were chosen.

    Attributes:
        model: name of the model.
        fingerprint: `weights_fingerprint` of its weights.
        group_size: input weights that share a scale, None for a whole output channel.
        quantizer: the quantizer it was made for; None for any.
        criterion: the criterion that gave the losses.
        seed: seed of random draws.
        dataset: name of the calibration data; None if the criterion needs none.
        data_digest: digest of these data.
        input_ids: ids of the calibration inputs.
        widths: offered bits per weight, ascending.
        budget: average bits per weight that were available to the layers that are not left out.
        method: method of the solver.
        status: status of the solver at its end.
        bound: a lower bound of the loss of any widths within the budget; None if there is none.
        layers: all linear layers, in the model's order.
        n_others: number of other parameters: embeddings, norms, biases.
        others_bits: bits of these, plus the scales of all layers.
        edited: whether widths were changed by hand.
        version: version of the quantdrift that made it.
        date: time it was made, as ISO 8601.

    Raises:
        DataError: the values contradict each other; says which and how.
    """

    FORMAT, VERSION, VERSION_KEY = "quantdrift-allocation", 2, "version"
    WHAT, MAKE = "an allocation", "quantdrift allocate"
    IF_CHANGED = ' (or, if you changed its widths, set "edited" to true)'
    ERROR = DataError

    model_config = ConfigDict(extra="ignore", populate_by_name=True)  # the file also has values that follow from fields

    version: Text = Field(default=__version__, validation_alias="quantdrift")
    date: Text = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    edited: bool = False
    model: Text = Field(validation_alias=AliasPath("model", "name"))
    fingerprint: Text = Field(validation_alias=AliasPath("model", "fingerprint"))
    group_size: Some | None = Field(validation_alias=AliasPath("scheme", "group_size"))
    quantizer: Text | None = Field(default=None, validation_alias=AliasPath("scheme", "quantizer"))
    criterion: Text = Field(validation_alias=AliasPath("criterion", "name"))
    seed: Whole = Field(default=0, validation_alias=AliasPath("criterion", "seed"))
    dataset: Text | None = Field(default=None, validation_alias=AliasPath("criterion", "dataset"))
    data_digest: Text | None = Field(default=None, validation_alias=AliasPath("criterion", "data_digest"))
    input_ids: Annotated[tuple[str, ...], AS_LIST] = Field(
        default=(), validation_alias=AliasPath("criterion", "input_ids")
    )
    widths: Annotated[tuple[Some, ...], AS_LIST]
    budget: Bits
    method: Text = Field(validation_alias=AliasPath("solver", "method"))
    status: Text = Field(validation_alias=AliasPath("solver", "status"))
    bound: Amount | None = Field(validation_alias=AliasPath("solver", "bound"))
    n_others: Whole = Field(validation_alias=AliasPath("others", "n_parameters"))
    others_bits: Whole = Field(validation_alias=AliasPath("others", "bits"))
    layers: Annotated[tuple[AllocatedLayer, ...], AS_LIST] = Field(min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.widths or list(self.widths) != sorted(POSSIBLE_BITS & set(self.widths)):
            raise DataError(f"widths: expected some of {sorted(POSSIBLE_BITS)} in this order, got {self.widths}")
        if not self.widths[0] <= self.budget <= self.widths[-1]:
            raise DataError(
                f"budget: expected {self.widths[0]} to {self.widths[-1]} bits per weight, got {self.budget}"
            )
        for layer in self.layers:
            offered = POSSIBLE_BITS if layer.loss is None else self.widths
            if layer.width not in offered:
                raise DataError(
                    f"layer {layer.name}: expected one of the widths {', '.join(map(str, sorted(offered)))}, got "
                    f"{layer.width}. For a width that was not offered, give the layer a loss of null"
                )
            if layer.loss is not None and len(layer.loss) != len(self.widths):
                raise DataError(f"layer {layer.name}: expected a loss for each of {self.widths}, got {layer.loss}")
        return self

    @property
    def width_of(self) -> dict[str, int]:
        """Width by name of layer."""
        return {layer.name: layer.width for layer in self.layers}

    @property
    def bits_per_weight(self) -> float | None:
        """Average over the weights of the layers that are not left out; None if all are."""
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
        """Sum of the losses at the layers' widths."""
        return math.fsum(layer.loss[self.widths.index(layer.width)] for layer in self.layers if layer.loss is not None)

    @property
    def gap(self) -> float | None:
        """(loss - bound) / loss, 0 for a loss of 0; None without a bound."""
        if self.bound is None:
            return None
        return (self.loss - self.bound) / self.loss if self.loss else 0.0

    # --- the file: one layer a line

    @classmethod
    def has_checksum(cls, content: Mapping[str, Any]) -> bool:
        """Whether the digest has to match: not in a file that was changed by hand."""
        return content.get("edited") is not True

    def content(self) -> dict[str, Any]:
        """The JSON object in the file, with its checksum: the fields, and values that follow from them."""
        parts: dict[str, Any] = self.head()
        for name, field in type(self).model_fields.items():
            alias, value = field.validation_alias, getattr(self, name)
            if isinstance(alias, AliasPath):
                parts.setdefault(str(alias.path[0]), {})[alias.path[1]] = value
            else:
                parts[str(alias or name)] = value
        parts["criterion"] |= {"settings": {}, "n_inputs": len(self.input_ids)}
        parts["solver"] |= {"loss": self.loss, "gap": self.gap}
        parts["bits_per_weight"] = {
            "allocated": self.bits_per_weight,
            "linear": self.linear_bits,
            "all_parameters": self.all_parameters_bits,
        }
        widths = [str(width) for width in self.widths]
        parts["layers"] = [
            {
                **layer.model_dump(),
                "n_weights": layer.n_weights,
                "loss": layer.loss and dict(zip(widths, layer.loss, strict=True)),
            }
            for layer in self.layers
        ]
        return with_checksum(parts)

    def text(self) -> str:
        """The text of the file, with a line for each part and for each layer."""
        lines = []
        for key, value in self.content().items():
            text = _json(value)
            if key == "layers":
                text = "[\n" + ",\n".join(f"    {_json(layer)}" for layer in value) + "\n  ]"
            lines.append(f"  {_json(key)}: {text}")
        return "{\n" + ",\n".join(lines) + "\n}\n"


def _json(value: object) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def _average(layers: Sequence[AllocatedLayer]) -> float:
    return sum(layer.n_weights * layer.width for layer in layers) / sum(layer.n_weights for layer in layers)


def digest(allocation: Allocation) -> str:
    """A digest of only the widths by name of layer, 32 hex digits."""
    text = json.dumps(sorted(allocation.width_of.items()), separators=(",", ":"))
    return bytes_digest(text.encode(), size=16)


# --- checking an allocation against a model, and its scheme ---------------------------------------


def check_fits(allocation: Allocation, names: Sequence[str], fingerprint: str) -> None:
    """Refuse an allocation for a model with other layers or other weights."""
    of = f"the allocation of {allocation.model}"
    if other := sorted(allocation.width_of.keys() ^ set(names)):
        raise DataError(f"{of} and this model differ in their layers: {some(other)}; expected one made for this model")
    if fingerprint != allocation.fingerprint:
        raise DataError(
            f"{of} was measured on other weights (fingerprint {allocation.fingerprint}, this model's is "
            f"{fingerprint}): which layers need bits may differ. Measure again: quantdrift allocate"
        )


def nameable(file: str) -> bool:
    """Whether a file's name can be part of a spec."""
    plain = file.isprintable() and not any(c.isspace() or c in "+@" for c in file)
    return plain and file.encode("utf-8", "replace").decode() == file


def scheme_of(file: str, rest: str) -> str:
    """The full scheme that an allocation's file with further parts stands for.

    >>> scheme_of("allocation.json", "-gptq+query")  # doctest: +SKIP
    'W3.5-g128-gptq+gap+allocation=allocation.json+query'
    """
    if not nameable(file):
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

"""An allocation: which layer gets how many bits, how that was found, and for which weights."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift import __version__
from quantdrift.errors import DataError, SpecError, nearest
from quantdrift.records import DIGEST, check_seal, read_json, refuse_other, sealed, write_text
from quantdrift.spec import DEFAULT_QUANTIZER, POSSIBLE_BITS, QUANTIZERS

# --- An allocation: which layer gets how many bits, how that was found, and for which weights -----

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
            raise DataError(f"the layers take {spent} bits per weight; expected at most the budget of {self.budget}")

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


# --- What allocation.json consists of, field by field, and what may stand in each -----------------

_Kind = tuple[str, Callable[[Any], bool]]
"""What is expected, in words, and whether something is that."""
_LARGEST = 2**63 - 1
_SHOWN = 60
"""Characters of what came."""


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST


def _is_number(value: object) -> bool:
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def _is_list(value: object, of: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(of(part) for part in value)


def _is_date(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(datetime.fromisoformat(value))
    except ValueError:
        return False


def _or_null(kind: _Kind) -> _Kind:
    return f"{kind[0]} or null", lambda value: value is None or kind[1](value)


_TEXT: _Kind = ("a text", lambda value: isinstance(value, str) and value != "")
_WHOLE: _Kind = ("a whole number, 0 or more", lambda value: _is_whole(value) and value >= 0)
_SOME: _Kind = ("a whole number, 1 or more", lambda value: _is_whole(value) and value >= 1)
_NUMBER: _Kind = ("a number, 0 or more", lambda value: _is_number(value) and value >= 0)
_OBJECT: _Kind = ("an object", lambda value: isinstance(value, dict))
_SCALARS: _Kind = (
    "an object of texts, numbers, true, false or null",
    lambda value: (
        isinstance(value, dict)
        and all(part is None or isinstance(part, str | bool) or _is_number(part) for part in value.values())
    ),
)
_FIELDS: dict[str, dict[str, _Kind]] = {
    "": {
        "format": _TEXT,
        "version": _WHOLE,
        "quantdrift": _TEXT,
        "date": ("a date and time as ISO 8601", _is_date),
        "edited": ("true or false", lambda value: isinstance(value, bool)),
        "model": _OBJECT,
        "scheme": _OBJECT,
        "criterion": _OBJECT,
        "widths": ("a list of whole numbers, one at least", lambda value: _is_list(value, _is_whole) and value != []),
        "budget": _NUMBER,
        "solver": _OBJECT,
        "bits_per_weight": _OBJECT,
        "others": _OBJECT,
        "layers": ("a list of objects", lambda value: _is_list(value, _OBJECT[1])),
    },
    "model": {"name": _TEXT, "fingerprint": _TEXT},
    "scheme": {"group_size": _or_null(_SOME), "quantizer": _or_null(_TEXT)},
    "criterion": {
        "name": _TEXT,
        "settings": _SCALARS,
        "seed": _WHOLE,
        "dataset": _or_null(_TEXT),
        "data_digest": _or_null(_TEXT),
        "n_inputs": _WHOLE,
        "input_ids": ("a list of texts", lambda value: _is_list(value, lambda x: type(x) is str)),
    },
    "solver": {
        "method": _TEXT,
        "status": _TEXT,
        "loss": _NUMBER,
        "bound": _or_null(_NUMBER),
        "gap": _or_null(("a number", _is_number)),
    },
    "bits_per_weight": {"allocated": _or_null(_NUMBER), "linear": _NUMBER, "all_parameters": _NUMBER},
    "others": {"n_parameters": _WHOLE, "bits": _WHOLE},
}
_LAYER: dict[str, _Kind] = {
    "name": _TEXT,
    "shape": (
        "[out_features, in_features]",
        lambda value: _is_list(value, _SOME[1]) and len(value) == 2,  # noqa: PLR2004 -- a matrix
    ),
    "n_weights": _SOME,
    "width": _SOME,
    "loss": _or_null(_OBJECT),
    "unit": _or_null(_WHOLE),
}


def allocation_of(content: dict[str, Any]) -> Allocation:
    """What a file says, taken as edited: what it states of its widths is not compared with them.

    Args:
        content: the JSON object of the file.

    Raises:
        DataError: a field is missing, not known, or not as expected.
    """
    for part, fields in _FIELDS.items():
        _check(content[part] if part else content, part, fields)
    criterion, solver = content["criterion"], content["solver"]
    if criterion["n_inputs"] != len(criterion["input_ids"]):
        raise DataError(
            f"criterion.n_inputs: expected {len(criterion['input_ids'])}, as many as input_ids, "
            f"got {criterion['n_inputs']}"
        )
    widths = tuple(content["widths"])
    return Allocation(
        model=content["model"]["name"],
        fingerprint=content["model"]["fingerprint"],
        group_size=content["scheme"]["group_size"],
        quantizer=content["scheme"]["quantizer"],
        criterion=criterion["name"],
        settings=criterion["settings"],
        seed=criterion["seed"],
        dataset=criterion["dataset"],
        data_digest=criterion["data_digest"],
        input_ids=tuple(criterion["input_ids"]),
        widths=widths,
        budget=float(content["budget"]),
        method=solver["method"],
        status=solver["status"],
        bound=None if solver["bound"] is None else float(solver["bound"]),
        layers=tuple(_layer(layer, f"layers[{number}]", widths) for number, layer in enumerate(content["layers"])),
        n_others=content["others"]["n_parameters"],
        others_bits=content["others"]["bits"],
        edited=True,
        version=content["quantdrift"],
        date=content["date"],
    )


def _layer(content: dict[str, Any], where: str, widths: tuple[int, ...]) -> AllocatedLayer:
    if isinstance(name := content.get("name"), str):
        where = f"{where} ({name})"
    _check(content, where, _LAYER)
    out_features, in_features = content["shape"]
    if content["n_weights"] != out_features * in_features:
        raise DataError(
            f"{where}.n_weights: expected {out_features * in_features}, as the shape has, got {content['n_weights']}"
        )
    if content["loss"] is not None:
        _check(content["loss"], f"{where}.loss", {str(width): _NUMBER for width in widths})
    return AllocatedLayer(
        name=content["name"],
        shape=(out_features, in_features),
        width=content["width"],
        loss=None if content["loss"] is None else tuple(float(content["loss"][str(width)]) for width in widths),
        unit=content["unit"],
    )


def _check(content: dict[str, Any], where: str, fields: Mapping[str, _Kind]) -> None:
    """That an object has these fields and no others, and in each what belongs there."""
    prefix = f"{where}." if where else ""
    for name, (expected, fits) in fields.items():
        if name not in content:
            raise DataError(f"{prefix}{name} is missing; expected {expected}")
        if not fits(content[name]):
            got = json.dumps(content[name])
            got = got if len(got) <= _SHOWN else f"{got[:_SHOWN]} ..."
            raise DataError(f"{prefix}{name}: expected {expected}, got {got}")
    if extra := [name for name in content if name not in fields]:
        meant = nearest(extra[0], fields)
        hint = f"; did you mean {' or '.join(meant)}?" if meant else "."
        raise DataError(f"{prefix}{extra[0]} is not known{hint} Expected {', '.join(fields)} and nothing else.")


# --- allocation.json: one layer a line, readable, and checked in full when it is read -------------

FORMAT = "quantdrift-allocation"
VERSION = 2


def write_allocation(path: Path, allocation: Allocation) -> None:
    """Write allocation.json, replacing an earlier allocation at that place.

    Args:
        path: the file; its folder is made if need be.
        allocation: what to write.

    Raises:
        RunError: something else lies there, or it cannot be written. Nothing is left behind, and
            an earlier allocation stays whole until the last step.
    """
    path = Path(path).absolute()
    check_place(path)
    write_text(path, _text(allocation), what="the allocation")


def check_place(path: Path) -> None:
    """Refuse a place that holds something other than an allocation, before hours go into one.

    Raises:
        RunError: it is a folder, or another kind of file.
    """
    refuse_other(path, FORMAT, "an allocation")


def read_allocation(path: Path) -> Allocation:
    """Read allocation.json, and check all that it says.

    Args:
        path: the file.

    Raises:
        DataError: it is missing, no allocation, of another version, or something in it is not as
            expected; names the line or the key, what was expected and what came.
    """
    path = Path(path)
    try:
        content = read_json(path, once=True, finite=True)
    except OSError as error:
        raise DataError(f"expected an allocation in {path}, which cannot be read: {error}") from error
    except ValueError as error:
        raise DataError(f"{path} is damaged, expected an allocation: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DataError(f'{path} is not an allocation: expected "format": "{FORMAT}" in it')
    if content.get("version") != VERSION:
        raise DataError(
            f"{path} is an allocation of version {content.get('version')!r}; this quantdrift reads "
            f"version {VERSION}. Make it again: quantdrift allocate"
        )
    try:
        if content.get("edited") is not True:  # else its digest is of what it was before
            check_seal(content)
        allocation = allocation_of({k: v for k, v in content.items() if k != DIGEST})
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except ValueError as error:
        raise DataError(
            f'{path}: {error}. If you changed it by hand, set "edited" to true: what follows from '
            "the widths is then computed anew"
        ) from error
    return replace(allocation, **({"bound": None} if content["edited"] else {"edited": False}))


# --- what stands in the file ------------------------------------------------------------------


def _content(allocation: Allocation) -> dict[str, Any]:
    """All of the file but the layers."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "quantdrift": allocation.version,
        "date": allocation.date,
        "edited": allocation.edited,
        "model": {"name": allocation.model, "fingerprint": allocation.fingerprint},
        "scheme": {"group_size": allocation.group_size, "quantizer": allocation.quantizer},
        "criterion": {
            "name": allocation.criterion,
            "settings": dict(allocation.settings),
            "seed": allocation.seed,
            "dataset": allocation.dataset,
            "data_digest": allocation.data_digest,
            "n_inputs": len(allocation.input_ids),
            "input_ids": list(allocation.input_ids),
        },
        "widths": list(allocation.widths),
        "budget": allocation.budget,
        "solver": {
            "method": allocation.method,
            "status": allocation.status,
            "loss": allocation.loss,
            "bound": allocation.bound,
            "gap": allocation.gap,
        },
        "bits_per_weight": {
            "allocated": allocation.bits_per_weight,
            "linear": allocation.linear_bits,
            "all_parameters": allocation.all_parameters_bits,
        },
        "others": {"n_parameters": allocation.n_others, "bits": allocation.others_bits},
    }


def _text(allocation: Allocation) -> str:
    """The file: what has parts, a line for each of them; each layer on one."""
    lines = []
    for key, value in _content(allocation).items():
        parts = [f"    {_json(name)}: {_json(part)}" for name, part in value.items()] if isinstance(value, dict) else []
        text = "{\n" + ",\n".join(parts) + "\n  }" if parts else _json(value)
        lines.append(f"  {_json(key)}: {text}")
    layers = ",\n".join("    " + _json(_layer_content(layer, allocation.widths)) for layer in allocation.layers)
    lines.append(f'  "layers": [\n{layers}\n  ]')
    digest = sealed(json.loads("{" + ",".join(lines) + "}"))[DIGEST]
    lines.append(f'  "{DIGEST}": "{digest}"')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _layer_content(layer: AllocatedLayer, widths: tuple[int, ...]) -> dict[str, Any]:
    return {
        "name": layer.name,
        "shape": list(layer.shape),
        "n_weights": layer.n_weights,
        "width": layer.width,
        "loss": None
        if layer.loss is None
        else {str(width): loss for width, loss in zip(widths, layer.loss, strict=True)},
        "unit": layer.unit,
    }


def _json(value: object) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


# --- Whether a stored allocation is one for the model at hand -------------------------------------

_FIT_SHOWN = 3


def check_fits(
    allocation: Allocation,
    names: Sequence[str],
    n_weights: Sequence[int] | NDArray[np.int64],
    fingerprint: str,
    *,
    allow_other_weights: bool = False,
) -> None:
    """Check that an allocation is one for a model: the same layers, and the same weights.

    Args:
        allocation: which one.
        names: of the model's linear layers, in any order.
        n_weights: int64 [n_layers].
        fingerprint: of the model's weights.
        allow_other_weights: whether an allocation of other weights will do, say of the model
            before it was fine-tuned.

    Raises:
        DataError: they do not fit; names the layers, and what to do.
    """
    given = {layer.name: layer.n_weights for layer in allocation.layers}
    there = {name: int(n) for name, n in zip(names, n_weights, strict=True)}
    of = f"the allocation of {allocation.model}"
    if unknown := [name for name in given if name not in there]:
        meant = nearest(unknown[0], there)
        hint = f"; the nearest there are {', '.join(meant)}" if meant else ""
        raise DataError(
            f"{of} has layers that this model has not: {_some(unknown)}{hint}. Expected an "
            "allocation made for this model."
        )
    if missing := [name for name in there if name not in given]:
        raise DataError(
            f"{of} says nothing of some of this model's layers: {_some(missing)}. Expected a width "
            "for each; one of 16 leaves a layer unquantized."
        )
    for name, n in given.items():
        if n != there[name]:
            raise DataError(
                f"{of} has {n} weights in layer {name}, and this model {there[name]}; expected an "
                "allocation made for this model"
            )
    if fingerprint != allocation.fingerprint and not allow_other_weights:
        raise DataError(
            f"{of} was measured on other weights (fingerprint {allocation.fingerprint}, this "
            f"model's is {fingerprint}): which layers need bits may differ. Measure again, or say "
            "that it is meant so with allow_other_weights."
        )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _FIT_SHOWN} more" if len(names) > _FIT_SHOWN else ""
    return ", ".join(names[:_FIT_SHOWN]) + more


# --- The scheme that a stored allocation stands for -----------------------------------------------


def can_be_named(file: str) -> bool:
    """Whether a spec can hold this name of a file."""
    plain = file.isprintable() and not any(c.isspace() or c in "+@" for c in file)
    return plain and file.encode("utf-8", "replace").decode() == file


def scheme_of(file: str, rest: str) -> str:
    """A scheme, written in full, whose widths are those of a file.

    >>> scheme_of("allocation.json", "-gptq+query")  # doctest: +SKIP
    'W3.5-g128-gptq+gap+allocation=allocation.json+query'

    Args:
        file: as the user wrote it.
        rest: what stands behind it: a quantizer in place of the file's, options.

    Raises:
        DataError: the file is no allocation.
        SpecError: its name cannot stand in a scheme.
    """
    if not can_be_named(file):
        raise SpecError(
            f"{file}: an allocation in a spec has a name without spaces, '+' and '@'; rename it",
            text=file,
            start=0,
            end=len(file),
        )
    allocation = read_allocation(Path(file).expanduser())
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

"""The linear layers of a checkpoint: which are packed, and in how many bits.

Packed formats store several tensors for a linear layer (codes, scales, zero points), all below the name of the layer.
So bits can be counted without knowing the format.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from quantdrift.models.bits import BitsReport
from quantdrift.models.files.tensors import FLOATS, StoredTensor, check_stored


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLayers:
    """The names of a model's linear layers, by how a checkpoint stores them.

    Attributes:
        packed: layers that are quantized.
        plain: layers in floating point.
        missing: layers that are not stored.
        bits: bits per weight of the checkpoint; None if unknown.
    """

    packed: tuple[str, ...]
    plain: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    bits: BitsReport | None


def stored_layers(
    tensors: Mapping[str, StoredTensor], body: nn.Module, *, others: Sequence[nn.Module] = ()
) -> StoredLayers:
    """Sort a model's linear layers by how they are stored, and count the bits.

    A layer is packed if anything but a floating-point weight of its shape lies below its name; its largest tensor holds
    the codes. A tensor counts if it lies in a module with parameters, under any name, as transformers renames some and
    joins experts. A parameter counts if any tensor of its module is stored, so a language model's head and a decoder
    that no embedding needs are left out.
    """
    modules = {
        name: part for name, part in body.named_modules() if next(part.parameters(recurse=False), None) is not None
    }
    base = getattr(body, "base_model_prefix", "")  # the name of the body in a model that was saved with a head
    holders = {prefix: _holders(tensors, prefix, modules) for prefix in ("", f"{base}.")}
    prefix = max(holders, key=lambda prefix: len(holders[prefix]))
    below: dict[str, dict[str, StoredTensor]] = {name: {} for name in modules}
    for name, holder in holders[prefix].items():
        below[holder][name.removeprefix(f"{prefix}{holder}.")] = tensors[name]
    for name, part in modules.items():
        _refuse_bare_codes(below[name], part, name)
    layers = {name: part for name, part in modules.items() if isinstance(part, nn.Linear)}
    parts = {name: {part: t for part, t in below[name].items() if part != "bias"} for name in layers}
    missing = tuple(name for name in layers if not parts[name])
    whole = {name: {("weight", tuple(layer.weight.shape))} for name, layer in layers.items()}
    floats = {name: {(part, t.shape) for part, t in parts[name].items() if t.dtype in FLOATS} for name in layers}
    plain = tuple(name for name in layers if floats[name] == whole[name] and len(parts[name]) == 1)
    packed = tuple(name for name in layers if name not in (*missing, *plain))
    sizes = {name: [t.n_bytes for t in parts[name].values()] for name in packed or plain}
    held = {id(p): p.numel() for name in modules if below[name] for p in modules[name].parameters(recurse=False)}
    rest = {id(p): p for module in others for p in module.parameters()}.values()
    bits = stored_bits(
        codes=sum(parts[name]["W_q"].n_bytes if "W_q" in parts[name] else max(sizes[name]) for name in sizes),
        with_scales=sum(map(sum, sizes.values())),
        everything=sum(tensors[name].n_bytes for name in holders[prefix]) + sum(p.nbytes for p in rest),
        n_weights=sum(layers[name].weight.numel() for name in sizes),
        n_parameters=sum(held.values()) + sum(p.numel() for p in rest),
        is_packed=bool(packed),
    )
    return StoredLayers(packed=packed, plain=plain, missing=missing, bits=bits)


def _refuse_bare_codes(stored: Mapping[str, StoredTensor], module: nn.Module, name: str) -> None:
    """Refuse a floating-point parameter that is stored as codes without a scale beside them."""
    own = dict(module.named_parameters(recurse=False))
    beside = stored.keys() - own.keys() - dict(module.named_buffers(recurse=False)).keys()
    for part, tensor in stored.items():
        if part in own and tensor.dtype not in FLOATS and (len(tensor.shape) < 2 or not beside):  # noqa: PLR2004 -- a bias
            check_stored(f"{name}.{part}", tensor, FLOATS)


def stored_bits(
    *, codes: int, with_scales: int, everything: int, n_weights: int, n_parameters: int, is_packed: bool
) -> BitsReport:
    """Compute bits per weight from the bytes of the layers' codes, of codes with scales, and of all tensors."""
    of_all = 8 * everything / max(n_parameters, 1)
    return BitsReport(
        linear=8 * codes / n_weights if n_weights else of_all,
        linear_with_scales=8 * with_scales / n_weights if n_weights else of_all,
        all_parameters=of_all,
        n_quantized=n_weights if is_packed else 0,
        n_parameters=n_parameters,
    )


def _holders(names: Collection[str], prefix: str, modules: Collection[str]) -> dict[str, str]:
    """Map tensor names that begin with a prefix to the innermost module that holds them."""
    holders = {}
    for name in names:
        place = name.removeprefix(prefix) if name.startswith(prefix) else ""
        while "." in place:
            place = place.rpartition(".")[0]
            if place in modules:
                holders[name] = place
                break
    return holders

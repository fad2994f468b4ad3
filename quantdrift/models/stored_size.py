"""How much a checkpoint stores for how many parameters of a model."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

__all__ = ["stored_size"]


def stored_size(
    sizes: Mapping[str, int], layer_of: Mapping[str, str], body: nn.Module
) -> tuple[int, int]:
    """Count what is stored for a model, and the parameters that it is stored for.

    A parameter counts if it is stored under its name, below the name of a linear layer that has it,
    or in tensors that lie in the same module under other names: transformers renames some, and
    joins the experts of a mixture, when it loads them. What else a file holds (a language model's
    head) does not count, nor do parameters of which nothing is stored (a decoder that no embedding
    needs).

    Args:
        sizes: of the tensors in bytes, by the name that they have in the model.
        layer_of: names of tensors that lie below a linear layer, to the layer.
        body: the model unquantized, on any device, also meta.

    Returns:
        Bytes, and number of parameters; all of both where no name fits.
    """
    parameters = dict(body.named_parameters(remove_duplicate=False))
    stored_layers = set(layer_of.values())
    unknown = [name for name in sizes if name not in layer_of and name not in parameters]
    held: dict[int, int] = {}
    places = set()
    for name, parameter in parameters.items():
        module = name.rpartition(".")[0]
        elsewhere = any(other.startswith(f"{module}.") for other in unknown)
        if name in sizes or module in stored_layers or elsewhere:
            held[id(parameter)] = parameter.numel()
        if elsewhere and name not in sizes:
            places.add(f"{module}.")
    if not held:
        every = {id(parameter): parameter.numel() for parameter in parameters.values()}
        return sum(sizes.values()), sum(every.values())
    left_over = sum(sizes[name] for name in unknown if name.startswith(tuple(places)))
    known = sum(sizes[name] for name in sizes if name in layer_of or name in parameters)
    return known + left_over, sum(held.values())

"""Allocations as users have them: of any layers, and of the blocks of an encoder and of a decoder."""

from collections.abc import Mapping, Sequence
from typing import Any

from quantdrift.allocation.record import AllocatedLayer, Allocation

_WIDE = {"intermediate.dense": (128, 64), "output.dense": (64, 128)}
BERT = dict.fromkeys((*(f"attention.self.{x}" for x in ("query", "key", "value")), "attention.output.dense"), (64, 64))
BERT |= _WIDE
"""Layers of a block of BERT, and their shapes."""
LLAMA = {f"self_attn.{x}_proj": (256, 256) for x in "qkvo"}
LLAMA |= {"mlp.gate_proj": (512, 256), "mlp.up_proj": (512, 256), "mlp.down_proj": (256, 512)}


def encoder(changed: Mapping[str, int], *, blocks: int = 1) -> dict[str, int]:
    """Widths of a BERT in a SentenceTransformer: 4, but of the layers named."""
    names = [f"0.model.encoder.layer.{i}.{part}" for i in range(blocks) for part in BERT]
    return {**dict.fromkeys(names, 4), **changed}


def decoder(changed: Mapping[str, int], *, blocks: int = 1) -> dict[str, int]:
    """Widths of a causal LM: 4, but of the layers named."""
    names = [f"model.layers.{i}.{part}" for i in range(blocks) for part in LLAMA]
    return {**dict.fromkeys(names, 4), **changed}


def allocation(
    layers: Mapping[str, int] | Sequence[AllocatedLayer], *, shape: tuple[int, int] | None = None, **changes: Any
) -> Allocation:
    """An allocation of these layers, or of names and widths; layers of other widths than the offered ones are kept."""
    offered = changes.setdefault("widths", (3, 4))
    falling = tuple(map(float, reversed(range(len(offered)))))
    if isinstance(layers, Mapping):
        layers = [
            AllocatedLayer(
                name=name, shape=shape or _shape(name), width=width, loss=falling if width in offered else None
            )
            for name, width in layers.items()
        ]
    fields = {"model": "tiny", "fingerprint": "0123abcd", "group_size": 32, "criterion": "gap", "budget": offered[-1]}
    solved = {"method": "knapsack", "status": "optimal", "bound": None, "n_others": 10, "others_bits": 320}
    return Allocation(**{**fields, **solved, "layers": tuple(layers), **changes})


def _shape(name: str) -> tuple[int, int]:
    shapes = {**BERT, **LLAMA}
    # the longest, since attention.output.dense ends as output.dense does
    ends = sorted((end for end in shapes if name.endswith(f".{end}")), key=len)
    return shapes[ends[-1]] if ends else (64, 64)

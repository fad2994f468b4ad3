"""Allocations of a block of an encoder and of a decoder, as users have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quantdrift.allocation.record import AllocatedLayer, Allocation

BERT = {
    "attention.self.query": (64, 64),
    "attention.self.key": (64, 64),
    "attention.self.value": (64, 64),
    "attention.output.dense": (64, 64),
    "intermediate.dense": (128, 64),
    "output.dense": (64, 128),
}
"""Layers of a block of BERT, and their shapes."""
LLAMA = {
    "self_attn.q_proj": (256, 256),
    "self_attn.k_proj": (256, 256),
    "self_attn.v_proj": (256, 256),
    "self_attn.o_proj": (256, 256),
    "mlp.gate_proj": (512, 256),
    "mlp.up_proj": (512, 256),
    "mlp.down_proj": (256, 512),
}


def encoder(changed: Mapping[str, int], *, blocks: int = 1) -> dict[str, int]:
    """Widths of a BERT in a SentenceTransformer: 4, but of the layers named."""
    names = [f"0.model.encoder.layer.{i}.{part}" for i in range(blocks) for part in BERT]
    return {**dict.fromkeys(names, 4), **changed}


def decoder(changed: Mapping[str, int], *, blocks: int = 1) -> dict[str, int]:
    """Widths of a causal LM: 4, but of the layers named."""
    names = [f"model.layers.{i}.{part}" for i in range(blocks) for part in LLAMA]
    return {**dict.fromkeys(names, 4), **changed}


def allocation(
    widths: Mapping[str, int],
    *,
    group_size: int | None = 32,
    shape: tuple[int, int] | None = None,
    offered: Sequence[int] = (3, 4, 8),
) -> Allocation:
    """An allocation of layers left free, of which every one was given its width."""
    return Allocation(
        model="tiny",
        fingerprint="0123abcd",
        group_size=group_size,
        criterion="gap",
        widths=tuple(offered),
        budget=offered[-1],
        method="knapsack",
        status="optimal",
        bound=None,
        layers=tuple(
            AllocatedLayer(name=name, shape=shape or _shape(name), width=width) for name, width in widths.items()
        ),
        n_others=10,
        others_bits=320,
    )


def _shape(name: str) -> tuple[int, int]:
    known = {**BERT, **LLAMA}
    # the longest, since attention.output.dense ends as output.dense does
    ends = sorted((end for end in known if name.endswith(f".{end}")), key=len)
    return known[ends[-1]] if ends else (64, 64)

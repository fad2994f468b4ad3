"""llama.cpp: `--tensor-type` arguments of llama-quantize.

Checked for its form only: llama.cpp was not at hand, its documentation and sources were. Known are
the layers of BERT (and RoBERTa, XLM-RoBERTa), DistilBERT, and of Llama, Mistral, Qwen, Gemma
and what else names them so. llama.cpp's types have grids of their own: what we call 4 bits is Q4_K,
which takes 4.5 bits per weight, scales included, in blocks of 32 under a super-block of 256.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from quantdrift.allocation.export.base import refuse
from quantdrift.allocation.stored.record import AllocatedLayer
from quantdrift.widths import FULL_BITS

__all__ = ["TYPES", "LlamaCpp", "tensor_name"]

TYPES: dict[int, tuple[tuple[str, int, float], ...]] = {
    2: (("q2_K", 256, 2.625),),
    3: (("q3_K", 256, 3.4375),),
    4: (("q4_K", 256, 4.5), ("q4_0", 32, 4.5)),
    5: (("q5_K", 256, 5.5), ("q5_0", 32, 5.5)),
    6: (("q6_K", 256, 6.5625),),
    8: (("q8_0", 32, 8.5),),
    FULL_BITS: (("f16", 1, 16.0),),
}
"""Width to types, the preferred one first: name, inputs of a block, bits per weight."""
_BLOCKS = (
    re.compile(r"(?:\w+\.)?encoder\.layer\.(?P<block>[0-9]+)\.(?P<part>.+)"),
    re.compile(r"(?:\w+\.)?transformer\.layer\.(?P<block>[0-9]+)\.(?P<part>.+)"),
    re.compile(r"(?:model\.)?layers\.(?P<block>[0-9]+)\.(?P<part>.+)"),
)
_PARTS: tuple[dict[str, str], ...] = (
    {
        "attention.self.query": "attn_q",
        "attention.self.key": "attn_k",
        "attention.self.value": "attn_v",
        "attention.output.dense": "attn_output",
        "intermediate.dense": "ffn_up",
        "output.dense": "ffn_down",
    },
    {
        "attention.q_lin": "attn_q",
        "attention.k_lin": "attn_k",
        "attention.v_lin": "attn_v",
        "attention.out_lin": "attn_output",
        "ffn.lin1": "ffn_up",
        "ffn.lin2": "ffn_down",
    },
    {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    },
)
"""For each of `_BLOCKS`, a layer's path in its block to the tensor's name in a GGUF file."""

_NOT_IN_FILE = "pooler.dense"
"""A BERT's last layer, which conversion to GGUF drops: embeddings are made without it."""
_HEAD = "output.weight"
"""It has an option of its own; as an expression it would match attn_output.weight, too."""
_USAGE = """\
llama-quantize $(cat FILE) model-f16.gguf model.gguf Q4_K_M
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCpp:
    """Arguments of llama-quantize, one for each tensor; the shell needs no quotes for them."""

    name: str = "llama_cpp"
    file: str = "tensor_types.txt"
    usage: str = _USAGE
    widths: tuple[int, ...] = (2, 3, 4, 5, 6, 8)
    needs_units: bool = False

    def check(self, layers: Sequence[AllocatedLayer], group_size: int | None) -> None:
        """Refuse layers of other architectures, and inputs that no type's block divides."""
        there = _in_file(layers)
        if not there:
            refuse(layers, "not part of a GGUF file", "use another format")
        if unknown := [layer for layer in there if tensor_name(layer.name) is None]:
            refuse(
                unknown,
                "the names of such layers in a GGUF file are not known here, only those of models "
                "that name layers as BERT, DistilBERT, Llama, Qwen and Gemma do",
                "use another format",
            )
        if odd := [layer for layer in there if _type(layer) is None]:
            refuse(
                odd,
                "the type of that width has blocks that do not divide the layer's inputs "
                f"({odd[0].shape[1]} in the first), and llama.cpp would take another one",
                "allocate with +widths=4,8, whose types have blocks of 32, or leave such layers "
                "unquantized with --keep",
            )

    def render(self, layers: Sequence[AllocatedLayer], group_size: int | None) -> str:
        """Lines of `--tensor-type NAME=TYPE`."""
        lines = []
        for layer in _in_file(layers):
            chosen = _type(layer)
            assert chosen is not None  # checked before
            name = tensor_name(layer.name)
            option = "--output-tensor-type " if name == _HEAD else f"--tensor-type {name}="
            lines.append(f"{option}{chosen[0]}\n")
        return "".join(lines)

    def notes(self, layers: Sequence[AllocatedLayer]) -> Sequence[str]:
        """What the types take instead of the widths asked for."""
        there = _in_file(layers)
        total = sum(layer.n_weights for layer in there)
        asked = sum(layer.n_weights * layer.width for layer in there) / total
        taken = 0.0
        for layer in there:
            chosen = _type(layer)
            assert chosen is not None  # checked before
            taken += layer.n_weights * chosen[2] / total
        return [
            f"llama.cpp's types take {taken:.2f} bits per weight here, scales included, where the "
            f"widths are {asked:.2f} without; their groups are their own, and token embeddings "
            "follow the last argument",
        ]


def tensor_name(name: str) -> str | None:
    """The tensor of a layer in a GGUF file; None if the architecture is not known.

    >>> tensor_name("model.layers.3.mlp.down_proj")
    'blk.3.ffn_down.weight'
    """
    for block, parts in zip(_BLOCKS, _PARTS, strict=True):
        found = block.fullmatch(name)
        if found is not None and found["part"] in parts:
            return f"blk.{found['block']}.{parts[found['part']]}.weight"
    return _HEAD if name == "lm_head" else None


def _in_file(layers: Sequence[AllocatedLayer]) -> list[AllocatedLayer]:
    return [layer for layer in layers if layer.name != _NOT_IN_FILE]


def _type(layer: AllocatedLayer) -> tuple[str, int, float] | None:
    """The first type of the width whose blocks divide the layer's inputs."""
    return next((one for one in TYPES[layer.width] if layer.shape[1] % one[1] == 0), None)

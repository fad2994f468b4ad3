"""The sizes of a transformer's layers, from its config.json alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quantdrift.models.files.kinds import model_json
from quantdrift.models.files.named import ModelSource

_MOST = 1 << 20
"""Largest number that is taken for a size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of a transformer.

    Attributes:
        hidden: length of a token's state.
        heads: attention heads.
        layers: number of blocks.
        matrices: (rows, columns) of the linear layers of one block.
        vocabulary: rows of the token embedding matrix.
        longest: most tokens of an input.
    """

    hidden: int
    heads: int
    layers: int
    matrices: tuple[tuple[int, int], ...]
    vocabulary: int
    longest: int

    @property
    def block(self) -> int:
        """Weights of the linear layers of one block."""
        return sum(rows * columns for rows, columns in self.matrices)

    @property
    def linear(self) -> int:
        """Weights of all linear layers."""
        return self.layers * self.block

    @property
    def parameters(self) -> int:
        """Weights of linear layers and token embeddings, nearly all of a model's."""
        return self.linear + self.vocabulary * self.hidden


def shape_of(source: ModelSource, revision: str | None = None) -> Shape | None:
    """Return the sizes of a model's layers; None if its config.json does not tell them.

    Of a model on the hub only settings are downloaded; UnsupportedError if the hub cannot be reached.
    """
    config = model_json(source, "config.json", revision)
    if isinstance(inside := config.get("text_config"), dict):  # a model of texts and images
        config = {**config, **inside}
    said = model_json(source, "sentence_bert_config.json", revision).get("max_seq_length")
    said = said or model_json(source, "tokenizer_config.json", revision).get("model_max_length")
    return shape_in(config, said if isinstance(said, int) else _MOST)


def shape_in(config: Mapping[str, Any], longest: int = _MOST) -> Shape | None:
    """Return the sizes that a config.json tells, under the names that the usual architectures have for them."""

    def number(names: str, default: int = 0) -> int:
        values = (config.get(name) for name in names.split())
        return next((n for n in values if isinstance(n, int) and 0 < n < _MOST), default)

    hidden, layers = number("hidden_size d_model n_embd dim"), number("num_hidden_layers n_layer n_layers")
    heads = number("num_attention_heads n_head n_heads")
    if not (hidden and layers and heads) or hidden % heads or any("expert" in name for name in config):
        return None  # of a mixture, a token does not pass all layers
    inner = number("intermediate_size ffn_dim n_inner hidden_dim", 4 * hidden)
    each = number("head_dim", hidden // heads)
    kept = each * number("num_key_value_heads", heads)
    act = str(config.get("hidden_act") or config.get("activation_function"))
    gates = 1 + ("glu" in act or act == "silu" or "hidden_activation" in config)
    around = (heads * each, hidden), (kept, hidden), (kept, hidden), (hidden, heads * each)
    return Shape(
        hidden=hidden,
        heads=heads,
        layers=layers,
        matrices=(*around, *([(inner, hidden)] * gates), (hidden, inner)),
        vocabulary=number("vocab_size"),
        longest=min(longest, number("max_position_embeddings n_positions", 512)),
    )

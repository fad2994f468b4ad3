"""One tiny random model of every kind that a pair is made of; nothing is downloaded.

Sizes are no multiples of 64, so that last groups are short; inputs are padded where a model can
take that.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn
from torch.nn.functional import normalize

Batch = dict[str, Tensor]
VOCABULARY, HIDDEN, WIDTH, HEADS, BLOCKS = 50, 40, 72, 4, 2
IMAGE, TOKENS = 16, 7
EXPERTS, TWO = 8, {"num_experts_per_tok": 2}
ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
SIZES = {"hidden_size": HIDDEN, "intermediate_size": WIDTH, "num_hidden_layers": BLOCKS, "num_attention_heads": HEADS}
OF_IMAGES = {**SIZES, "initializer_range": 0.2, "image_size": IMAGE, "patch_size": 8}
COMMON: dict[str, Any] = {
    **{**SIZES, "initializer_range": 0.2},
    **{f"{kind}_token_id": number for number, kind in enumerate(("pad", "bos", "eos"))},
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 32,
}
"""Settings that most configurations of transformers have by these names."""
DECODER: dict[str, Any] = {**COMMON, "num_key_value_heads": 2, "head_dim": 8}


def mean_of_tokens(model: nn.Module, batch: Batch) -> Tensor:
    mask = batch["attention_mask"].unsqueeze(-1)
    return normalize((model(**batch).last_hidden_state * mask).sum(1) / mask.sum(1))


def mean_of_logits(model: nn.Module, batch: Batch) -> Tensor:
    """The mean over all tokens, padding too, so that every expert that runs has a part in it."""
    mean: Tensor = model(**batch).logits.mean(dim=1)
    return mean


class TorchEncoder(nn.Module):
    """Token embeddings and torch's own transformer, which fuses whole blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        layer = nn.TransformerEncoderLayer(HIDDEN, HEADS, WIDTH, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, BLOCKS)
        for parameter in self.parameters():  # copies of one layer until now
            nn.init.normal_(parameter, std=0.3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.encoder(self.embed(input_ids), src_key_padding_mask=attention_mask == 0)
        mask = attention_mask.unsqueeze(-1)
        return (hidden * mask).sum(1) / mask.sum(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooModel:
    """A model and what is known of its linear layers.

    Attributes:
        name: of the kind.
        build: a module with random weights.
        answer: module and batch to embeddings, logits or scores.
        inputs: of "text", "image".
        n_layers: how many weight matrices there are to quantize.
        unreached: endings of names of layers that the answer does not depend on.
        doubtful: parts of names of layers that may count as reached without cause.
        in_parts: endings of names of layers of which a part is multiplied by at a time.
        unseen: parts of names of layers that the answer depends on and no module is called for.
        left_out: names of linear layers that are not quantized.
        others: parts of names of parameters of two dimensions or more that are no linear layers.
    """

    name: str
    build: Callable[[], nn.Module]
    answer: Callable[[nn.Module, Batch], Tensor] = mean_of_logits
    inputs: tuple[str, ...] = ("text",)
    n_layers: int
    unreached: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()
    in_parts: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    others: tuple[str, ...] = ("embed",)

    def make(self, seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Module:
        """The model in evaluation mode; the same seed gives the same weights."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.build().eval().to(dtype)

    def batches(self, n: int, seed: int = 0) -> list[Batch]:
        """Inputs of three texts or images each; the first text is padded at its end."""
        rng = torch.Generator().manual_seed(seed)
        return [self._batch(rng) for _ in range(n)]

    def _batch(self, rng: torch.Generator) -> Batch:
        batch: Batch = {}
        if "text" in self.inputs:
            batch["input_ids"] = torch.randint(5, VOCABULARY, (3, TOKENS), generator=rng)
            batch["attention_mask"] = torch.ones(3, TOKENS, dtype=torch.long)
            batch["input_ids"][0, -2:] = batch["attention_mask"][0, -2:] = 0
        if "image" in self.inputs:
            batch["pixel_values"] = torch.randn(3, 3, IMAGE, IMAGE, generator=rng)
        return batch

    def run(self, model: nn.Module, batch: Batch) -> Tensor:
        """One forward pass without gradients, floats in the model's precision: [3, n]."""
        dtype = next(model.parameters()).dtype
        given = {k: v.to(dtype) if v.is_floating_point() else v for k, v in batch.items()}
        with torch.no_grad():
            return self.answer(model, given)


ZOO: tuple[ZooModel, ...] = (
    ZooModel(
        name="bert",
        build=lambda: hf.BertModel(hf.BertConfig(**COMMON)),
        answer=mean_of_tokens,
        n_layers=6 * BLOCKS + 1,
        unreached=("pooler.dense",),
    ),
    ZooModel(
        name="albert",  # one block, run again and again
        build=lambda: hf.AlbertModel(hf.AlbertConfig(embedding_size=24, **COMMON)),
        answer=mean_of_tokens,
        n_layers=6 + 2,
        unreached=("pooler",),
        others=("embeddings.",),
    ),
    ZooModel(
        name="vit",
        build=lambda: hf.ViTForImageClassification(hf.ViTConfig(num_labels=10, **OF_IMAGES)),
        answer=lambda model, batch: model(**batch).logits,
        inputs=("image",),
        n_layers=6 * BLOCKS + 1,
    ),
    ZooModel(
        name="clip",
        build=lambda: hf.CLIPModel(
            hf.CLIPConfig(text_config={**COMMON, "projection_dim": 24}, vision_config=OF_IMAGES, projection_dim=24)
        ),
        answer=lambda model, batch: model(**batch).logits_per_image,
        inputs=("text", "image"),
        n_layers=2 * 6 * BLOCKS + 2,
    ),
    ZooModel(
        name="siglip",  # pools by torch's attention
        build=lambda: hf.SiglipVisionModel(hf.SiglipVisionConfig(**OF_IMAGES)),
        answer=lambda model, batch: model(**batch).pooler_output,
        inputs=("image",),
        n_layers=6 * BLOCKS + 4,
        in_parts=("head.attention.in_proj_weight",),
        unseen=("head.attention.",),
        others=("embed", "probe"),
    ),
    ZooModel(
        name="gpt2",  # keeps weights transposed
        build=lambda: hf.GPT2LMHeadModel(hf.GPT2Config(n_inner=WIDTH, **COMMON)),
        n_layers=4 * BLOCKS,
        left_out=("lm_head",),
        others=("wte", "wpe"),
    ),
    ZooModel(name="llama", build=lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**DECODER)), n_layers=7 * BLOCKS + 1),
    ZooModel(
        name="qwen3-tied",
        build=lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(tie_word_embeddings=True, **DECODER)),
        n_layers=7 * BLOCKS,
        left_out=("lm_head",),
    ),
    ZooModel(
        name="qwen3-moe",
        build=lambda: hf.Qwen3MoeForCausalLM(
            hf.Qwen3MoeConfig(num_experts=EXPERTS, moe_intermediate_size=24, **TWO, **DECODER)
        ),
        n_layers=(4 + 2 * EXPERTS) * BLOCKS + 1,
        doubtful=("experts",),  # all count where they are multiplied at once
        unseen=("experts",),
        left_out=tuple(f"model.layers.{block}.mlp.gate.weight" for block in range(BLOCKS)),
        others=("embed", "gate.weight"),
    ),
    ZooModel(
        name="gpt-oss",  # keeps experts transposed
        build=lambda: hf.GptOssForCausalLM(
            hf.GptOssConfig(num_local_experts=EXPERTS, rope_parameters=ROPE, **TWO, **DECODER)
        ),
        n_layers=(4 + 2 * EXPERTS) * BLOCKS + 1,
        doubtful=("experts",),  # all count where they are multiplied at once
        unseen=("experts",),
        left_out=tuple(f"model.layers.{block}.mlp.router.weight" for block in range(BLOCKS)),
        others=("embed", "router.weight", "proj_bias"),
    ),
    ZooModel(
        name="torch-encoder",
        build=TorchEncoder,
        answer=lambda model, batch: model(**batch),
        n_layers=4 * BLOCKS,
        unseen=("self_attn.",),
    ),
)


def zoo_model(name: str) -> ZooModel:
    """The model of that name."""
    return next(entry for entry in ZOO if entry.name == name)

"""One tiny random model of every kind that a pair is made of; nothing is downloaded.

Sizes are no multiples of 64, so that last groups are short; inputs are padded where a model can
take that.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import transformers as hf
from torch import Tensor, nn

from support.model_zoo_parts import (
    BLOCKS,
    IMAGE,
    VOCABULARY,
    WIDTH,
    Batch,
    TorchEncoder,
    called,
    clip,
    common,
    decoder,
    image_by_text,
    logits,
    mean_of_logits,
    mean_of_tokens,
    pooled,
    vision,
)

__all__ = ["ZOO", "Batch", "ZooModel", "zoo_model"]

TOKENS = 7
EXPERTS, TWO = 8, {"num_experts_per_tok": 2}
ROPE = {"rope_type": "default", "rope_theta": 10_000.0}


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
        unseen: parts of names of layers that the answer depends on and no module is called for.
        left_out: names of linear layers that are not quantized.
        others: parts of names of parameters of two dimensions or more that are no linear layers.
    """

    name: str
    build: Callable[[], nn.Module]
    answer: Callable[[nn.Module, Batch], Tensor]
    inputs: tuple[str, ...] = ("text",)
    n_layers: int
    unreached: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()
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
        build=lambda: hf.BertModel(hf.BertConfig(**common())),
        answer=mean_of_tokens,
        n_layers=6 * BLOCKS + 1,
        unreached=("pooler.dense",),
    ),
    ZooModel(
        name="albert",  # one block, run again and again
        build=lambda: hf.AlbertModel(hf.AlbertConfig(**common(embedding_size=24))),
        answer=mean_of_tokens,
        n_layers=6 + 2,
        unreached=("pooler",),
        others=("embeddings.",),
    ),
    ZooModel(
        name="vit",
        build=lambda: hf.ViTForImageClassification(hf.ViTConfig(**vision(num_labels=10))),
        answer=logits,
        inputs=("image",),
        n_layers=6 * BLOCKS + 1,
    ),
    ZooModel(name="clip", build=clip, answer=image_by_text, inputs=("text", "image"), n_layers=2 * 6 * BLOCKS + 2),
    ZooModel(
        name="siglip",  # pools by torch's attention
        build=lambda: hf.SiglipVisionModel(hf.SiglipVisionConfig(**vision())),
        answer=pooled,
        inputs=("image",),
        n_layers=6 * BLOCKS + 4,
        unseen=("head.attention.",),
        others=("embed", "probe"),
    ),
    ZooModel(
        name="gpt2",  # keeps weights transposed
        build=lambda: hf.GPT2LMHeadModel(hf.GPT2Config(n_inner=WIDTH, **common())),
        answer=mean_of_logits,
        n_layers=4 * BLOCKS,
        left_out=("lm_head",),
        others=("wte", "wpe"),
    ),
    ZooModel(
        name="llama",
        build=lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**decoder())),
        answer=mean_of_logits,
        n_layers=7 * BLOCKS + 1,
    ),
    ZooModel(
        name="qwen3-tied",
        build=lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**decoder(tie_word_embeddings=True))),
        answer=mean_of_logits,
        n_layers=7 * BLOCKS,
        left_out=("lm_head",),
    ),
    ZooModel(
        name="qwen3-moe",
        build=lambda: hf.Qwen3MoeForCausalLM(
            hf.Qwen3MoeConfig(num_experts=EXPERTS, moe_intermediate_size=24, **decoder(**TWO))
        ),
        answer=mean_of_logits,
        n_layers=(4 + 2 * EXPERTS) * BLOCKS + 1,
        doubtful=("experts",),  # all count where they are multiplied at once
        unseen=("experts",),
        left_out=tuple(f"model.layers.{block}.mlp.gate.weight" for block in range(BLOCKS)),
        others=("embed", "gate.weight"),
    ),
    ZooModel(
        name="gpt-oss",  # keeps experts transposed
        build=lambda: hf.GptOssForCausalLM(
            hf.GptOssConfig(num_local_experts=EXPERTS, rope_parameters=ROPE, **decoder(**TWO))
        ),
        answer=mean_of_logits,
        n_layers=(4 + 2 * EXPERTS) * BLOCKS + 1,
        doubtful=("experts",),  # all count where they are multiplied at once
        unseen=("experts",),
        left_out=tuple(f"model.layers.{block}.mlp.router.weight" for block in range(BLOCKS)),
        others=("embed", "router.weight", "proj_bias"),
    ),
    ZooModel(name="torch-encoder", build=TorchEncoder, answer=called, n_layers=4 * BLOCKS, unseen=("self_attn.",)),
)


def zoo_model(name: str) -> ZooModel:
    """The model of that name."""
    return next(entry for entry in ZOO if entry.name == name)

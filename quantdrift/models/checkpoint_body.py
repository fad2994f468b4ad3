"""The transformer of a checkpoint, loaded by transformers with what the checkpoint fails to say.

Two formats do not say which layers are packed, and transformers guesses: for GPTQ those below some
usual names (BERT's is not among them), for AWQ all. What is stored says it, and that is what
transformers is told.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from quantdrift.errors import MissingExtraError, UnsupportedError
from quantdrift.models.checkpoint import Checkpoint
from quantdrift.models.stored import StoredLayers
from quantdrift.models.stored_gguf import read_gguf_head

__all__ = [
    "check_packed",
    "completed",
    "empty_body",
    "gguf_body",
    "load_body",
    "load_kwargs",
    "refuse_random",
]

_BLOCK = re.compile(r"(.+?)\.\d+\.(.+)")
_SHOWN = 3
_HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")


def empty_body(checkpoint: Checkpoint) -> nn.Module:
    """The transformer without weights and unquantized: names and shapes of its layers.

    Raises:
        UnsupportedError: its config.json names a model that makes no embeddings.
    """
    from transformers import AutoConfig, AutoModel  # noqa: PLC0415 -- takes seconds to import

    config = AutoConfig.from_pretrained(checkpoint.body, trust_remote_code=False)
    architecture = next(iter(getattr(config, "architectures", None) or []), "")
    if architecture.endswith(_HEADS):
        raise UnsupportedError(
            f"{checkpoint.name} is a {architecture}, not an embedding model: its scores are not "
            "made of embeddings"
        )
    with torch.device("meta"):
        body: nn.Module = AutoModel.from_config(config)  # type: ignore[no-untyped-call]  # untyped
    return body


def completed(checkpoint: Checkpoint, stored: StoredLayers) -> dict[str, Any]:
    """The quantization_config that transformers needs to load what is stored.

    Args:
        checkpoint: whose config.json it is from.
        stored: its linear layers.

    Raises:
        UnsupportedError: config.json and weights contradict each other.
    """
    quantization = dict(checkpoint.quantization)
    if bool(stored.packed) != (checkpoint.method != "none"):
        says = (
            f"a quantization_config ({checkpoint.method}), but no packed linear layer"
            if quantization
            else f"packed layers ({stored.packed[0]} ...), but no quantization_config"
        )
        raise UnsupportedError(
            f"{checkpoint.body} holds {says}; expected a folder that save_pretrained of "
            "transformers wrote, or a config.json that says how the weights are packed"
        )
    if checkpoint.method == "awq":
        quantization["modules_to_not_convert"] = [*stored.plain, *stored.missing] or None
    if checkpoint.method == "gptq" and not quantization.get("block_name_to_quantize"):
        found = [_BLOCK.fullmatch(name) for name in stored.packed]
        blocks = {match[1] for match in found if match}
        if len(blocks) != 1 or not all(found):
            raise UnsupportedError(
                f"{checkpoint.name} packs layers outside of one list of blocks "
                f"({', '.join(sorted(blocks)[:3])}); optimum loads GPTQ within one only"
            )
        quantization["block_name_to_quantize"] = blocks.pop()
        inside = dict.fromkeys(match[2] for match in found if match)
        quantization["modules_in_block_to_quantize"] = [[name] for name in inside]
    return quantization


def load_kwargs(checkpoint: Checkpoint, device: torch.device) -> dict[str, Any]:
    """What from_pretrained is told beside the folder: the numbers' type, and where it runs."""
    kwargs: dict[str, Any] = {"dtype": "auto"}
    if checkpoint.method != "none" and device.type != "cpu":
        kwargs["device_map"] = str(device)  # kernels are chosen while it is loaded
    return kwargs


def load_body(
    checkpoint: Checkpoint, folder: Path, quantization: Mapping[str, Any], device: torch.device
) -> nn.Module:
    """The transformer of a folder.

    Args:
        checkpoint: what it is.
        folder: where it lies now, the checkpoint's body or a copy of it.
        quantization: from `completed`; left out where the folder's own says everything.
        device: where it runs.

    Raises:
        UnsupportedError: weights are missing.
    """
    from transformers import AutoConfig, AutoModel  # noqa: PLC0415 -- takes seconds to import

    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    if quantization != checkpoint.quantization:
        config.quantization_config = dict(quantization)
    kwargs = load_kwargs(checkpoint, device)
    body: nn.Module
    body, info = AutoModel.from_pretrained(
        folder, config=config, output_loading_info=True, trust_remote_code=False, **kwargs
    )
    refuse_random(checkpoint, info["missing_keys"])
    return body


def refuse_random(checkpoint: Checkpoint, missing: Collection[str]) -> None:
    """Refuse a model with weights that no file holds: transformers makes up random ones.

    BERT's pooler may be missing, no embedding is made of it.

    Args:
        checkpoint: what was loaded.
        missing: names of weights that were not in its files.

    Raises:
        UnsupportedError: names some of them.
    """
    random = sorted(name for name in missing if "pooler" not in name.split("."))
    if random:
        named = ", ".join(random[:_SHOWN]) + (" ..." if len(random) > _SHOWN else "")
        raise UnsupportedError(
            f"{checkpoint.name} holds no weights for {len(random)} parameters ({named}), which "
            "would be random numbers; expected all of them, under the names that save_pretrained "
            "of transformers gives them"
        )


def gguf_body(checkpoint: Checkpoint) -> nn.Module:
    """The transformer of a GGUF file, its weights dequantized.

    Raises:
        MissingExtraError: gguf is not installed, and transformers alone cannot read it.
        UnsupportedError: transformers knows no such architecture, or weights are missing.
    """
    from transformers import (  # noqa: PLC0415 -- takes seconds to import
        MODEL_FOR_CAUSAL_LM_MAPPING,
        AutoConfig,
        AutoModel,
        AutoModelForCausalLM,
    )

    assert checkpoint.gguf is not None
    architecture = read_gguf_head(checkpoint.folder / checkpoint.gguf).architecture
    kwargs: dict[str, Any] = {}
    if _read_by_transformers(architecture):
        from transformers import GgufConfig  # noqa: PLC0415 -- not in every version that is allowed

        kwargs["quantization_config"] = GgufConfig(dequantize=True)
    else:
        from transformers.modeling_gguf_pytorch_utils import (  # noqa: PLC0415 -- takes seconds
            GGUF_SUPPORTED_ARCHITECTURES,
        )

        known = {name.replace("_", "").replace("-", "") for name in GGUF_SUPPORTED_ARCHITECTURES}
        if architecture.replace("_", "").replace("-", "") not in known:
            raise UnsupportedError(
                f"{checkpoint.name} is a GGUF file of the architecture {architecture!r}, which "
                "transformers cannot read; expected one of "
                f"{', '.join(sorted(GGUF_SUPPORTED_ARCHITECTURES))}"
            )
        if importlib.util.find_spec("gguf") is None:
            raise MissingExtraError("gguf", "gguf", needed_for=f"the GGUF file {checkpoint.name}")
    kwargs["gguf_file"] = checkpoint.gguf
    config = AutoConfig.from_pretrained(checkpoint.folder, gguf_file=checkpoint.gguf)
    # Blocks are unpacked by the names that weights have below a language model's head.
    with_head = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    loader: Any = AutoModelForCausalLM if with_head else AutoModel
    model, info = loader.from_pretrained(checkpoint.folder, output_loading_info=True, **kwargs)
    body: nn.Module = model.base_model if with_head else model
    below = f"{model.base_model_prefix}." if with_head else ""  # the head itself embeds nothing
    refuse_random(checkpoint, [name for name in info["missing_keys"] if name.startswith(below)])
    return body


def check_packed(checkpoint: Checkpoint, stored: StoredLayers, body: nn.Module) -> None:
    """Refuse a body whose packed layers were not loaded as such, or others that were.

    Raises:
        UnsupportedError: names one of them.
    """
    if checkpoint.method not in {"gptq", "awq"}:
        return
    modules = dict(body.named_modules())
    wrong = [name for name in stored.packed if isinstance(modules.get(name), nn.Linear)]
    wrong += [name for name in stored.plain if not isinstance(modules.get(name), nn.Linear)]
    if wrong:
        raise UnsupportedError(
            f"transformers loaded {len(wrong)} layers of {checkpoint.name} another way than they "
            f"are stored, {wrong[0]} for one; their weights would be random"
        )


def _read_by_transformers(architecture: str) -> bool:
    """Whether transformers reads such a file by itself, as newer ones do for some."""
    try:
        from transformers.integrations.gguf.utils import (  # noqa: PLC0415 -- not in every version
            is_gguf_arch_supported,
        )
    except ImportError:
        return False
    return bool(is_gguf_arch_supported(architecture))

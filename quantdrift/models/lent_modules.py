"""A candidate's transformer with everything else taken from the reference.

Most quantizing tools save the transformer alone: how tokens become an embedding is not theirs.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from quantdrift.errors import UnsupportedError
from quantdrift.models.checkpoint import Checkpoint
from quantdrift.models.sentence_encoder import SentenceEncoder

__all__ = ["body_of", "dressed"]


def dressed(
    checkpoint: Checkpoint,
    reference: SentenceEncoder,
    body: nn.Module,
    tokenizer: Path | None,
    device: torch.device,
) -> Any:
    """The reference's modules around another transformer.

    Args:
        checkpoint: whose transformer it is.
        reference: whose modules they are; not changed.
        body: the transformer.
        tokenizer: folder that has one, None for the reference's.
        device: where it runs.

    Raises:
        UnsupportedError: the two transformers are of other kinds or sizes.
    """
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 -- takes seconds to import
    from transformers import AutoTokenizer  # noqa: PLC0415 -- as above

    original = body_of(reference.model)
    for what, here, there in (
        ("kind", type(original).__name__, type(body).__name__),
        ("width", _config(original, "hidden_size"), _config(body, "hidden_size")),
        ("vocabulary", _config(original, "vocab_size"), _config(body, "vocab_size")),
    ):
        if here != there:
            raise UnsupportedError(
                f"{checkpoint.name} does not say how tokens become an embedding (no modules.json), "
                f"and the reference's modules do not fit: {what} {there} instead of {here}. Save "
                "it by SentenceTransformer.save_pretrained, or name the model it was made of"
            )
    first, *others = reference.model.children()
    clone = copy.copy(first)
    for name, value in vars(first).items():
        if isinstance(value, dict):  # caches and modules are the clone's own
            clone.__dict__[name] = dict(value)
    place = next(name for name, child in first.named_children() if child is original)
    clone._modules[place] = body
    if tokenizer is not None:
        holder = "processor" if hasattr(first, "processor") else "tokenizer"
        setattr(clone, holder, AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=False))
    model = SentenceTransformer(
        modules=[clone, *(copy.deepcopy(module) for module in others)],
        device=str(device),
        prompts=dict(reference.model.prompts),
        default_prompt_name=reference.model.default_prompt_name,
        similarity_fn_name=reference.model.similarity_fn_name,
        truncate_dim=reference.model.truncate_dim,
    )
    model.max_seq_length = reference.model.max_seq_length
    return model


def body_of(model: Any) -> nn.Module:
    """The transformer of a SentenceTransformer.

    Raises:
        UnsupportedError: its first module is something else.
    """
    body = getattr(model[0], "auto_model", None)
    if not isinstance(body, nn.Module):
        raise UnsupportedError(
            f"expected an embedding model whose first module is a transformer; got "
            f"{type(model[0]).__name__}"
        )
    return body


def _config(body: nn.Module, key: str) -> Any:
    return getattr(getattr(body, "config", None), key, None)

"""What makes an embedding beside the weights, and in what two embedding models differ there."""

from __future__ import annotations

import torch

from quantdrift.models.reading import tokenizer_digest
from quantdrift.models.sentence_encoder import SentenceEncoder

__all__ = ["differences", "encoder_parts", "floating_dtype"]


def encoder_parts(encoder: SentenceEncoder) -> dict[str, str]:
    """Everything that decides an embedding beside the weights, by name.

    Args:
        encoder: an embedding model.

    Returns:
        The parts of `SentenceEncoder.describe` for either role, the tokenizer as a digest, and the
        type of numbers that are computed with.
    """
    query, document = (encoder.describe(role).split("\n", 2) for role in ("query", "document"))
    return {
        "prompt for queries": query[0],
        "prompt for documents": document[0],
        "length limit": query[1],
        "pooling and what follows": " ".join(query[2:]),
        "tokenizer": tokenizer_digest(encoder.model.tokenizer),
        "dtype": str(floating_dtype(encoder)).removeprefix("torch."),
    }


def floating_dtype(encoder: SentenceEncoder) -> torch.dtype:
    """The type of numbers that a model computes with: that of its first floating parameter."""
    for parameter in encoder.module.parameters():
        if parameter.dtype.is_floating_point:
            return parameter.dtype
    return torch.float32


def differences(reference: SentenceEncoder, candidate: SentenceEncoder) -> list[str]:
    """In what two models differ beside their weights: one sentence each.

    Args:
        reference: the one.
        candidate: the other.
    """
    one, other = encoder_parts(reference), encoder_parts(candidate)
    found = []
    for name, here in one.items():
        there = other[name]
        if here == there:
            continue
        shown = "" if name == "tokenizer" else f" ({here or 'none'!r} and {there or 'none'!r})"
        found.append(
            f"reference and candidate differ in {name}{shown}: what changes is not from the "
            "weights alone"
        )
    return found

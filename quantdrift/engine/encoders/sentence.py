"""Sentence-transformers models, from a path, a package or the hub."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from quantdrift.display import shown
from quantdrift.engine.encoders.vetting import loading, refuse_small_vocabulary
from quantdrift.engine.scoring.streamed import Similarity
from quantdrift.errors import MissingExtraError, UnsupportedError
from quantdrift.models.named import ModelSource, quiet_loading
from quantdrift.models.saved import is_onnx_folder

# --- Sentence-transformers models, from a path, a package or the hub ------------------------------

Role = Literal["query", "document"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SentenceEncoder:
    """A sentence-transformers model; prompts and pooling are left to it.

    Attributes:
        model: the SentenceTransformer.
        source: where it came from.
        similarity: how its embeddings are compared.
    """

    model: Any
    source: ModelSource
    similarity: Similarity

    @property
    def module(self) -> nn.Module:
        """The torch module (a SentenceTransformer is one)."""
        module: nn.Module = self.model
        return module

    def encode(self, texts: Sequence[str], role: Role, batch_size: int) -> NDArray[np.float32]:
        """Embed texts in the role they have, float32 [n, dim]."""
        encode = self.model.encode_query if role == "query" else self.model.encode_document
        embeddings = encode(list(texts), batch_size=batch_size, show_progress_bar=False, convert_to_tensor=True)
        return np.asarray(embeddings.float().cpu().numpy())

    def describe(self, role: Role) -> str:
        """Everything but the weights that decides an embedding: prompt, length limit, pooling."""
        modules = [repr(module) for module in list(self.model.children())[1:]]
        parts = [self.prompt(role), str(self.model.max_seq_length), *modules]
        return "\n".join(str(part) for part in parts)

    def prompt(self, role: Role) -> str:
        """What the model puts before every text of a role."""
        name = role if role in self.model.prompts else self.model.default_prompt_name
        return str(self.model.prompts.get(name, ""))


def pick_device(wanted: str | None = None) -> torch.device:
    """The device asked for, else the best there is: cuda, then mps, then cpu."""
    if wanted is not None:
        try:
            device = torch.device(wanted)
            torch.zeros(1, device=device).item()  # torch believes in any device until it is used
        except Exception as error:  # each kind of device has errors of its own
            there = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
            there += ["mps"] if torch.backends.mps.is_available() else []
            raise UnsupportedError(
                f"the device {shown(wanted)} cannot be used here; expected {' or '.join(there)}"
            ) from error
        return device
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def load_encoder(source: ModelSource, *, device: torch.device, revision: str | None = None) -> SentenceEncoder:
    """Load a sentence-transformers model, or a saved candidate that onnxruntime runs.

    Args:
        source: where it lies.
        device: where it runs.
        revision: of a hub model.

    Raises:
        MissingExtraError: sentence-transformers, or onnxruntime where it is needed, is not
            installed.
        UnsupportedError: the hub cannot be reached, has no such model, or the folder cannot be
            loaded as an embedding model.
        RunError: the folder's ONNX model is not the one that was written.
    """
    quiet_loading("sentence_transformers")
    on_onnx = source.kind == "local" and is_onnx_folder(Path(source.location))
    try:
        from sentence_transformers import SentenceTransformer  # noqa: PLC0415 -- takes seconds to import
        from transformers.utils.logging import disable_progress_bar  # noqa: PLC0415 -- as below
    except ImportError as error:
        raise MissingExtraError("sentence-transformers", "models", needed_for="running a model") from error
    disable_progress_bar()  # type: ignore[no-untyped-call]  # untyped there; ours are shown instead
    with loading(source, revision=revision):
        if on_onnx:
            from quantdrift.engine.encoders.onnx import load_onnx  # noqa: PLC0415 -- imports those above

            model: SentenceTransformer = load_onnx(source.location, device)
        else:
            model = SentenceTransformer(source.location, device=str(device), revision=revision)
    model.eval()
    return encoder_of(model, source)


def encoder_of(model: Any, source: ModelSource) -> SentenceEncoder:
    """A SentenceTransformer that is loaded.

    Args:
        model: the model.
        source: where it came from.

    Raises:
        UnsupportedError: it compares embeddings in a way that is not known here, or its tokenizer
            is missing.
    """
    refuse_small_vocabulary(model, source.name)
    name = str(model.similarity_fn_name or "cosine")
    if name not in set(Similarity):
        raise UnsupportedError(
            f"{source.name!r} compares embeddings by {name!r}; expected one of {', '.join(Similarity)}"
        )
    return SentenceEncoder(model=model, source=source, similarity=Similarity(name))


# --- How a model reads its input: tokenizer and settings, which weights and texts do not tell -----

_STATE = ("truncation", "padding")
"""Of a tokenizer's JSON: what the last call left behind."""
_VOLATILE = ("_name_or_path", "transformers_version", "_commit_hash")
"""Of a model's settings: where it came from, not what it does."""


def reading_digest(holders: Sequence[object], modules: Sequence[nn.Module]) -> str:
    """A digest of tokenizers and transformers settings, 32 hex digits.

    Args:
        holders: objects that may have a `tokenizer`.
        modules: the torch modules; settings of those that have a `config` count.
    """
    tokenizers = {id(one): one for holder in holders for one in _tokenizers(holder)}
    parts = [tokenizer_digest(one) for one in tokenizers.values()]
    configs: dict[int, Any] = {}
    for root in modules:
        for module in root.modules():
            config: Any = getattr(module, "config", None)
            if hasattr(config, "to_dict"):
                configs[id(config)] = config
    for config in configs.values():
        said: dict[str, Any] = config.to_dict()
        settings = {k: v for k, v in said.items() if k not in _VOLATILE}
        parts.append(json.dumps(settings, sort_keys=True, default=str))
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


def tokenizer_digest(tokenizer: Any) -> str:
    """A digest of a tokenizer: vocabulary, rules and what it pads and cuts, 32 hex digits."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None:
        content: Any = tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else repr(tokenizer)
    else:
        content = json.loads(fast.to_str())
        for name in _STATE:
            content.pop(name, None)
    names = ("padding_side", "truncation_side")
    sides = [getattr(tokenizer, name, None) for name in names]
    text = json.dumps([content, *sides], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _tokenizers(holder: object) -> Iterator[Any]:
    try:
        tokenizer = getattr(holder, "tokenizer", None)
    except (AttributeError, RuntimeError, NotImplementedError):  # a property of a model without one
        return
    if hasattr(tokenizer, "get_vocab"):
        yield tokenizer


# --- What makes an embedding beside the weights, and in what two embedding models differ there ----


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
        found.append(f"reference and candidate differ in {name}{shown}: what changes is not from the weights alone")
    return found

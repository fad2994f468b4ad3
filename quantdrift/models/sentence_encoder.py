"""Sentence-transformers models, from a path, a package or the hub."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from quantdrift.display import shown
from quantdrift.errors import MissingExtraError, UnsupportedError
from quantdrift.models.quiet import quiet_loading
from quantdrift.models.resolve import ModelSource
from quantdrift.models.vetting import loading, refuse_small_vocabulary
from quantdrift.saving.folder import is_onnx_folder
from quantdrift.scoring import Similarity

__all__ = ["Role", "SentenceEncoder", "encoder_of", "load_encoder", "pick_device"]

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
        embeddings = encode(
            list(texts), batch_size=batch_size, show_progress_bar=False, convert_to_tensor=True
        )
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


def load_encoder(
    source: ModelSource, *, device: torch.device, revision: str | None = None
) -> SentenceEncoder:
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
        raise MissingExtraError(
            "sentence-transformers", "models", needed_for="running a model"
        ) from error
    disable_progress_bar()  # type: ignore[no-untyped-call]  # untyped there; ours are shown instead
    with loading(source, revision=revision):
        if on_onnx:
            from quantdrift.models.onnx_encoder import load_onnx  # noqa: PLC0415 -- imports those above

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
            f"{source.name!r} compares embeddings by {name!r}; expected one of "
            f"{', '.join(Similarity)}"
        )
    return SentenceEncoder(model=model, source=source, similarity=Similarity(name))

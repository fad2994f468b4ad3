"""A checkpoint that sentence-transformers saved, loaded with an eye on what it lacks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer

from quantdrift.models.checkpoint import Checkpoint
from quantdrift.models.checkpoint_body import load_kwargs, refuse_random
from quantdrift.models.onnx_encoder import TransformerModule

__all__ = ["load_sentence_transformer"]


def load_sentence_transformer(
    checkpoint: Checkpoint, folder: Path, quantization: Mapping[str, Any], device: torch.device
) -> SentenceTransformer:
    """The embedding model of a folder.

    Args:
        checkpoint: what it is.
        folder: where it lies now, the checkpoint's folder or a copy of it.
        quantization: from `completed`; left out where the folder's own says everything.
        device: where it runs.

    Raises:
        UnsupportedError: weights are missing.
    """
    amended = quantization != checkpoint.quantization
    kwargs = load_kwargs(checkpoint, device)
    model = _Model(
        str(folder),
        device=None if "device_map" in kwargs else str(device),
        model_kwargs=kwargs,
        config_kwargs={"quantization_config": dict(quantization)} if amended else None,
    )
    refuse_random(checkpoint, getattr(model[0], "missing_keys", ()))
    return model


class _Transformer(TransformerModule):
    """A Transformer module that keeps the names of weights that its files do not hold."""

    missing_keys: tuple[str, ...] = ()

    def _load_model(self, *args: Any, **kwargs: Any) -> Any:
        loaded: Any = super()._load_model(*args, output_loading_info=True, **kwargs)
        assigned = loaded is None  # sentence-transformers 5 puts it in its place itself
        model, info = self.__dict__.pop("auto_model") if assigned else loaded
        self.missing_keys = tuple(sorted(info["missing_keys"]))
        if assigned:
            self.add_module("auto_model", model)
        return model


class _Model(SentenceTransformer):
    """A SentenceTransformer whose Transformer modules are ours."""

    def _load_module_class_from_ref(self, class_ref: str, *args: Any, **kwargs: Any) -> Any:
        found = super()._load_module_class_from_ref(class_ref, *args, **kwargs)
        return _Transformer if found is TransformerModule else found

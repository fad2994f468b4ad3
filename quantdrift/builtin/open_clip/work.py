"""A CLIP of open_clip as a sentence-transformers model, with its own towers for texts and images."""

import json
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import InputModule
from torch import Tensor

from quantdrift.base.errors import UnsupportedError
from quantdrift.base.records import bytes_digest
from quantdrift.builtin.sentence.work import SentenceEncoder, encoder_of
from quantdrift.models.files.kinds import model_json
from quantdrift.models.files.named import ModelSource
from quantdrift.models.loading import loading
from quantdrift.models.vetting import vet_settings

_CONFIG = "open_clip_config.json"
TEXT, IMAGE = "open_clip_tokens", "open_clip_pixels"


class OpenClip(InputModule):
    """The model of open_clip, in place of a transformers model in a SentenceTransformer.

    Attributes:
        clip: the model of open_clip.
        processor: settings for the preparation of images and texts.
    """

    def __init__(self, clip: Any, prepare: Any, tokenize: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped there
        self.clip, self._prepare, self._tokenize = clip, prepare, tokenize
        vocabulary = getattr(tokenize, "encoder", None) or repr(tokenize)
        digest = bytes_digest(json.dumps(vocabulary, sort_keys=True).encode(), size=16)
        settings = {
            "images": getattr(clip.visual, "preprocess_cfg", None),
            "tokenizer": [type(tokenize).__name__, getattr(tokenize, "context_length", None), digest],
            "modules": sorted({type(module).__name__ for module in clip.modules()}),  # QuickGELU has no weights
        }
        self.processor = SimpleNamespace(to_dict=lambda: settings)

    @property
    def modalities(self) -> Any:
        """Kinds of inputs that it takes."""
        return ["text", "image"]

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any) -> dict[str, Tensor]:
        """Return tokens of texts, or pixels of PIL images."""
        items = [item["text"] if isinstance(item, dict) else item for item in inputs]
        if isinstance(items[0], str):
            return {TEXT: self._tokenize([f"{prompt or ''}{text}" for text in items])}
        return {IMAGE: torch.stack([self._prepare(image) for image in items])}

    def forward(self, features: dict[str, Tensor], **kwargs: Any) -> dict[str, Tensor]:
        """Embed by the tower of the features, projection included."""
        like = next(self.clip.parameters())
        embeddings = (
            self.clip.encode_text(features[TEXT])
            if TEXT in features
            else self.clip.encode_image(features[IMAGE].to(like.dtype))
        )
        return {**features, "sentence_embedding": embeddings}

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Refused: open_clip has a format of its own."""
        raise UnsupportedError("a model of open_clip cannot be saved as a model of sentence-transformers")


_PRECISION = {"float32": "fp32", "bfloat16": "pure_bf16", "float16": "pure_fp16"}
"""open_clip's names of dtypes."""


def load_open_clip(
    source: ModelSource,
    *,
    device: torch.device,
    revision: str | None = None,
    dtype: str = "float32",
    trusted: bool = False,
) -> SentenceEncoder:
    """Load a folder with open_clip_config.json, a hub repository, or ARCHITECTURE/TAG of open_clip's list.

    None of them brings code, so it does not matter what is `trusted`.

    Raises:
        MissingExtraError: open_clip is not installed.
        UnsupportedError: a revision is given, which open_clip does not take.
    """
    with loading(source, revision=revision) as remarks:
        import open_clip  # noqa: PLC0415 -- an extra

        if revision is not None:
            raise UnsupportedError(f"open_clip takes no revision; leave --revision out for {source.name}")
        architecture, _, tag = source.location.partition("/")
        listed = source.kind == "hub" and architecture in open_clip.list_models()
        if not listed:
            settings = model_json(replace(source, canonical=source.location), _CONFIG)
            vet_settings(settings, f"{_CONFIG} of {source.name}")
        schema = "local-dir" if source.kind == "local" else "hf-hub"
        name = architecture if listed else f"{schema}:{source.location}"
        clip, _, prepare = open_clip.create_model_and_transforms(
            name,
            pretrained=tag if listed else None,
            device=device,
            require_pretrained=True,
            precision=_PRECISION[dtype],
        )
        modules: list[Any] = [OpenClip(clip, prepare, open_clip.get_tokenizer(name))]
        model: Any = SentenceTransformer(modules=modules, device=str(device), similarity_fn_name="cosine")
    return encoder_of(model.eval(), source, notes=remarks.notes)

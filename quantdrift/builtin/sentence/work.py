"""Sentence-transformers models, from a path, a package or the hub."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from quantdrift.base.display import shown
from quantdrift.base.errors import UnknownNameError, UnsupportedError
from quantdrift.base.records import bytes_digest
from quantdrift.base.text import some
from quantdrift.models.files.named import ModelSource
from quantdrift.models.loading import Placed, Reads, loading, on_rules, try_text
from quantdrift.models.model import EmbeddingModel, LoadedModel
from quantdrift.models.vetting import refuse_other_kinds, refuse_unsaid_pooling
from quantdrift.scoring.similarity import Similarity

_STATE = ("truncation", "padding")
"""Parts of a tokenizer's JSON that depend on its last call."""
_VOLATILE = ("_name_or_path", "transformers_version", "_commit_hash")
"""Settings of a model that name its origin and do not change its outputs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SentenceEncoder(EmbeddingModel):
    """A sentence-transformers model, which does prompts and pooling itself.

    Attributes:
        model: the SentenceTransformer.
        source: its origin.
        similarity: the similarity of its embeddings.
        notes: notes of loading and differences from a reference, one sentence each.
        layers: None, as its quantized layers are not known.
    """

    model: Any
    source: ModelSource
    similarity: Similarity
    notes: tuple[str, ...] = ()
    layers: Sequence[str] | None = None

    @property
    def module(self) -> nn.Module:
        """The torch module (a SentenceTransformer is one)."""
        module: nn.Module = self.model
        return module

    @property
    def takes(self) -> frozenset[str]:
        """Kinds of inputs that it embeds: "text", "image"."""
        return frozenset(getattr(self.model, "modalities", ("text",))) & {"text", "image"}

    def encode(self, items: Sequence[Any], role: str, batch_size: int) -> NDArray[np.float32]:
        """Embed texts, or images uint8 [height, width, 3], in their role, as float32 [n, dim]."""
        encode = self.model.encode_query if role == "query" else self.model.encode_document
        how = {"batch_size": batch_size, "show_progress_bar": False, "convert_to_tensor": True}
        parts = [encode(part, **how).float().cpu().numpy() for part in self.parts(items, batch_size)]
        return np.asarray(np.concatenate(parts))

    def parts(self, items: Sequence[Any], batch_size: int) -> Iterator[list[Any]]:
        """Yield inputs in the model's form: all texts at once, images, which are large, batch by batch."""
        if not len(items) or isinstance(items[0], str):
            # a model of images would open a text that is a path or an address
            yield [{"text": text} for text in items] if "image" in self.takes else list(items)
            return
        for at in range(0, len(items), batch_size):
            yield as_pictures(items[at : at + batch_size])

    def key(self, role: str) -> dict[str, Any]:
        """Return what decides an embedding beside weights, inputs and libraries."""
        first = [repr(self.model[0]), getattr(self.model, "truncate_dim", None)]
        key = {"encoder": self.settings(role), "first": first, "reading": reading_digest([self.model], [self.module])}
        return {**key, "images": image_settings(self.model)} if "image" in self.takes else key

    def settings(self, role: str) -> str:
        """Return prompt, length limit, pooling and the modules after it."""
        modules = [repr(module) for module in list(self.model.children())[1:]]
        return "\n".join([self.prompt(role), str(self.model.max_seq_length), *modules])

    def prompt(self, role: str) -> str:
        """Return the prompt before every text of a role."""
        name = role if role in self.model.prompts else self.model.default_prompt_name
        return str(self.model.prompts.get(name, ""))

    def limit(self) -> tuple[Any, int] | None:
        """Return the tokenizer and the most tokens of a text that it reads; None for images, or if unknown."""
        with suppress(AttributeError, RuntimeError, NotImplementedError):  # a model without a tokenizer
            most = self.model.max_seq_length or inf  # a static model says inf
            if most < inf and hasattr(tokenizer := self.model.tokenizer, "get_vocab"):
                return tokenizer, int(most)
        return None

    def beside_weights(self) -> dict[str, str]:
        """Return what decides an embedding beside the weights, by name."""
        query, document = (self.settings(role).split("\n", 2) for role in ("query", "document"))
        return {
            "prompt for queries": query[0],
            "prompt for documents": document[0],
            "length limit": query[1],
            "pooling and what follows": " ".join(query[2:]),
            "tokenizer": tokenizer_digest(self.model.tokenizer),
            "dtype": floating_dtype(self),
        }


def pick_device(wanted: str | None = None) -> torch.device:
    """Return a device, by default the best available one: cuda, then mps, then cpu."""
    if wanted is None:
        best = "mps" if torch.backends.mps.is_available() else "cpu"
        return torch.device("cuda" if torch.cuda.is_available() else best)
    try:
        device = torch.device(wanted)
        torch.zeros(1, device=device).item()  # torch accepts any device until it is used
    except Exception as error:  # each kind of device has errors of its own
        raise UnsupportedError(
            f"the device {shown(wanted)} cannot be used here; expected cpu, or one that is there (cuda:0, mps)"
        ) from error
    return device


def load_encoder(source: ModelSource, **where: Unpack[Placed]) -> SentenceEncoder:
    """Load a sentence-transformers model."""
    model, notes = load_sentence_transformer(source, **where)
    return encoder_of(model, source, notes=notes)


def load_sentence_transformer(
    source: ModelSource,
    *,
    device: torch.device,
    revision: str | None = None,
    dtype: str = "float32",
    kind: str = "SentenceTransformer",
    reads: Reads = "states",
    trusted: bool = False,
) -> tuple[Any, list[str]]:
    """Load a model of one of the library's kinds, and return its notes too; dtype "auto" is the model's own."""
    embeds = kind != "CrossEncoder"
    what = "model" if embeds else "cross-encoder"
    with loading(source, what, revision=revision, kind=kind, reads=reads, trusted=trusted) as remarks:
        import sentence_transformers  # noqa: PLC0415 -- takes seconds to import

        unsaid = kind in {"SentenceTransformer", "SparseEncoder"} and refuse_unsaid_pooling(source, revision)
        model = getattr(sentence_transformers, kind)(
            source.location,
            device=str(device),
            revision=revision,
            trust_remote_code=trusted,
            model_kwargs={"dtype": dtype},
        )
        if embeds and dtype != "auto":  # modules after the transformer have their own dtype
            model.to(getattr(torch, dtype))
        if source.read_as == "mean:" and _pooling(model) != "their mean":
            raise UnsupportedError(
                f"{source.name} is read by {_pooling(model)} in sentence-transformers; leave {source.read_as} out"
            )
        if unsaid:
            remarks.notes.append(
                f"{source.name} has no modules.json, which says how tokens become an embedding: "
                f"sentence-transformers takes {_pooling(model)} by itself"
            )
        notes = remarks.notes
        notes += [*on_rules(model, source.name, revision), *_on_padding(model, source.name)]
        notes += try_text(model.eval(), source.name)
    return model, notes


def _on_padding(model: Any, name: str) -> Iterator[str]:
    """Note a SigLIP model, which reads padding, if it is padded to the batch and not to its trained length."""
    first = next(iter(model), None)
    texts = (getattr(first, "processing_kwargs", None) or {}).get("text", {})
    kind = getattr(getattr(first, "config", None), "model_type", "")
    if kind in {"siglip", "siglip2"} and texts.get("padding") != "max_length":
        yield (
            f"{name} reads padding, and sentence-transformers pads a text to the longest of its batch, not to the "
            "length that SigLIP was trained on; save it with "
            'model[0].processing_kwargs = {"text": {"padding": "max_length"}}'
        )


def _pooling(model: Any) -> str:
    """Describe how tokens become an embedding."""
    modes = [getattr(module, "pooling_mode", None) or getattr(module, "pooling_strategy", None) for module in model]
    said = next((mode for mode in modes if mode), "what the transformer gives")
    return {"mean": "their mean", "lasttoken": "that of the last token", "max": "their maximum"}.get(
        str(said), str(said)
    )


def encoder_of(model: Any, source: ModelSource, *, notes: Sequence[str] = ()) -> SentenceEncoder:
    """Make an encoder of a loaded SentenceTransformer."""
    refuse_other_kinds(getattr(model, "model_type", None), source.name)
    name = str(model.similarity_fn_name or "cosine")
    if name not in set(Similarity):
        raise UnsupportedError(
            f"{source.name!r} compares embeddings by {name!r}; expected one of {', '.join(Similarity)}"
        )
    return SentenceEncoder(model=model, source=source, similarity=Similarity(name), notes=tuple(notes))


def choose_prompts(model: Any, chosen: Mapping[str, str]) -> None:
    """Choose the model's prompts for roles by name."""
    prompts = dict(model.model.prompts) if isinstance(model, SentenceEncoder) else {}
    for role, name in chosen.items():
        if name not in prompts:
            hint = f"(expected one of {some(list(map(shown, prompts)))})" if prompts else "(it has none)"
            raise UnknownNameError(f"prompt of {model.source.name}", name, prompts, hint=hint)
        model.model.prompts[role] = prompts[name]


# --- what decides an embedding beside the weights -------------------------------------------------


def as_pictures(images: Sequence[Any]) -> list[Any]:
    """Convert uint8 arrays [height, width, 3] or PIL images of any mode to PIL images in RGB."""
    from PIL import Image  # noqa: PLC0415 -- an optional package

    return [(image if isinstance(image, Image.Image) else Image.fromarray(image)).convert("RGB") for image in images]


def image_settings(model: Any) -> str:
    """Return the settings of a model's image processor as text."""
    processor: Any = getattr(model[0], "processor", None)
    prepares = getattr(processor, "image_processor", processor)
    said = prepares.to_dict() if hasattr(prepares, "to_dict") else str(prepares)
    return json.dumps([type(prepares).__name__, said], sort_keys=True, default=str)


def reading_digest(holders: Sequence[Any], modules: Sequence[nn.Module]) -> str:
    """Return a digest of tokenizers and of transformers' settings, 32 hex digits."""
    tokenizers = {}
    for holder in holders:
        with suppress(AttributeError, RuntimeError, NotImplementedError):  # a model without a tokenizer
            if hasattr(tokenizer := holder.tokenizer, "get_vocab"):
                tokenizers[id(tokenizer)] = tokenizer
    parts = [tokenizer_digest(tokenizer) for tokenizer in tokenizers.values()]
    configs: list[Any] = [getattr(module, "config", None) for root in modules for module in root.modules()]
    for config in {id(config): config for config in configs if hasattr(config, "to_dict")}.values():
        settings = {key: value for key, value in config.to_dict().items() if key not in _VOLATILE}
        parts.append(json.dumps(settings, sort_keys=True, default=str))
    return bytes_digest("\n".join(parts).encode(), size=16)


def tokenizer_digest(tokenizer: Any) -> str:
    """Return a digest of a tokenizer's vocabulary, rules, padding, truncation and outputs, 32 hex digits."""
    fast = getattr(tokenizer, "backend_tokenizer", tokenizer)  # a static model has only that
    if hasattr(fast, "to_str"):
        return _rules_digest(fast.to_str(), _sides(tokenizer))
    content: Any = tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else repr(tokenizer)
    text = json.dumps([content, *_sides(tokenizer)], sort_keys=True, default=str)
    return bytes_digest(text.encode(), size=16)


@lru_cache(maxsize=8)  # takes a tenth of a second, for each side of each arm
def _rules_digest(rules: str, sides: tuple[Any, ...]) -> str:
    content = {key: value for key, value in json.loads(rules).items() if key not in _STATE}
    text = json.dumps([content, *sides], sort_keys=True, default=str)
    return bytes_digest(text.encode(), size=16)


def _sides(tokenizer: Any) -> tuple[str, ...]:
    """Return the sides of padding and truncation, and the names of outputs."""
    names = ("padding_side", "truncation_side", "model_input_names")
    return tuple(str(getattr(tokenizer, name, None)) for name in names)


def floating_dtype(encoder: LoadedModel) -> str:
    """Return the dtype of a model's first floating parameter, in which it computes."""
    floating = (p.dtype for p in encoder.module.parameters() if p.dtype.is_floating_point)
    return str(next(floating, torch.float32)).removeprefix("torch.")


def differences(reference: LoadedModel, candidate: LoadedModel) -> list[str]:
    """Return the differences of two models of one similarity beside their weights, one sentence each."""
    if candidate.similarity != reference.similarity:
        raise UnsupportedError(
            f"{candidate.source.name} compares embeddings by {str(candidate.similarity)!r}, {reference.source.name} by "
            f"{str(reference.similarity)!r}; expected two models with one similarity_fn_name "
            "(config_sentence_transformers.json), as their scores have no common scale"
        )
    ours, other = reference.beside_weights(), candidate.beside_weights()
    notes = []
    for name in (name for name in ours if ours[name] != other[name]):
        values = "" if "tokenizer" in name else f" ({ours[name] or 'none'!r} and {other[name] or 'none'!r})"
        notes.append(f"reference and candidate differ in {name}{values}: what changes is not from the weights alone")
    return notes

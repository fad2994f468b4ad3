"""Classifiers of texts and images as functions from inputs to logits."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quantdrift.engine.encoders.sentence import reading_digest
from quantdrift.engine.encoders.vetting import loading, quiet_loading, refuse_small_vocabulary
from quantdrift.errors import ScoreError, UnsupportedError
from quantdrift.models.classifier_config import classifier_kind
from quantdrift.models.named import ModelSource

_CHANNELS = 3
_NO_LIMIT = 10**6
"""Tokenizers without a limit of their own have one of 10^30."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Classifier:
    """A model that gives every input one logit per class.

    Attributes:
        module: what computes the logits.
        source: where it came from.
        takes: "text" or "image".
        classes: names by position of the logit.
        prepare: tokenizer or preprocessing: from inputs to keyword arguments of the module.
        description: everything but the weights that decides logits: tokenizer, length limit, preprocessing.
        one_by_one: whether inputs cannot share a forward pass (texts without a padding token).
    """

    module: nn.Module
    source: ModelSource
    takes: Literal["text", "image"]
    classes: tuple[str, ...]
    prepare: Callable[[list[Any]], Mapping[str, Tensor]]
    description: str
    one_by_one: bool = False

    def encode(self, items: Sequence[Any], role: str, batch_size: int) -> NDArray[np.float32]:
        """The logits of inputs, by the weights that the module has now, float32 [n, n_classes]."""
        del role
        step = 1 if self.one_by_one else batch_size
        parts: list[NDArray[np.float32]] = [np.empty((0, len(self.classes)), dtype=np.float32)]
        with torch.no_grad():
            for start in range(0, len(items), step):
                parts.append(self._of_batch(list(items[start : start + step])))
        return np.concatenate(parts)

    def _of_batch(self, batch: list[Any]) -> NDArray[np.float32]:
        like = next(self.module.parameters())
        given = {
            name: value.to(device=like.device, dtype=like.dtype if value.is_floating_point() else value.dtype)
            for name, value in self.prepare(batch).items()
        }
        result = self.module(**given)
        logits = result if isinstance(result, Tensor) else result.logits  # of timm, and of transformers
        wanted = (len(batch), len(self.classes))
        if tuple(logits.shape) != wanted:
            kind, got = type(self.module).__name__, list(logits.shape)
            raise ScoreError(f"expected logits of shape {list(wanted)} (inputs, classes) from {kind}, got {got}")
        return np.asarray(logits.float().cpu().numpy())

    def key(self, role: str) -> dict[str, Any]:
        """What decides logits beside weights, inputs and libraries."""
        del role
        return {"classifier": self.description}


def load_classifier(source: ModelSource, *, device: torch.device, revision: str | None = None) -> Classifier:
    """Load a classifier of transformers or timm."""
    kind = classifier_kind(source, revision)
    if kind is None:
        raise UnsupportedError(
            f"{source.name!r} ({source.canonical}) is no classifier of texts or images, its config.json says; expected "
            "...ForSequenceClassification, ...ForImageClassification, or a timm model"
        )
    with loading(source, "classifier", revision=revision):
        if kind == "timm":
            return _of_timm(source, device, revision)
        return _of_transformers(source, kind, device, revision)


def _of_timm(source: ModelSource, device: torch.device, revision: str | None) -> Classifier:
    """An image classifier from the hub or a folder of its own layout, with the preprocessing it was evaluated with."""
    import timm.data  # noqa: PLC0415 -- an optional package, and slow to import

    quiet_loading()
    at = f"hf-hub:{source.location}" + ("" if revision is None else f"@{revision}")
    name = at if source.kind == "hub" else f"local-dir:{source.location}"
    module: Any = timm.create_model(name, pretrained=True)
    n_classes, settings = int(module.num_classes), timm.data.resolve_data_config({}, model=module)
    _refuse_one_class(source, n_classes)
    if settings["input_size"][0] != _CHANNELS:
        raise UnsupportedError(
            f"{source.name!r} ({source.canonical}) takes images of {settings['input_size'][0]} channels; expected "
            f"{_CHANNELS} (RGB)"
        )
    transform = timm.data.create_transform(**settings, is_training=False)
    said = dict(module.pretrained_cfg)
    names = said.get("label_names") or ()
    names = list(names.values()) if isinstance(names, Mapping) else names
    # the same weights with another activation, or another number of heads, give other logits
    config = Path(source.location, "config.json")
    config_text = source.location if source.kind == "hub" else config.read_text(encoding="utf-8")
    told = json.dumps([settings, said], sort_keys=True, default=str)
    return Classifier(
        module=module.eval().to(device),
        source=source,
        takes="image",
        classes=tuple(map(str, names if len(names) == n_classes else range(n_classes))),
        prepare=lambda images: {"x": torch.stack([transform(picture) for picture in as_pictures(images)])},
        description="\n".join([told, repr(transform), repr(module), config_text, timm.__version__]),
    )


def _of_transformers(
    source: ModelSource, takes: Literal["text", "image"], device: torch.device, revision: str | None
) -> Classifier:
    """A sequence or image classifier with its tokenizer or image processor."""
    import transformers  # noqa: PLC0415 -- takes seconds to import

    quiet_loading()
    kind = "SequenceClassification"
    reader_of: Any = transformers.AutoTokenizer
    if takes == "image":
        import PIL  # noqa: F401, PLC0415 -- only asked whether it is there

        kind, reader_of = "ImageClassification", transformers.AutoImageProcessor
    options = {"revision": revision, "trust_remote_code": False}
    config = transformers.AutoConfig.from_pretrained(source.location, **options)
    regression = getattr(config, "problem_type", None) == "regression"
    _refuse_one_class(source, 1 if regression else int(config.num_labels))
    auto: Any = getattr(transformers, f"AutoModelFor{kind}")
    module, info = auto.from_pretrained(source.location, output_loading_info=True, **options)
    reader: Any = reader_of.from_pretrained(source.location, **options)
    missing = sorted(name for name in info["missing_keys"] if name in dict(module.named_parameters()))
    if missing:  # transformers drew them at random, as the head of a base model
        raise UnsupportedError(
            f"{source.name!r} ({source.canonical}) has no weights for {missing[0]}"
            f"{f' and {len(missing) - 1} more' if len(missing) > 1 else ''}, and would answer at random; expected a "
            "checkpoint that was trained as a classifier"
        )
    module = module.eval().to(device)
    names = config.id2label or {}
    classes = tuple(str(names.get(number, number)) for number in range(int(config.num_labels)))
    if takes == "image":
        said = json.dumps(reader.to_dict(), sort_keys=True, default=str)
        return Classifier(
            module=module,
            source=source,
            takes="image",
            classes=classes,
            prepare=lambda images: dict(reader(as_pictures(images), return_tensors="pt")),
            description="\n".join([type(reader).__name__, said, reading_digest([], [module])]),
        )
    refuse_small_vocabulary(module, source.name, reader)
    limit, paddable = _length_limit(module, reader), _agree_on_padding(module, reader)
    how: dict[str, Any] = {"padding": paddable, "truncation": limit is not None, "max_length": limit}
    return Classifier(
        module=module,
        source=source,
        takes="text",
        classes=classes,
        prepare=lambda texts: dict(reader(texts, return_tensors="pt", **how)),
        description=f"at most {limit} tokens\n{reading_digest([SimpleNamespace(tokenizer=reader)], [module])}",
        one_by_one=not paddable,
    )


def _refuse_one_class(source: ModelSource, n_classes: int) -> None:
    if n_classes < 2:  # noqa: PLR2004 -- one class is no choice
        raise UnsupportedError(
            f"{source.name!r} ({source.canonical}) gives one number and no classes (it is a regression model or a "
            "reranker), so there is nothing to rank; expected two classes or more. A reranker is measured on a "
            "search: quantdrift run --shortlist RUN"
        )


def _length_limit(module: Any, tokenizer: Any) -> int | None:
    """Tokens that the model can take; None if it says of no limit."""
    positions = getattr(module.config, "max_position_embeddings", None)
    for name, part in module.named_modules():
        if name.endswith("position_embeddings") and isinstance(part, nn.Embedding):
            # RoBERTa counts positions from behind the padding's
            positions = part.num_embeddings - (0 if part.padding_idx is None else part.padding_idx + 1)
    known = [positions] if isinstance(positions, int) and positions > 0 else []
    limit = min(int(tokenizer.model_max_length), _NO_LIMIT, *known)
    return limit if limit < _NO_LIMIT else None


def _agree_on_padding(module: Any, tokenizer: Any) -> bool:
    """Let model and tokenizer pad by the same token; False if neither has one."""
    if tokenizer.pad_token_id is not None:
        # a decoder finds a text's last token by the config's; another there would be read as text
        module.config.pad_token_id = tokenizer.pad_token_id
        return True
    known = getattr(module.config, "pad_token_id", None)
    if known is None or known < 0:
        return False
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(known)
    return True


def as_pictures(images: Sequence[Any]) -> list[Any]:
    """PIL images in RGB, of uint8 arrays [height, width, 3] or PIL images of any mode."""
    from PIL import Image  # noqa: PLC0415 -- an optional package

    return [(one if isinstance(one, Image.Image) else Image.fromarray(one)).convert("RGB") for one in images]

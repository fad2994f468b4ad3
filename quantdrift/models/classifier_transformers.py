"""Classifiers of transformers: texts through a tokenizer, images through an image processor."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from quantdrift.errors import MissingExtraError, UnsupportedError
from quantdrift.models.classifier import Classifier
from quantdrift.models.classifier_images import as_pictures
from quantdrift.models.quiet import quiet_loading
from quantdrift.models.reading import reading_digest
from quantdrift.models.resolve import ModelSource
from quantdrift.models.vetting import loading, refuse_small_vocabulary

__all__ = ["load_transformers"]

_NO_LIMIT = 10**6
"""Tokenizers without a limit of their own have one of 10^30."""


def load_transformers(
    source: ModelSource,
    *,
    takes: Literal["text", "image"],
    device: torch.device,
    revision: str | None = None,
) -> Classifier:
    """Load a sequence or image classifier with its tokenizer or image processor.

    Args:
        source: where it lies.
        takes: which of the two.
        device: where it runs.
        revision: of a hub model.

    Raises:
        MissingExtraError: transformers or pillow is not installed.
        UnsupportedError: it cannot be loaded, is no classifier of two classes or more, or part of
            its weights are not in the checkpoint.
    """
    quiet_loading()
    try:
        import transformers  # noqa: PLC0415 -- takes seconds to import
        from transformers.utils.logging import disable_progress_bar  # noqa: PLC0415 -- as above
    except ImportError as error:
        raise MissingExtraError("transformers", "models", needed_for="running a model") from error
    disable_progress_bar()  # type: ignore[no-untyped-call]  # untyped there; ours are shown instead
    if takes == "image":
        _need_pillow()
    options = {"revision": revision, "trust_remote_code": False}
    with loading(source, "classifier", revision=revision):
        config = transformers.AutoConfig.from_pretrained(source.location, **options)
        classes = _classes(config, source)
        auto: Any = (
            transformers.AutoModelForSequenceClassification
            if takes == "text"
            else transformers.AutoModelForImageClassification
        )
        module, info = auto.from_pretrained(source.location, output_loading_info=True, **options)
        reader_of: Any = (
            transformers.AutoTokenizer if takes == "text" else transformers.AutoImageProcessor
        )
        reader = reader_of.from_pretrained(source.location, **options)
    _refuse_incomplete(module, info, source)
    module = module.eval().to(device)
    if takes == "image":
        return Classifier(
            module=module,
            source=source,
            takes="image",
            classes=classes,
            prepare=_Processed(processor=reader),
            description=_description(module, reader),
        )
    refuse_small_vocabulary(module, source.name, reader)
    limit = _length_limit(module, reader)
    paddable = _agree_on_padding(module, reader)
    return Classifier(
        module=module,
        source=source,
        takes="text",
        classes=classes,
        prepare=_Tokenized(tokenizer=reader, limit=limit, paddable=paddable),
        description=f"at most {limit} tokens\n{reading_digest([_Holder(reader)], [module])}",
        one_by_one=not paddable,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Tokenized:
    """Texts, or pairs of texts, to tokens."""

    tokenizer: Any
    limit: int | None
    paddable: bool

    def __call__(self, texts: Sequence[Any]) -> Mapping[str, Any]:
        return dict(
            self.tokenizer(
                list(texts),
                padding=self.paddable,
                truncation=self.limit is not None,
                max_length=self.limit,
                return_tensors="pt",
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Processed:
    """Images to pixel values."""

    processor: Any

    def __call__(self, images: Sequence[Any]) -> Mapping[str, Any]:
        return dict(self.processor(as_pictures(images), return_tensors="pt"))


@dataclass(frozen=True, slots=True)
class _Holder:
    tokenizer: Any


def _classes(config: Any, source: ModelSource) -> tuple[str, ...]:
    n_classes = int(config.num_labels)
    regression = getattr(config, "problem_type", None) == "regression"
    if n_classes < 2 or regression:  # noqa: PLR2004 -- one class is no choice
        raise UnsupportedError(
            f"{source.name!r} ({source.canonical}) gives {n_classes} number(s) and no classes (it "
            "is a regression model or a reranker), so there is nothing to rank; expected two "
            "classes or more. A reranker is measured on a search: quantdrift run --shortlist RUN"
        )
    names = config.id2label or {}
    return tuple(str(names.get(number, number)) for number in range(n_classes))


def _refuse_incomplete(module: nn.Module, info: Mapping[str, Any], source: ModelSource) -> None:
    """Refuse a model part of which transformers drew at random, as the head of a base model."""
    parameters = dict(module.named_parameters())
    missing = sorted(name for name in info["missing_keys"] if name in parameters)
    if missing:
        raise UnsupportedError(
            f"{source.name!r} ({source.canonical}) has no weights for {missing[0]}"
            f"{f' and {len(missing) - 1} more' if len(missing) > 1 else ''}, and would answer at "
            "random; expected a checkpoint that was trained as a classifier"
        )


def _length_limit(module: Any, tokenizer: Any) -> int | None:
    """Tokens that the model can take; None if it says of no limit."""
    limits = [int(tokenizer.model_max_length), _NO_LIMIT]
    positions = getattr(module.config, "max_position_embeddings", None)
    for name, part in module.named_modules():
        if name.endswith("position_embeddings") and isinstance(part, nn.Embedding):
            # RoBERTa counts positions from behind the padding's
            before = 0 if part.padding_idx is None else part.padding_idx + 1
            positions = part.num_embeddings - before
    if isinstance(positions, int) and positions > 0:
        limits.append(positions)
    return limit if (limit := min(limits)) < _NO_LIMIT else None


def _agree_on_padding(module: Any, tokenizer: Any) -> bool:
    """Let model and tokenizer pad by the same token; False if neither has one."""
    config = module.config
    if tokenizer.pad_token_id is not None:
        # a decoder finds a text's last token by the config's; another there would be read as text
        config.pad_token_id = tokenizer.pad_token_id
        return True
    known = getattr(config, "pad_token_id", None)
    if known is None or known < 0:
        return False
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(known)
    return True


def _description(module: nn.Module, processor: Any) -> str:
    said = json.dumps(processor.to_dict(), sort_keys=True, default=str)
    return "\n".join([type(processor).__name__, said, reading_digest([], [module])])


def _need_pillow() -> None:
    try:
        import PIL  # noqa: F401, PLC0415 -- only asked whether it is there
    except ImportError as error:
        raise MissingExtraError("pillow", "images", needed_for="classifying images") from error

"""Classifiers of texts and images as functions from inputs to logits."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quantdrift.engine.encoders.sentence import reading_digest
from quantdrift.engine.encoders.vetting import loading, refuse_small_vocabulary
from quantdrift.errors import DataError, MissingExtraError, ScoreError, UnsupportedError
from quantdrift.models.classifier_config import classifier_kind
from quantdrift.models.named import ModelSource, quiet_loading

# --- Classifiers of texts and images as functions from inputs to logits ---------------------------

Takes = Literal["text", "image"]

Prepare = Callable[[Sequence[Any]], Any]
"""From inputs to what the module is called with: keyword arguments (a mapping), several positional
ones (a tuple), or one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Classifier:
    """A model that gives every input one logit per class.

    Attributes:
        module: what computes the logits.
        source: where it came from; None for a module that was handed over.
        takes: "text" or "image".
        classes: names by position of the logit.
        prepare: tokenizer or preprocessing.
        description: what `describe` says.
        one_by_one: whether inputs cannot share a forward pass (texts without a padding token).
    """

    module: nn.Module
    source: ModelSource | None
    takes: Takes
    classes: tuple[str, ...]
    prepare: Prepare
    description: str
    one_by_one: bool = False

    def logits(self, inputs: Sequence[Any], batch_size: int) -> NDArray[np.float32]:
        """The logits of inputs, by the weights that the module has now.

        Args:
            inputs: texts (or pairs of texts, as tuples); or images, each a uint8 array [height,
                width, 3] or a PIL image.
            batch_size: inputs per forward pass.

        Returns:
            float32 [n, n_classes]. Batches of another size give the same up to rounding.

        Raises:
            ScoreError: the module gives something else than one logit per class.
            DataError: an image is none.
        """
        step = 1 if self.one_by_one else batch_size
        parts: list[NDArray[np.float32]] = [np.empty((0, len(self.classes)), dtype=np.float32)]
        with _evaluating(self.module), torch.no_grad():
            for start in range(0, len(inputs), step):
                batch = list(inputs[start : start + step])
                parts.append(self._of_batch(batch))
        return np.concatenate(parts)

    def _of_batch(self, batch: list[Any]) -> NDArray[np.float32]:
        given = _moved(self.prepare(batch), next(self.module.parameters()))
        if isinstance(given, Mapping):
            result = self.module(**given)
        else:
            result = self.module(*given) if isinstance(given, tuple) else self.module(given)
        found = logits_in(result)
        wanted = (len(batch), len(self.classes))
        if found is None or tuple(found.shape) != wanted:
            what = type(result).__name__ if found is None else f"logits {list(found.shape)}"
            raise ScoreError(
                f"expected logits of shape {list(wanted)} (inputs, classes) from "
                f"{type(self.module).__name__}, got {what}"
            )
        return found.float().cpu().numpy()

    def describe(self) -> str:
        """Everything but the weights that decides logits: tokenizer, length limit, preprocessing.

        Of a module that was handed over without a description, another text for every `Classifier`:
        what is stored under it is found by no other.
        """
        return self.description


def classifier_of(
    module: nn.Module, *, classes: Sequence[str], prepare: Prepare, takes: Takes, description: str | None = None
) -> Classifier:
    """Any torch module that returns logits: as a tensor, in `.logits`, in a dict or a tuple.

    >>> classifier_of(net, classes=["cat", "dog"], prepare=stack, takes="image")  # doctest: +SKIP

    Args:
        module: what computes the logits; called in evaluation mode, on the device it is on.
        classes: names by position of the logit.
        prepare: makes of inputs what the module is called with. Tensors in it are moved to the
            module's device, floating-point ones into its dtype.
        takes: what the inputs are.
        description: what `prepare` does, in words that change when it does; reference logits are
            kept between runs only where it is given.

    Raises:
        UnsupportedError: fewer than two classes, or a module without parameters.
    """
    if len(classes) < 2:  # noqa: PLR2004 -- one class leaves nothing to rank
        raise UnsupportedError(f"expected two classes or more, got {list(classes)}: of one there is nothing to rank")
    if next(module.parameters(), None) is None:
        raise UnsupportedError(f"{type(module).__name__} has no parameters, so there is nothing to quantize")
    return Classifier(
        module=module,
        source=None,
        takes=takes,
        classes=tuple(map(str, classes)),
        prepare=prepare,
        description=description or f"not described {uuid.uuid4().hex}",
    )


def load_classifier(source: ModelSource, *, device: torch.device, revision: str | None = None) -> Classifier:
    """Load a classifier of transformers or timm.

    Args:
        source: where it lies.
        device: where it runs.
        revision: of a hub model.

    Raises:
        MissingExtraError: transformers, timm or pillow is needed and not installed.
        UnsupportedError: the model is no classifier of texts or images, has one class only, its
            head is not in the checkpoint, it cannot be loaded, or the hub cannot be reached.
    """
    kind = classifier_kind(source, revision)
    if kind is None or kind == "audio":
        what = "takes audio" if kind else "is no classifier, its config.json says"
        raise UnsupportedError(
            f"{source.name!r} ({source.canonical}) {what}; expected a model of texts or images "
            "(...ForSequenceClassification, ...ForImageClassification, or a timm model)"
        )
    if kind == "timm":
        return load_timm(source, device=device, revision=revision)

    return load_transformers(source, takes=kind, device=device, revision=revision)


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Inside, no dropout and no batch statistics; afterwards every part is in the mode it was."""
    training = [part for part in module.modules() if part.training]
    try:
        for part in training:
            part.training = False
        yield
    finally:
        for part in training:
            part.training = True


def _moved(given: Any, like: nn.Parameter) -> Any:
    """The same with every tensor on the device of a parameter, floats in its dtype."""
    if isinstance(given, Tensor):
        wanted = like.dtype if given.is_floating_point() else given.dtype
        return given.to(device=like.device, dtype=wanted)
    if isinstance(given, Mapping):
        return {key: _moved(value, like) for key, value in given.items()}
    if isinstance(given, tuple):
        return tuple(_moved(value, like) for value in given)
    return given


def logits_in(result: Any) -> Tensor | None:
    """The logits in what a module returned: itself, `.logits`, an entry of that name, or the first.

    Args:
        result: of a forward pass.

    Returns:
        None if there is no tensor.
    """
    if isinstance(result, Tensor):
        return result
    if isinstance(found := getattr(result, "logits", None), Tensor):
        return found
    if isinstance(result, Mapping):
        values = [result["logits"]] if "logits" in result else list(result.values())
    else:
        values = list(result) if isinstance(result, tuple | list) else []
    return next((value for value in values if isinstance(value, Tensor)), None)


# --- Images as preprocessing takes them -----------------------------------------------------------

_CHANNELS = 3


def as_pictures(images: Sequence[Any]) -> list[Any]:
    """PIL images in RGB.

    Args:
        images: each a uint8 array [height, width, 3], or a PIL image of any mode.

    Raises:
        DataError: one is neither.
    """
    from PIL import Image  # noqa: PLC0415 -- an optional package

    pictures = []
    for number, image in enumerate(images):
        if isinstance(image, Image.Image):
            pictures.append(image.convert("RGB"))
            continue
        if not (
            isinstance(image, np.ndarray)
            and image.dtype == np.uint8
            and image.ndim == _CHANNELS
            and image.shape[2] == _CHANNELS
        ):
            got = type(image).__name__
            if isinstance(image, np.ndarray):
                got = f"{image.dtype} {list(image.shape)}"
            raise DataError(
                f"image {number} of a batch: expected a uint8 array [height, width, 3] or a PIL image, got {got}"
            )
        pictures.append(Image.fromarray(image))
    return pictures


# --- Image classifiers of timm, from the hub or a folder in its layout ----------------------------


def load_timm(source: ModelSource, *, device: torch.device, revision: str | None = None) -> Classifier:
    """Load an image classifier with the preprocessing that it was evaluated with.

    Args:
        source: a hub id, or a folder as `timm.models.save_for_hf` writes it.
        device: where it runs.
        revision: of a hub model.

    Raises:
        MissingExtraError: timm is not installed, or what it needs cannot be imported.
        UnsupportedError: the model cannot be loaded, has fewer than two classes, or takes something
            else than RGB images.
    """
    quiet_loading("timm")
    try:
        import timm  # noqa: PLC0415 -- an optional package, and slow to import
        import timm.data  # noqa: PLC0415 -- as above
    except (ImportError, OSError, RuntimeError) as error:  # torchvision's wheel may not fit torch's
        raise MissingExtraError("timm", "timm", needed_for=f"the model {source.name!r}") from error
    with loading(source, "classifier", revision=revision):
        module: Any = timm.create_model(_timm_name(source, revision), pretrained=True)
    said = dict(module.pretrained_cfg)
    n_classes = int(module.num_classes)
    if n_classes < 2:  # noqa: PLR2004 -- one class is no choice
        raise UnsupportedError(
            f"{source.name!r} ({source.canonical}) has {n_classes} classes, so there is nothing to "
            "rank; expected two or more"
        )
    settings = timm.data.resolve_data_config({}, model=module)
    if settings["input_size"][0] != _CHANNELS:
        raise UnsupportedError(
            f"{source.name!r} ({source.canonical}) takes images of {settings['input_size'][0]} "
            f"channels; expected {_CHANNELS} (RGB)"
        )
    transform = timm.data.create_transform(**settings, is_training=False)
    names = said.get("label_names") or ()
    if isinstance(names, Mapping):
        names = list(names.values())
    if len(names) != n_classes:
        names = range(n_classes)
    return Classifier(
        module=module.eval().to(device),
        source=source,
        takes="image",
        classes=tuple(map(str, names)),
        prepare=_Transformed(transform=transform),
        description="\n".join(
            [
                json.dumps([settings, said], sort_keys=True, default=str),
                repr(transform),
                repr(module),  # the same weights with another activation give other logits
                _config(source),  # and with another number of heads, which only it tells
                timm.__version__,
            ]
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Transformed:
    """Images to one tensor."""

    transform: Any

    def __call__(self, images: Sequence[Any]) -> Tensor:
        return torch.stack([self.transform(picture) for picture in as_pictures(images)])


def _config(source: ModelSource) -> str:
    """The settings of a local folder as they stand there; of a hub model, its name."""
    file = Path(source.location) / "config.json"
    return file.read_text(encoding="utf-8") if source.kind != "hub" else source.location


def _timm_name(source: ModelSource, revision: str | None) -> str:
    if source.kind != "hub":
        return f"local-dir:{source.location}"
    return f"hf-hub:{source.location}" + ("" if revision is None else f"@{revision}")


# --- Classifiers of transformers: texts through a tokenizer, images through an image processor ----

_NO_LIMIT = 10**6
"""Tokenizers without a limit of their own have one of 10^30."""


def load_transformers(
    source: ModelSource, *, takes: Literal["text", "image"], device: torch.device, revision: str | None = None
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
        reader_of: Any = transformers.AutoTokenizer if takes == "text" else transformers.AutoImageProcessor
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

"""Classifiers of texts and images as functions from inputs to logits."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quantdrift.errors import ScoreError, UnsupportedError
from quantdrift.models.classifier_config import classifier_kind, is_classifier
from quantdrift.models.resolve import ModelSource

__all__ = [
    "Classifier",
    "Prepare",
    "Takes",
    "classifier_of",
    "is_classifier",
    "load_classifier",
    "logits_in",
]

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
    module: nn.Module,
    *,
    classes: Sequence[str],
    prepare: Prepare,
    takes: Takes,
    description: str | None = None,
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
        raise UnsupportedError(
            f"expected two classes or more, got {list(classes)}: of one there is nothing to rank"
        )
    if next(module.parameters(), None) is None:
        raise UnsupportedError(
            f"{type(module).__name__} has no parameters, so there is nothing to quantize"
        )
    return Classifier(
        module=module,
        source=None,
        takes=takes,
        classes=tuple(map(str, classes)),
        prepare=prepare,
        description=description or f"not described {uuid.uuid4().hex}",
    )


def load_classifier(
    source: ModelSource, *, device: torch.device, revision: str | None = None
) -> Classifier:
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
        from quantdrift.models.classifier_timm import load_timm  # noqa: PLC0415 -- imports this

        return load_timm(source, device=device, revision=revision)
    from quantdrift.models.classifier_transformers import load_transformers  # noqa: PLC0415 -- as above

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

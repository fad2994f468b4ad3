"""A classifier as an encoder: what goes into its head is the embedding, and the head the probe.

So a checkpoint that was trained to classify can be read both ways, by its classes and as a search
among the inputs. Source: paper, appendix "Image self-retrieval".
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from quantdrift.datasets.labelled import Labelled
from quantdrift.errors import ScoreError, UnsupportedError
from quantdrift.measurement.class_readings import ClassReading, by_linear
from quantdrift.measurement.inputs import Inputs, Vectors
from quantdrift.measurement.readers import Reader
from quantdrift.models.head import find_head
from quantdrift.pair import QuantizedPair
from quantdrift.probe import LinearProbe

__all__ = ["HeadReading", "as_encoder"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeadReading:
    """The head of a classifier, a linear layer that is left at full precision.

    Attributes:
        name: path of the layer.
        layer: the layer.
        classes: names, by logit.
    """

    name: str
    layer: nn.Linear
    classes: tuple[str, ...]

    def reading(self, pair: QuantizedPair) -> ClassReading:
        """How classes are read from what goes into the head.

        Args:
            pair: must leave the head alone; in the reference arm.

        Raises:
            UnsupportedError: its scheme quantizes the head.
        """
        if any(self.layer in layer.modules for layer in pair.layers):
            raise UnsupportedError(
                f"{pair.scheme} quantizes the head {self.name} of {pair.name}, and a contrast "
                "reads both arms by one head; leave +head= out"
            )
        weight, bias = self.layer.weight, self.layer.bias
        head = LinearProbe(
            classes=self.classes,
            weight=weight.detach().double().cpu().numpy(),
            bias=np.zeros(len(weight)) if bias is None else bias.detach().double().cpu().numpy(),
        )
        return by_linear(head, {"reading": "logits", "head": self.name})


def as_encoder(reader: Reader) -> tuple[Reader, HeadReading]:
    """A classifier that gives what goes into its head, and that head.

    Args:
        reader: a classifier.

    Raises:
        UnsupportedError: its head is not one linear layer that takes one vector per input.
    """
    head = find_head([reader.module])
    names = () if head is None else head.names
    layer = reader.module.get_submodule(names[0]) if len(names) == 1 else None
    if not isinstance(layer, nn.Linear) or reader.classes is None:
        shown = ", ".join(names) or "none was found"
        raise UnsupportedError(
            f"a contrast needs one vector per input: {reader.name} is a classifier whose head is "
            f"not one linear layer ({shown}), so what goes into it is no such vector. Expected an "
            "embedding model, or a classifier with a linear head (ViT, timm, BERT)"
        )
    taken = HeadReading(name=names[0], layer=layer, classes=reader.classes)

    def inputs(part: Labelled) -> Inputs:
        plain = reader.inputs(part)
        return replace(
            plain,
            encode=lambda rows, batch_size: _before(
                taken, lambda: plain.encode(rows, batch_size), len(rows)
            ),
            key=None if plain.key is None else {**plain.key, "before": taken.name},
        )

    return replace(reader, gives="embeddings", inputs=inputs), taken


def _before(head: HeadReading, run: Callable[[], Any], n: int) -> Vectors:
    """What goes into the head while something runs, float32 [n, dim]."""
    seen: list[NDArray[np.float32]] = []
    here = threading.get_ident()  # in calibration every batch is under way in a thread of its own

    def watch(_: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        if threading.get_ident() == here:
            seen.append(given[0].detach().float().cpu().numpy())

    handle = head.layer.register_forward_pre_hook(watch)
    try:
        run()
    finally:
        handle.remove()
    shapes = {part.shape[1:] for part in seen}
    if sum(len(part) for part in seen) != n or any(len(shape) != 1 for shape in shapes):
        raise ScoreError(
            f"expected one vector per input to go into the head {head.name}; got "
            f"{[list(part.shape) for part in seen[:3]]} for {n} inputs. A model whose head sees "
            "every token or patch cannot be contrasted"
        )
    return np.concatenate(seen)

"""How classes are read from what a model puts out, the same for both arms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quantdrift.measurement.inputs import Vectors
from quantdrift.measurement.probes import FittedProbe
from quantdrift.probe import LinearProbe

__all__ = ["ClassReading", "by_linear", "by_logits", "by_probe"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassReading:
    """From what a model puts out to logits.

    Attributes:
        classes: names, by logit.
        logits: from what the model puts out [n_inputs, dim] to float32 [n_inputs, n_classes].
        graph: the same of tensors, [..., dim] to [..., n_classes], for criteria that take
            gradients.
        key: digest of what decides the logits beside the model.
        record: what a run says of it.
        notes: what deserves a word, one sentence each.
        probe: the linear probe that reads, where one does.
    """

    classes: tuple[str, ...]
    logits: Callable[[Vectors], NDArray[np.float32]]
    graph: Callable[[Tensor], Tensor]
    key: str
    record: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    probe: LinearProbe | None = None


def by_logits(classes: tuple[str, ...]) -> ClassReading:
    """What a classifier puts out is read as it is."""
    return ClassReading(
        classes=classes,
        logits=np.asarray,
        graph=lambda outputs: outputs,
        key="logits",
        record={"reading": "logits"},
    )


def by_linear(
    probe: LinearProbe, record: Mapping[str, Any], notes: tuple[str, ...] = ()
) -> ClassReading:
    """Linear functions of embeddings: a probe, or a head that is left alone.

    Args:
        probe: weight and bias.
        record: what a run says of it.
        notes: what deserves a word.
    """
    weight, bias = torch.from_numpy(probe.weight), torch.from_numpy(probe.bias)
    return ClassReading(
        classes=probe.classes,
        logits=probe.logits,
        graph=lambda outputs: outputs @ weight.to(outputs).T + bias.to(outputs),
        key=probe.digest,
        record=record,
        notes=notes,
        probe=probe,
    )


def by_probe(fitted: FittedProbe) -> ClassReading:
    """A linear probe reads embeddings."""
    notes: tuple[str, ...] = ()
    if not fitted.probe.converged:
        notes = ("the linear probe did not converge; another fit could give other logits",)
    return by_linear(fitted.probe, {"reading": "linear probe", "probe": fitted.describe()}, notes)

"""A loaded model, and how it takes labelled inputs: a classifier by its logits, an encoder by a
linear probe on its embeddings.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from quantdrift.datasets.labelled import Kind, Labelled, told_apart
from quantdrift.engine.calibration.sample import calibration_texts
from quantdrift.engine.classes import ClassReading, by_linear
from quantdrift.engine.encoders.classifier import load_classifier
from quantdrift.engine.encoders.sentence import SentenceEncoder, load_encoder, pick_device
from quantdrift.engine.heads import find_head
from quantdrift.engine.inputs import Inputs, Vectors, text_inputs
from quantdrift.engine.pair import QuantizedPair
from quantdrift.engine.quantizers.registry import methods_of
from quantdrift.engine.refusals import refuse_for_classes
from quantdrift.engine.store import digest_of
from quantdrift.errors import ScoreError, UnsupportedError
from quantdrift.models.checkpoint import full_precision, refuse_quantized
from quantdrift.models.classifier_config import is_classifier, is_cross_encoder
from quantdrift.models.named import ModelSource
from quantdrift.probe import LinearProbe
from quantdrift.spec import Scheme, Spec

# --- readers --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reader:
    """A model that labelled inputs go through.

    Attributes:
        name: of the model, as the user wrote it.
        module: its outermost torch module.
        gives: what it puts out, for what is shown.
        classes: of a classifier, by logit; None of an embedding model.
        inputs: the inputs of a part, as the model takes them.
        model: what is known of where the model came from.
    """

    name: str
    module: nn.Module
    gives: Literal["logits", "embeddings"]
    classes: tuple[str, ...] | None
    inputs: Callable[[Labelled], Inputs]
    model: Mapping[str, Any]

    def pair(self, scheme: Scheme) -> QuantizedPair:
        """The model and its candidate.

        Raises:
            QuantDriftError: the scheme cannot be made of this model.
        """
        return QuantizedPair([self.module], scheme, name=repr(self.name))

    def calibration(self, scheme: Scheme) -> Inputs | None:
        """The texts of the file that the scheme names to calibrate on; None where it names none.

        Raises:
            QuantDriftError: the file cannot be used.
        """
        texts = calibration_texts(scheme)
        if texts is None:
            return None
        ids = tuple(str(number) for number in range(len(texts)))
        return self.inputs(Labelled(ids=ids, inputs=texts, labels=None))


def check_scheme(spec: Spec, kind: Kind) -> None:
    """Refuse a scheme that has no meaning for classification, before anything is loaded.

    Args:
        spec: model and scheme.
        kind: of the inputs.

    Raises:
        QuantDriftError: there is no such method, or it needs queries and an index.
    """
    methods_of(spec.scheme)
    refuse_for_classes(spec, kind)


def load_reader(
    spec: Spec,
    kind: Kind,
    *,
    device: str | None = None,
    revision: str | None = None,
    encoder: SentenceEncoder | None = None,
) -> Reader:
    """Load the model of a spec for inputs of a kind.

    Args:
        spec: model and scheme.
        kind: of the inputs.
        device: where the model runs; the best there is if not given.
        revision: of a hub model.
        encoder: the model, where it is an embedding model that is loaded already.

    Raises:
        QuantDriftError: there is no such model, or it takes another kind of inputs.
    """
    source = full_precision(spec.model) if encoder is None else encoder.source
    where = pick_device(device)
    model = {"canonical": source.canonical, "kind": source.kind, "revision": revision}
    if encoder is None and is_classifier(source):
        classifier = load_classifier(source, device=where, revision=revision)
        _check_kind(spec.model, classifier.takes, kind)
        refuse_quantized([classifier.module], spec.model)

        def classified(part: Labelled) -> Inputs:
            return Inputs(
                role="input",
                ids=part.ids,
                encode=lambda rows, batch_size: classifier.encode(_Chosen(part.inputs, rows), "input", batch_size),
                key={"contents": digest_of(part.contents()), **classifier.key("input")},
                lengths=np.array([len(text) for text in part.inputs], dtype=np.int64) if kind == "text" else None,
            )

        return Reader(
            name=spec.model,
            module=classifier.module,
            gives="logits",
            classes=told_apart(classifier.classes),
            inputs=classified,
            model=model,
        )
    _check_kind(spec.model, "text", kind)
    embedder = encoder or load_encoder(source, device=where, revision=revision)
    refuse_quantized([embedder.module], spec.model)
    return Reader(
        name=spec.model,
        module=embedder.module,
        gives="embeddings",
        classes=None,
        inputs=lambda part: text_inputs(embedder, part.inputs, ids=part.ids),
        model=model,
    )


class _Chosen(Sequence[Any]):
    """Some of the inputs, each read when it is asked for: images are large."""

    def __init__(self, inputs: Sequence[Any], rows: NDArray[np.int64]) -> None:
        self._inputs, self._rows = inputs, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self._inputs[row] for row in self._rows[place].tolist()]
        return self._inputs[int(self._rows[place])]


def refuse_classifier(source: ModelSource) -> None:
    """Refuse a classifier, and a cross-encoder, where embeddings are needed.

    Raises:
        UnsupportedError: it is one.
    """
    found = reranks = False
    with suppress(UnsupportedError):  # of a hub that does not answer, loading says so
        reranks = is_cross_encoder(source)
        found = is_classifier(source)
    if reranks:
        raise UnsupportedError(
            f"{source.name} is a cross-encoder: it scores a query and a document together, and "
            "embeds nothing. It reranks what a search has found: quantdrift run "
            f"{source.name}@SCHEME --data FOLDER --shortlist RUN, where RUN is the run folder of "
            "an embedding model on the same data, or a TREC run file"
        )
    if found:
        raise UnsupportedError(
            f"{source.name} is a classifier: it puts out logits of classes, and a search compares "
            "embeddings. Expected an embedding model, or classification data (a folder with "
            "test.jsonl, or images) for this one"
        )


def _check_kind(name: str, takes: str, kind: Kind) -> None:
    """Refuse images for a model that reads texts, and texts for one that sees images."""
    if takes != kind:
        verb, wanted = {"text": ("reads", "texts"), "image": ("sees", "images")}[takes]
        given = {"text": "texts", "image": "images"}[kind]
        raise UnsupportedError(
            f"{name} {verb} {wanted}, and the data are {given}; expected data of {wanted}, or a model for {given}"
        )


# --- head inputs ----------------------------------------------------------------------------------


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
            encode=lambda rows, batch_size: _before(taken, lambda: plain.encode(rows, batch_size), len(rows)),
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

"""Classifiers of texts and images as functions from inputs to logits."""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quantdrift.base.errors import ScoreError, UnsupportedError
from quantdrift.builtin.sentence.work import as_pictures, reading_digest
from quantdrift.models.endless import TRIED
from quantdrift.models.files.kinds import classifier_kind
from quantdrift.models.files.named import ModelSource
from quantdrift.models.loading import loading, on_rules, reading_files, refuse_unfit_tokenizer, text_rows
from quantdrift.models.model import LoadedModel

_NO_LIMIT = 10**6
"""Larger length limits are none; tokenizers without a limit say 10^30."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Classifier(LoadedModel):
    """A model that gives every input one logit per class.

    Attributes:
        module: the module that computes the logits.
        source: its origin.
        takes: "text" or "image".
        classes: names by position of the logit.
        prepare: tokenizer or preprocessing: from inputs to keyword arguments of the module.
        description: all that decides logits beside weights: tokenizer, length limit, preprocessing.
        reads: tokenizer and length limit of texts, None without a limit.
        one_by_one: whether inputs cannot share a forward pass (texts without a padding token).
        before: path and layer of the head whose input is the output, in place of logits.
        notes: notes for the run, one sentence each.
        layers: None, as its quantized layers are not known.
        similarity: None, as logits have none.
    """

    module: nn.Module
    source: ModelSource
    takes: Literal["text", "image"]
    classes: tuple[str, ...]
    prepare: Callable[[list[Any]], Mapping[str, Tensor]]
    description: str
    reads: tuple[Any, int] | None = None
    one_by_one: bool = False
    before: tuple[str, nn.Linear] | None = None
    notes: tuple[str, ...] = ()
    layers: Sequence[str] | None = None
    similarity: None = None

    def limit(self) -> tuple[Any, int] | None:
        """Return the tokenizer and the most tokens of a text that it reads."""
        return self.reads

    def encode(self, items: Sequence[Any], role: str, batch_size: int) -> NDArray[np.float32]:
        """Return the logits by the present weights, float32 [n, n_classes], or the head's inputs [n, dim]."""
        step = 1 if self.one_by_one else batch_size
        width = len(self.classes) if self.before is None else self.before[1].in_features
        parts: list[NDArray[np.float32]] = [np.empty((0, width), dtype=np.float32)]
        with torch.no_grad():
            for start in range(0, len(items), step):
                parts.append(self._of_batch(list(items[start : start + step]), width))
        return np.concatenate(parts)

    def _of_batch(self, batch: list[Any], width: int) -> NDArray[np.float32]:
        like = next(chain(self.module.parameters(), self.module.buffers()))  # a graph has only buffers
        given = {
            name: value.to(like) if value.is_floating_point() and like.is_floating_point() else value.to(like.device)
            for name, value in self.prepare(batch).items()
        }
        seen: list[Tensor] = []
        here = threading.get_ident()  # in calibration every batch runs in its own thread

        def watch(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if threading.get_ident() == here:
                seen.append(inputs[0])

        with nullcontext() if self.before is None else self.before[1].register_forward_pre_hook(watch):
            seen.append(self.module(**given).logits)
        if tuple(seen[0].shape) != (len(batch), width):
            raise ScoreError(
                f"expected {width} numbers for each of {len(batch)} inputs from {type(self.module).__name__}, got "
                f"{list(seen[0].shape)}; one whose head sees every token has no vector to search by"
            )
        return np.asarray(seen[0].detach().float().cpu().numpy())

    def key(self, role: str) -> dict[str, Any]:
        """Return what decides logits beside weights, inputs and libraries."""
        return {"classifier": self.description, **({} if self.before is None else {"before": self.before[0]})}

    def beside_weights(self) -> dict[str, str]:
        """Return what decides logits beside the weights, by name."""
        return {"classifier": self.description, "classes": json.dumps(self.classes)}


def load_classifier(
    source: ModelSource,
    *,
    device: torch.device,
    revision: str | None = None,
    dtype: str = "float32",
    trusted: bool = False,
    graph: Callable[[Any], nn.Module] | None = None,
) -> Classifier:
    """Load a classifier of transformers or timm, or one whose module `graph` makes from the config."""
    takes = classifier_kind(source, revision)
    with loading(source, "classifier", reads="head", revision=revision, trusted=trusted) as remarks:
        import transformers  # noqa: PLC0415 -- takes seconds to import

        if takes is None:
            raise UnsupportedError(
                f"{source.shown} is no classifier of texts or images, its config.json says; "
                "expected ...ForSequenceClassification, ...ForImageClassification, or a timm model"
            )
        kind = "SequenceClassification"
        reader_of: Any = transformers.AutoTokenizer
        if takes == "image":
            import PIL  # noqa: F401, PLC0415 -- only asked whether it is there

            kind, reader_of = "ImageClassification", transformers.AutoImageProcessor
        options = {"revision": revision, "trust_remote_code": trusted}
        config = transformers.AutoConfig.from_pretrained(source.location, **options)
        if getattr(config, "problem_type", None) == "regression" or config.num_labels == 1:
            raise UnsupportedError(
                f"{source.shown} gives one number and no classes (it is a regression model or a "
                "reranker), so there is nothing to rank; expected two classes or more. A reranker is measured on a "
                "search: quantdrift run --shortlist RUN"
            )
        (getattr(config, "model_args", None) or {}).pop("num_classes", None)  # timm would get it twice
        auto: Any = getattr(transformers, f"AutoModelFor{kind}")
        usual = partial(auto.from_pretrained, source.location, dtype=dtype, **options)
        module: Any = (graph or (lambda config: usual(config=config)))(config)
        reader: Any = reader_of.from_pretrained(source.location, **options)
    module = module.eval().to(device)
    names = config.id2label or {}
    one_by_one, reads = False, None
    if takes == "image":
        settings = json.dumps(reader.to_dict(), sort_keys=True, default=str)
        description = "\n".join([type(reader).__name__, settings, reading_digest([], [module])])

        def prepare(inputs: list[Any]) -> Mapping[str, Tensor]:
            return dict(reader(as_pictures(inputs), return_tensors="pt"))

    else:
        refuse_unfit_tokenizer(module, source.name, reader)
        remarks.notes += on_rules(reader, source.name, revision)
        limit, paddable = _length_limit(module, reader), _agree_on_padding(module, reader)
        reads = None if limit is None else (reader, limit)
        how: dict[str, Any] = {"padding": paddable, "truncation": limit is not None, "max_length": limit}
        description = f"at most {limit} tokens\n{reading_digest([SimpleNamespace(tokenizer=reader)], [module])}"
        one_by_one = not paddable

        def prepare(inputs: list[Any]) -> Mapping[str, Tensor]:
            return dict(reader(inputs, return_tensors="pt", **how))

    classifier = Classifier(
        module=module,
        source=source,
        takes=takes,
        classes=tuple(str(names.get(number, number)) for number in range(int(config.num_labels))),
        prepare=prepare,
        description=description,
        reads=reads,
        one_by_one=one_by_one,
        notes=tuple(remarks.notes),
    )
    if takes == "text":
        with reading_files(source, "classifier"):
            classifier.encode([TRIED], "input", 1)
    return classifier


def _length_limit(module: Any, tokenizer: Any) -> int | None:
    """Return the most tokens that the model takes; None without a limit."""
    _, usable, _ = text_rows(module)
    positions = getattr(module.config, "max_position_embeddings", None) if usable is None else usable
    limits = [positions] if isinstance(positions, int) and positions > 0 else []
    limit = min(int(tokenizer.model_max_length), _NO_LIMIT, *limits)
    return limit if limit < _NO_LIMIT else None


def _agree_on_padding(module: Any, tokenizer: Any) -> bool:
    """Let model and tokenizer use one padding token; False if neither has one."""
    if tokenizer.pad_token_id is not None:
        # a decoder finds a text's last token by the config's; another there would be read as text
        module.config.pad_token_id = tokenizer.pad_token_id
        return True
    token = getattr(module.config, "pad_token_id", None)
    if token is None or token < 0:
        return False
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(token)
    return True

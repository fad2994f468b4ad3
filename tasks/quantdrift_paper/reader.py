"""An extractive reader in place of a generator: a question-answering model that marks the answer in a passage.

It cannot answer without passages, and says nothing that no passage says. Results call it what it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from quantdrift.base.errors import RunError
from quantdrift.base.records import Record
from quantdrift.builtin.sentence.work import pick_device
from quantdrift.models.files.named import resolve
from quantdrift.models.loading import loading, quiet_loading
from quantdrift.models.weights import weights_fingerprint
from quantdrift_rag.questions import Prompt

LONGEST = 30
"""Tokens of an answer."""
_WINDOW, _STRIDE = 384, 128
"""Tokens that are read at once, and tokens that two windows of a long passage share."""
TRAINED_ON = "trained_on.json"


class TrainedOn(Record):
    """trained_on.json beside a reader: the ids of questions whose answers it has seen."""

    FORMAT: ClassVar[str] = "quantdrift-reader-trained-on"
    VERSION: ClassVar[int] = 1
    WHAT: ClassVar[str] = "the record of what a reader was trained on"
    MAKE: ClassVar[str] = "python docs/measured/recipes/train_reader.py, from a checkout"
    ERROR = RunError

    data: str
    ids: list[str]


class Reader:
    """A model for question answering of transformers.

    The answer is the span with the largest sum of start and end logit, less those of the first token, which stands for
    "not here": over all passages of a prompt.

    Attributes:
        name: name of the model's folder, or on the hub.
        kind: how the answers are made.
        identity: digest of the weights.
        trained_on: ids of questions that the model may not be asked.
    """

    kind: Literal["extractive reader"] = "extractive reader"

    def __init__(self, name: str, *, batch_size: int = 8, device: str | None = None) -> None:
        """Load the model; raises UnsupportedError where it cannot be."""
        from transformers import AutoModelForQuestionAnswering, AutoTokenizer  # noqa: PLC0415 -- takes seconds

        quiet_loading()
        source = resolve(name)
        self.name = source.canonical
        with loading(source, "reader", reads="head") as log:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(source.location)
            self._model: Any = (
                AutoModelForQuestionAnswering.from_pretrained(source.location).eval().to(pick_device(device))
            )
        self._batch_size, self._notes = batch_size, log.notes
        self.identity = f"reader {weights_fingerprint([self._model])}"
        seen = Path(source.location) / TRAINED_ON
        self.trained_on = frozenset(TrainedOn.read(seen).ids) if seen.exists() else frozenset()
        self._read_already: dict[tuple[str, str], tuple[float, str]] = {}

    def answers(self, prompts: Sequence[Prompt]) -> Iterator[list[tuple[Prompt, str]]]:
        """Give every prompt with its answer, a batch at a time; a passage that several prompts share is read once."""
        ordered = sorted(prompts, key=lambda prompt: prompt.question)
        for start in range(0, len(ordered), self._batch_size):
            batch = ordered[start : start + self._batch_size]
            pairs = dict.fromkeys((prompt.question, passage) for prompt in batch for passage in prompt.passages)
            self._read_already = {pair: self._read_already[pair] for pair in pairs if pair in self._read_already}
            new = [pair for pair in pairs if pair not in self._read_already]
            self._read_already |= dict(zip(new, self._read(new), strict=True))
            yield [
                (prompt, max(self._read_already[prompt.question, passage] for passage in prompt.passages)[1])
                for prompt in batch
            ]

    def notes(self, prompts: Sequence[Prompt]) -> list[str]:
        """Return what the reader of the result has to know of this kind of model."""
        return [*self._notes, "an extractive reader has no answer without passages, so there is no control"]

    def _read(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[float, str]]:
        """The best span of each passage: by how much it beats "not here", and its text."""
        best: list[tuple[float, str]] = [(-float("inf"), "")] * len(pairs)
        limit = min(_WINDOW, self._tokenizer.model_max_length, self._model.config.max_position_embeddings)
        for start in range(0, len(pairs), self._batch_size):
            part = pairs[start : start + self._batch_size]
            tokens = self._tokenizer(
                [question for question, _ in part],
                [passage for _, passage in part],
                truncation="only_second",
                max_length=limit,
                stride=min(_STRIDE, limit // 4),
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
                padding=True,
                return_tensors="pt",
            )
            offsets, of = tokens.pop("offset_mapping"), tokens.pop("overflow_to_sample_mapping")
            inside = torch.stack([torch.tensor([i == 1 for i in tokens.sequence_ids(n)]) for n in range(len(of))])
            with torch.inference_mode():
                out = self._model(**tokens.to(self._model.device))
            scores, first, last = spans(out.start_logits.float().cpu(), out.end_logits.float().cpu(), inside)
            for window, row in enumerate(of.tolist()):
                question = start + row
                begin, end = offsets[window, first[window], 0], offsets[window, last[window], 1]
                answer = (scores[window].item(), part[row][1][begin:end])
                best[question] = max(best[question], answer)
        return best


def spans(start: Tensor, end: Tensor, inside: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The best span of every window.

    Args:
        start: logits [n_windows, n_tokens].
        end: logits [n_windows, n_tokens].
        inside: bool, which tokens belong to the passage.

    Returns:
        By how much its logits beat those of the first token, and its first and last token [n_windows].
    """
    n, length = start.shape
    start, end = start - start[:, :1], end - end[:, :1]
    outside = torch.zeros(n, length).masked_fill(~inside, -1e9)
    sums = (start + outside)[:, :, None] + (end + outside)[:, None, :]
    forward = torch.ones(length, length, dtype=torch.bool).triu().tril(LONGEST - 1)
    flat = sums.masked_fill(~forward, -1e12).flatten(1)
    score, place = flat.max(1)
    return score, place // length, place % length

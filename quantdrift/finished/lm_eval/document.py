"""One sample of lm-eval: what a task asked about one document, and what the model answered.

The same sample comes in two forms: as lm-eval has it in memory, and as it reads back from its
--log_samples file, where log-likelihoods and targets are strings. Both become one `Document`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from quantdrift.errors import RunError

__all__ = ["HASHES", "Document", "Kind", "read_document"]

Kind = Literal["multiple_choice", "loglikelihood", "rolling", "generate_until"]
"""What the requests of a document are: the log-likelihoods of several texts or of one, that of the
whole document, or a text to generate."""

HASHES = ("doc_hash", "prompt_hash", "target_hash")
_PAIR = 2
"""Arguments of a request for a continuation: context and text. And its answer: log-likelihood, and
whether greedy decoding gives it."""
_PERPLEXITY = "perplexity"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """What one arm made of one document, after one filter.

    Attributes:
        doc_id: of the document, as lm-eval counts.
        filter: name of the filter.
        kind: of its requests.
        requests: the arguments of each request, as JSON has them.
        loglikelihoods: of each request; empty for generated text.
        greedy: whether greedy decoding gives the text, of each request; empty where nobody asked.
        answer: the generated text after the filter; "" otherwise.
        target: what is right, as a string.
        metrics: name to the value of every metric that is a number.
        hashes: those of HASHES that the sample has.
    """

    doc_id: int
    filter: str
    kind: Kind
    requests: tuple[tuple[Any, ...], ...]
    loglikelihoods: tuple[float, ...]
    greedy: tuple[bool, ...]
    answer: str
    target: str
    metrics: Mapping[str, float]
    hashes: Mapping[str, str] = field(default_factory=dict)


def read_document(sample: Mapping[str, Any], task: str) -> Document:
    """Read a sample.

    Args:
        sample: as lm-eval has it in memory or in a file.
        task: its name, for messages.

    Raises:
        RunError: it is no such sample.
    """
    try:
        doc_id = int(sample["doc_id"])
        requests = _requests(sample["arguments"])
        kind = _kind(requests)
        answers = sample["filtered_resps"]
        if kind == "generate_until":
            scores: list[tuple[float, bool | None]] = []
            generated = [
                answer
                for request, answer in zip(requests, answers, strict=True)
                if _generates(request)
            ]
            answer = _text(generated[0] if len(generated) == 1 else generated)
        else:
            scores = [_score(answer) for answer in answers]
            answer = ""
        return Document(
            doc_id=doc_id,
            filter=str(sample["filter"]),
            kind=kind,
            requests=requests,
            loglikelihoods=tuple(score for score, _ in scores),
            greedy=tuple(match for _, match in scores if match is not None),
            answer=answer,
            target=str(sample.get("target")),
            metrics=_metrics(sample),
            hashes={name: str(sample[name]) for name in HASHES if name in sample},
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        shown = sample.get("doc_id") if isinstance(sample, Mapping) else None
        why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise RunError(
            f"{task}: expected a sample of lm-eval (doc_id, arguments, filtered_resps, filter); "
            f"that of document {shown} is none: {why}"
        ) from error


def _requests(arguments: Any) -> tuple[tuple[Any, ...], ...]:
    """The arguments of every request; a file has {"gen_args_0": {"arg_0": ...}, ...}."""
    if isinstance(arguments, Mapping):
        arguments = [list(own.values()) for own in arguments.values()]
    found = tuple(tuple(_plain(one) for one in own) for own in arguments)
    if not found or not all(found):
        raise ValueError("it has no arguments")
    return found


def _plain(value: Any) -> Any:
    """As it reads back from JSON."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return json.loads(json.dumps(value, default=str))


def _kind(requests: Sequence[tuple[Any, ...]]) -> Kind:
    if any(_generates(request) for request in requests):
        return "generate_until"
    if len(requests[0]) < _PAIR:
        return "rolling"
    return "loglikelihood" if len(requests) == 1 else "multiple_choice"


def _generates(request: tuple[Any, ...]) -> bool:
    return len(request) >= _PAIR and isinstance(request[1], Mapping)


def _score(answer: Any) -> tuple[float, bool | None]:
    """Log-likelihood of a text, and whether greedy decoding gives it, where that was asked."""
    if isinstance(answer, list | tuple):
        if len(answer) != _PAIR:
            raise ValueError(f"expected a log-likelihood and whether it is greedy; got {answer!r}")
        return float(answer[0]), str(answer[1]) == "True"
    return float(answer), None


def _text(answer: Any) -> str:
    """A generated text; of several, or of what a filter made of it, a string that tells all."""
    if not isinstance(answer, list | tuple):
        return str(answer)
    return json.dumps(_strings(answer), ensure_ascii=False)


def _strings(value: Any) -> Any:
    """With strings inside, as a file has it."""
    return [_strings(one) for one in value] if isinstance(value, list | tuple) else str(value)


def _metrics(sample: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a document that are one number; others are of the whole task."""
    numbers = {}
    for name in sample.get("metrics", ()):
        if str(name).startswith("drift_"):
            continue  # ours, of a pair
        if name == _PERPLEXITY:
            continue  # what lm-eval logs under this name is the log-likelihood, which we have
        value: Any = sample.get(name)
        if hasattr(value, "item") and not getattr(value, "ndim", 0):
            value = value.item()  # numpy's
        if isinstance(value, bool | int | float):
            numbers[str(name)] = float(value) if math.isfinite(value) else math.nan
    return numbers

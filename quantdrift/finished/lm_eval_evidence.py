"""Two runs of lm-eval on one task, document by document."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quantdrift import perturbation
from quantdrift.errors import RunError
from quantdrift.evidence import Evidence, Noise
from quantdrift.finished.rankings import evidence_of_answers, evidence_of_rankings
from quantdrift.metrics import Metric, MetricError, default_metrics, parse_metric
from quantdrift.metrics.keys import drift_keys, harness_metrics, key_of
from quantdrift.statistics import Estimate, mean_estimate, quantile_estimate, rate_estimate, undefined

# --- One sample of lm-eval: what a task asked about one document, and what the model answered -----

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
            generated = [answer for request, answer in zip(requests, answers, strict=True) if _generates(request)]
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
            metrics=_document_metrics(sample),
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


def _document_metrics(sample: Mapping[str, Any]) -> dict[str, float]:
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


# --- Which choice of a question is right, from what lm-eval logs of it ----------------------------

ACCURACY = "acc"
MUTUAL_INFORMATION = "acc_mutual_info"
_TWO = 2


def choices(document: Document) -> int:
    """How many choices a question has.

    With mutual information a task asks for every choice twice, the second time without the prompt.
    These are not the scores that `acc` goes by.
    """
    n, requests = len(document.requests), document.requests
    if n % _TWO or n == _TWO:
        return n
    half = n // _TWO
    bare = all(request[0] == "" for request in requests[half:])
    again = [request[1] for request in requests[:half]] == [one[1] for one in requests[half:]]
    return half if bare and (again or MUTUAL_INFORMATION in document.metrics) else n


def right_choices(reference: Sequence[Document], candidate: Sequence[Document]) -> list[frozenset[int]] | None:
    """The right choices of every question.

    Args:
        reference: samples of questions with choices.
        candidate: of the same questions, in the same order.

    Returns:
        None where they cannot be told for every question.
    """
    fitting = []
    for read in (_by_number, _by_text, _by_accuracy):
        found = [read(*pair) for pair in zip(reference, candidate, strict=True)]
        sure = [right for right in found if right]
        if len(sure) == len(found) and all(
            _fits(document, right) for arm in (reference, candidate) for document, right in zip(arm, sure, strict=True)
        ):
            fitting.append(sure)
    # choices that are numbers themselves, and no accuracy that would tell which reading is meant
    if not any(ACCURACY in document.metrics for document in reference):
        return fitting[0] if fitting and all(each == fitting[0] for each in fitting) else None
    return fitting[0] if fitting else None


Reading = Callable[[Document, Document], frozenset[int] | None]


def _by_number(document: Document, _: Document) -> frozenset[int] | None:
    try:
        target = ast.literal_eval(document.target)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    numbers = target if isinstance(target, list | tuple) else [target]
    n = choices(document)
    whole = [one for one in numbers if isinstance(one, int) or (isinstance(one, float) and one.is_integer())]
    right = {int(one) for one in whole}
    return frozenset(right) if right and all(0 <= one < n for one in right) else None


def _by_text(document: Document, _: Document) -> frozenset[int] | None:
    texts = [str(request[1]) for request in document.requests[: choices(document)]]
    target = document.target.strip()
    return frozenset(n for n, text in enumerate(texts) if text.strip() == target)


def _by_accuracy(document: Document, other: Document) -> frozenset[int] | None:
    """From which answers were right, where that settles it."""
    both = (document, other)
    right = {_first(one) for one in both if one.metrics.get(ACCURACY) == 1}
    if right:
        return frozenset(right)
    left = set(range(choices(document)))
    left -= {_first(one) for one in both if one.metrics.get(ACCURACY) == 0}
    return frozenset(left) if len(left) == 1 else None


def _fits(document: Document, right: frozenset[int]) -> bool:
    logged = document.metrics.get(ACCURACY)
    return logged is None or logged == float(_first(document) in right)


def _first(document: Document) -> int:
    """The chosen answer; of equal ones the first, as lm-eval chooses."""
    return int(np.argmax(document.loglikelihoods[: choices(document)]))


# --- The evidence in two runs of lm-eval on one task: choices as rankings, texts as answers -------

EvidenceValues = Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]]
"""Name to the value of every document in the reference and in the candidate."""

_BEST_KNOWN = ("exact_match", "acc")
"""Of several metrics that say right or wrong, what a generated answer is judged by."""


def right_or_wrong(values: EvidenceValues) -> list[str]:
    """Names of the values that are 0 or 1 for every document in both arms."""
    return [name for name, arms in values.items() if all(np.isin(arm, (0.0, 1.0)).all() for arm in arms)]


def evidence_of_choices(
    before: Sequence[Document], after: Sequence[Document]
) -> tuple[Evidence | None, str | None, str | None]:
    """The choices of every question as its two rankings.

    Args:
        before: the reference's samples.
        after: the candidate's, in the same order.

    Returns:
        The evidence, or None and the reason; and the metric that its right choices are of, None
        where they are not known.
    """
    rankings = [
        {
            str(document.doc_id): {
                str(number): score for number, score in enumerate(document.loglikelihoods[: choices(document)])
            }
            for document in arm
        }
        for arm in (before, after)
    ]
    if not all(math.isfinite(score) for arm in rankings for ranking in arm.values() for score in ranking.values()):
        return None, "a choice has a log-likelihood that is not finite", None
    right = right_choices(before, after)
    qrels = None
    if right is not None:
        qrels = {
            str(document.doc_id): {str(number): 1 for number in sorted(own)}
            for document, own in zip(before, right, strict=True)
        }
    evidence = evidence_of_rankings(rankings[0], rankings[1], qrels=qrels, complete=True, position=int)
    return evidence, None, None if qrels is None else ACCURACY


def evidence_of_texts(
    before: Sequence[Document], after: Sequence[Document], values: EvidenceValues
) -> tuple[Evidence, str | None]:
    """Generated text, or of one text whether greedy decoding gives it, which is right.

    Args:
        before: the reference's samples.
        after: the candidate's, in the same order.
        values: of both arms.

    Returns:
        The evidence; and the metric that says which answers are right, None if none does.
    """
    if before[0].kind == "loglikelihood":
        answers = [
            {str(one.doc_id): "target" if all(one.greedy) else "other" for one in arm} for arm in (before, after)
        ]
        right = [{name: answer == "target" for name, answer in arm.items()} for arm in answers]
        return evidence_of_answers(answers[0], answers[1], right=(right[0], right[1])), ACCURACY
    answers = [{str(one.doc_id): one.answer for one in arm} for arm in (before, after)]
    judges = right_or_wrong(values)
    for judge in sorted(judges, key=lambda name: (name not in _BEST_KNOWN, judges.index(name))):
        marks = [dict(zip(answers[0], arm == 1.0, strict=True)) for arm in values[judge]]
        try:
            return evidence_of_answers(answers[0], answers[1], right=(marks[0], marks[1])), judge
        except RunError:  # it judges more than the answer, or not the same way twice
            continue
    return evidence_of_answers(answers[0], answers[1]), None


# --- Two runs of lm-eval on one task, document by document ----------------------------------------

Sample = Mapping[str, Any]
Values = NDArray[np.float64]

LOGLIKELIHOOD = "loglikelihood"
"""Name of the value that a document with one text has, beside lm-eval's metrics."""
_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairedFilter:
    """Both arms on the documents of a task, after one filter.

    Attributes:
        kind: of the task's requests.
        doc_ids: of the documents, in order; inputs of the evidence are called by them.
        evidence: the choices as rankings, the generated text as an answer, or whether greedy
            decoding gives the text; None where there is no answer to compare.
        reason: why there is no evidence.
        values: name to the value of every document in the reference and in the candidate, float64
            [n_documents], NaN where it has none: lm-eval's metrics that are one number, and
            "loglikelihood" where a document is one text.
        judged_by: the metric that says which answers are right; None if none does.
    """

    kind: Kind
    doc_ids: tuple[int, ...]
    evidence: Evidence | None
    reason: str | None
    values: Mapping[str, tuple[Values, Values]]
    judged_by: str | None = None

    @property
    def right_or_wrong(self) -> list[str]:
        """Names of the values that are 0 or 1 for every document in both arms."""
        return [name for name in right_or_wrong(self.values) if name != LOGLIKELIHOOD]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairedSamples:
    """Both arms on one task.

    Attributes:
        task: its name.
        filters: by name of the filter, in the order of the samples.
    """

    task: str
    filters: Mapping[str, PairedFilter]


def pair_samples(reference: Sequence[Sample], candidate: Sequence[Sample], *, task: str) -> PairedSamples:
    """Join the samples of two runs on document and filter.

    The chosen answer of a question is the choice of highest log-likelihood, the first of equal
    ones, as in lm-eval's `acc`.

    Args:
        reference: samples of one task, as lm-eval has them in memory or in a --log_samples file.
        candidate: likewise, of the other run.
        task: its name.

    Raises:
        RunError: they are no samples, or not of the same documents with the same prompts, targets,
            choices and settings of generation; says what differs.
    """
    arms = [_by_filter(samples, task) for samples in (reference, candidate)]
    _same("filters", list(arms[0]), list(arms[1]), task)
    filters = {}
    for name, before in arms[0].items():
        after = arms[1][name]
        where = f"{task}, filter {name}" if len(arms[0]) > 1 else task
        _same("documents", list(before), list(after), where)
        _same_questions(before, after, where)
        order = sorted(before)
        filters[name] = _paired([before[n] for n in order], [after[n] for n in order])
    return PairedSamples(task=task, filters=filters)


def with_noise(paired: PairedSamples, again: PairedSamples) -> PairedSamples:
    """The same with a noise floor.

    Args:
        paired: reference and candidate.
        again: the reference, and the reference run again in another way.
    """

    def one(name: str, filtered: PairedFilter) -> PairedFilter:
        other = again.filters[name].evidence
        if filtered.evidence is None or other is None:
            return filtered
        noise = Noise(flips=perturbation.flips(other), epsilon=perturbation.epsilon(other).astype(np.float32))
        return replace(filtered, evidence=replace(filtered.evidence, noise=noise))

    filters = {name: one(name, filtered) for name, filtered in paired.filters.items()}
    return replace(paired, filters=filters)


def _by_filter(samples: Sequence[Sample], task: str) -> dict[str, dict[int, Document]]:
    found: dict[str, dict[int, Document]] = {}
    for sample in samples:
        document = read_document(sample, task)
        known = found.setdefault(document.filter, {})
        if document.doc_id in known:
            raise RunError(
                f"{task}: document {document.doc_id} occurs twice after the filter "
                f"{document.filter}; expected the samples of one run. Is it two files in one?"
            )
        known[document.doc_id] = document
    if not found:
        raise RunError(f"{task}: expected samples of lm-eval; there are none")
    return found


def _same(what: str, one: Sequence[Any], other: Sequence[Any], where: str) -> None:
    only = [sorted(set(one) - set(other)), sorted(set(other) - set(one))]
    if any(only):
        told = "; ".join(
            f"{len(names):,} only in the {arm} ({_listed(names)})"
            for arm, names in zip(("reference", "candidate"), only, strict=True)
            if names
        )
        raise RunError(f"{where}: expected the same {what} in both runs; {told}")


def _same_questions(before: Mapping[int, Document], after: Mapping[int, Document], where: str) -> None:
    differ: dict[str, list[int]] = {}
    for number in sorted(before):
        one, other = before[number], after[number]
        for name in HASHES:
            pair = one.hashes.get(name), other.hashes.get(name)
            if None not in pair and pair[0] != pair[1]:
                differ.setdefault(_CALLED[name], []).append(number)
        if one.requests != other.requests and one.hashes.get(_PROMPT) == other.hashes.get(_PROMPT):
            differ.setdefault("choices or settings of generation", []).append(number)
    if differ:
        told = "; ".join(
            f"{what} of {len(numbers):,} of {len(before):,} documents ({_listed(numbers)})"
            for what, numbers in differ.items()
        )
        raise RunError(
            f"{where}: expected the same questions in both runs; they differ in {told}. Run both "
            "with the same task version, --num_fewshot, chat template, seeds and --gen_kwargs"
        )


_PROMPT = "prompt_hash"
_CALLED = {"doc_hash": "content", _PROMPT: "prompt", "target_hash": "target"}


def _listed(names: Sequence[object]) -> str:
    shown = ", ".join(str(name) for name in names[:_SHOWN])
    return shown + (", ..." if len(names) > _SHOWN else "")


def _paired(before: Sequence[Document], after: Sequence[Document]) -> PairedFilter:
    kind = before[0].kind
    values = _values(before, after)
    evidence, reason, judged_by = None, None, None
    if any(document.kind != kind for document in (*before, *after)):
        reason = "its documents ask for answers of different kinds"
    elif kind == "rolling":
        reason = "a document's perplexity has no answer that could change"
    elif kind == "multiple_choice":
        evidence, reason, judged_by = evidence_of_choices(before, after)
    else:
        evidence, judged_by = evidence_of_texts(before, after, values)
    return PairedFilter(
        kind=kind,
        doc_ids=tuple(document.doc_id for document in before),
        evidence=evidence,
        reason=reason,
        values=values,
        judged_by=judged_by,
    )


def _values(before: Sequence[Document], after: Sequence[Document]) -> dict[str, tuple[Values, Values]]:
    names = dict.fromkeys(name for document in before for name in document.metrics)
    known = set().union(*(document.metrics for document in after))
    values = {name: (_column(before, name), _column(after, name)) for name in names if name in known}
    if all(len(document.loglikelihoods) == 1 for document in (*before, *after)):
        once, again = (
            np.array([document.loglikelihoods[0] for document in arm], dtype=np.float64) for arm in (before, after)
        )
        # a text that a model holds for impossible has no change that could be averaged
        values[LOGLIKELIHOOD] = (np.where(np.isfinite(once), once, np.nan), np.where(np.isfinite(again), again, np.nan))
    return values


def _column(documents: Sequence[Document], name: str) -> Values:
    return np.array([one.metrics.get(name, math.nan) for one in documents], dtype=np.float64)


# --- The figures of two runs of lm-eval on one task: of every document, and of the task -----------

RIGHT_TO_WRONG, WRONG_TO_RIGHT = "drift_right_to_wrong_", "drift_wrong_to_right_"
CHANGE = f"drift_change_{LOGLIKELIHOOD}"
EPSILON = "drift_epsilon_median"

HIGHER_IS_BETTER: dict[str, bool | None] = {
    "drift_flip_at_1": False,
    "drift_at_risk": False,
    "drift_separation_median": True,
    EPSILON: False,
    CHANGE: None,
    RIGHT_TO_WRONG: False,
    WRONG_TO_RIGHT: True,
}
"""Figure to the better direction; names that end in an underscore go before one of a metric."""

_RATES = ("flip@1", "at_risk", "noise_floor")
_MEDIANS = ("separation",)
_RANKING = ("set_kept", "new_top_rank", "cut_separation", "ndcg", "recall", "mrr", "served_relevance", "rbo", "tau_b")
"""Families of metrics that say something of longer rankings than a question's few choices."""
_GOLD = ("gold_lost", "gold_gained")
_SCORES = ("gap", "epsilon", "separation")


def per_document(paired: PairedFilter) -> dict[str, Values]:
    """Figures that every document has; those of a task are their means.

    Args:
        paired: both arms after one filter.

    Returns:
        Name to float64 [n_documents], no NaN.
    """
    figures: dict[str, Values] = {}
    if paired.evidence is not None:
        for name in _RATES:
            metric = parse_metric(name)
            values = _per_input(metric, paired.evidence)
            if values is not None and not np.isnan(values).any():
                figures[key_of(metric)] = values
    for name in paired.right_or_wrong:
        before, after = paired.values[name]
        figures[RIGHT_TO_WRONG + name] = before * (1 - after)
        figures[WRONG_TO_RIGHT + name] = (1 - before) * after
    change = _change(paired)
    if change is not None:
        figures[CHANGE] = change
    return figures


def scores_of(paired: PairedFilter) -> dict[str, Values]:
    """What the scores of every document say: gap, epsilon and separation ratio.

    Args:
        paired: both arms after one filter.

    Returns:
        Name to float64 [n_documents], NaN and +inf where it has no finite value.
    """
    found = {}
    for name in _SCORES:
        values = None if paired.evidence is None else _per_input(parse_metric(name), paired.evidence)
        if values is not None and not np.isnan(values).all():
            found[f"drift_{name}"] = values
    return found


def medians_of(parts: Sequence[PairedFilter]) -> dict[str, Estimate]:
    """Medians over the documents of one task, or of several pooled.

    Args:
        parts: both arms after one filter, of every task.

    Returns:
        Name to the estimate, where it has a finite value.
    """
    found = {}
    for name in _MEDIANS:
        metric = parse_metric(name)
        found[key_of(metric)] = _over(metric, _evidence(parts))
    changes = [change for part in parts if (change := _change(part)) is not None]
    if changes:
        found[EPSILON] = quantile_estimate(np.abs(np.concatenate(changes)))
    return {
        name: estimate for name, estimate in found.items() if estimate.value is not None and np.isfinite(estimate.value)
    }


def details_of(paired: PairedFilter, *, warn: Callable[[str], None]) -> dict[str, Any]:
    """Everything that is known of a task after one filter, as JSON has it.

    Args:
        paired: both arms.
        warn: told of metrics that cannot be computed.

    Returns:
        The default metrics that fit by their keys, null where undefined; what right_to_wrong
        and the like are, and each of lm-eval's metrics that is one number: of the reference and its
        change. Rates and changes with `_low` and `_high`, the ends of their 95 % interval.
    """
    details: dict[str, Any] = {
        "kind": paired.kind,
        "drift_n_inputs": len(paired.doc_ids),
        "judged_by": paired.judged_by,
    }
    if paired.evidence is None:
        details["no_evidence"] = paired.reason
    else:
        details |= drift_keys(paired.evidence, _metrics(), warn=warn)
    return details | _written(_estimates([paired])) | _written(_value_estimates(paired))


def pooled_details(parts: Sequence[PairedFilter]) -> dict[str, Any]:
    """The same of several tasks, every document counting once; without lm-eval's metrics.

    Args:
        parts: both arms after one filter, of every task.
    """
    evidence = _evidence(parts)
    estimates = {key_of(metric): _over(metric, evidence) for metric in _metrics()}
    return {
        "drift_n_inputs": sum(len(part.doc_ids) for part in parts),
        **_written(estimates),
        **_written(_estimates(parts)),
    }


def _metrics() -> list[Metric]:
    """The default metrics that fit, and those that the user asks for."""
    known = default_metrics()
    return [
        metric
        for metric in harness_metrics()
        if metric not in known
        or not (metric.family.name in _RANKING or (metric.family.name in _GOLD and metric.cutoff > 1))
    ]


def _estimates(parts: Sequence[PairedFilter]) -> dict[str, Estimate]:
    figures = [per_document(part) for part in parts]
    names = dict.fromkeys(name for own in figures for name in own)
    found = {}
    for name in names:
        values = np.concatenate([own[name] for own in figures if name in own])
        found[name] = mean_estimate(values) if name == CHANGE else rate_estimate(values)
    medians = medians_of(parts)
    return found | {name: medians[name] for name in (EPSILON,) if name in medians}


def _value_estimates(paired: PairedFilter) -> dict[str, Estimate]:
    found = {}
    for name, (before, after) in paired.values.items():
        here = ~(np.isnan(before) | np.isnan(after))
        if here.any():
            found[f"drift_reference_{name}"] = mean_estimate(before[here])
            found[f"drift_change_{name}"] = mean_estimate((after - before)[here])
    return found


def _written(estimates: Mapping[str, Estimate]) -> dict[str, Any]:
    written: dict[str, Any] = {}
    for name, estimate in estimates.items():
        entry = estimate.to_json()
        written[name] = entry["value"]
        if entry["value"] is not None and entry["low"] is not None:
            written[f"{name}_low"], written[f"{name}_high"] = entry["low"], entry["high"]
    return written


def _change(paired: PairedFilter) -> Values | None:
    """Of every document with one text, how much its log-likelihood changed."""
    if LOGLIKELIHOOD not in paired.values:
        return None
    before, after = paired.values[LOGLIKELIHOOD]
    return after - before if np.isfinite(after - before).all() else None


def _evidence(parts: Sequence[PairedFilter]) -> list[Evidence]:
    return [part.evidence for part in parts if part.evidence is not None]


def _per_input(metric: Metric, evidence: Evidence) -> Values | None:
    try:
        return metric.per_input(evidence)
    except MetricError:
        return None


def _over(metric: Metric, group: Sequence[Evidence]) -> Estimate:
    if not group:
        return undefined("no task has answers to compare")
    try:
        return metric.over(group)
    except MetricError as error:
        return undefined(str(error))

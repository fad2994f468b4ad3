"""Two runs of lm-eval on one task, document by document: their evidence, and figures from it."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.errors import RunError
from quantdrift.base.text import some
from quantdrift.evidence.record import Evidence
from quantdrift.finished.rankings import evidence_of_answers, evidence_of_rankings, only_in
from quantdrift.metrics import Metric, MetricError, default_metrics, parse_metric
from quantdrift.metrics.keys import drift_keys, harness_metrics, key_of
from quantdrift.statistics.estimates import Estimate, mean_estimate, quantile_estimate, rate_estimate, undefined

Sample = Mapping[str, Any]
Values = NDArray[np.float64]

# --- one sample: the requests for one document, and the model's answers ---------------------------

Kind = Literal["multiple_choice", "loglikelihood", "rolling", "generate_until"]
"""The kind of a document's requests: the log-likelihoods of several texts or of one, that of the whole document, or a
text to generate."""

HASHES = ("doc_hash", "prompt_hash", "target_hash")
_TWO = 2
"""Length of a request for a continuation (context and text)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The answer of one arm to one document, after one filter.

    Attributes:
        doc_id: lm-eval's number of the document.
        filter: name of the filter.
        kind: kind of its requests.
        requests: the arguments of each request as JSON values; a question has one request for each choice.
        loglikelihoods: one for each request; empty for generated text.
        greedy: for each request whether greedy decoding gives its text; empty if lm-eval does not say.
        answer: the generated text after the filter; otherwise empty.
        target: the right answer, as a string.
        metrics: the metrics that are numbers, by name.
        hashes: the entries of HASHES that the sample has.
    """

    doc_id: int
    filter: str
    kind: Kind
    requests: tuple[tuple[Any, ...], ...]
    loglikelihoods: tuple[float, ...] = ()
    greedy: tuple[bool, ...] = ()
    answer: str = ""
    target: str
    metrics: Mapping[str, float]
    hashes: Mapping[str, str] = field(default_factory=dict)


def read_document(sample: Sample, task: str) -> Document:
    """Read a sample of lm-eval, from its memory or from a file."""
    try:
        logged = _logged(sample)
        requests, metrics = _requests(logged["arguments"]), _metrics_of(logged)
        generates = [len(request) >= _TWO and isinstance(request[1], dict) for request in requests]
        answers, kind = logged["filtered_resps"], "multiple_choice" if len(requests) > 1 else "loglikelihood"
        answered: dict[str, Any] = {}
        if any(generates):
            kind = "generate_until"
            texts = [_strings(answer) for wanted, answer in zip(generates, answers, strict=True) if wanted]
            text = texts[0] if len(texts) == 1 else texts
            answered["answer"] = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)
        else:
            kind = "rolling" if len(requests[0]) < _TWO else kind
            if "acc_mutual_info" in metrics:  # this metric adds a request without the prompt for each choice
                requests, answers = (part[: len(part) // 2] for part in (requests, answers))
            pairs = [answer if isinstance(answer, list) else (answer, None) for answer in answers]
            answered["loglikelihoods"] = tuple(float(score) for score, _ in pairs)
            answered["greedy"] = tuple(str(match) == "True" for _, match in pairs if match is not None)
        return Document(
            doc_id=int(logged["doc_id"]),
            filter=str(logged["filter"]),
            kind=kind,  # type: ignore[arg-type]  # a str to mypy
            requests=requests,
            target=str(logged.get("target")),
            metrics=metrics,
            hashes={name: str(logged[name]) for name in HASHES if name in logged},
            **answered,
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        shown = sample.get("doc_id") if isinstance(sample, Mapping) else None
        raise RunError(
            f"{task}: expected a sample of lm-eval (doc_id, arguments, filtered_resps, filter); "
            f"the one of document {shown} is not: {type(error).__name__} {error}"
        ) from error


def _requests(arguments: Any) -> tuple[tuple[Any, ...], ...]:
    """The arguments of every request, which a file has as {"gen_args_0": {"arg_0": ...}, ...}."""
    arguments = arguments.values() if isinstance(arguments, dict) else arguments
    requests = tuple(tuple(parts.values() if isinstance(parts, dict) else parts) for parts in arguments)
    if not requests or not all(requests):
        raise ValueError("it has no arguments")
    return requests


def _logged(sample: Sample) -> dict[str, Any]:
    """The fields of a sample that are read, as values that JSON gives back."""
    kept = {name: value for name, value in sample.items() if name not in {"doc", "resps"}}
    text = json.dumps(kept, default=lambda value: value.item() if getattr(value, "ndim", None) == 0 else str(value))
    logged: dict[str, Any] = json.loads(text)
    return logged


def _strings(value: Any) -> Any:
    """A generated text, or nested lists of them, as strings."""
    return [_strings(part) for part in value] if isinstance(value, list) else str(value)


def _metrics_of(sample: Sample) -> dict[str, float]:
    """The metrics of a document that are one number; others describe the whole task."""
    # drift_ are ours, of a pair; lm-eval logs the log-likelihood, which is known already, as perplexity
    names = [name for name in sample.get("metrics", ()) if not name.startswith("drift_") and name != "perplexity"]
    values = {name: sample.get(name) for name in names}
    return {
        name: float(value) if math.isfinite(value) else math.nan
        for name, value in values.items()
        if isinstance(value, bool | int | float)
    }


# --- the right choices of a question, which lm-eval does not log as such ---------------------------

ACCURACY = "acc"


def right_choices(reference: Sequence[Document], candidate: Sequence[Document]) -> list[frozenset[int]] | None:
    """The right choices of every question of two arms, in order; None if they cannot be told for certain.

    They are read from the target, as the number or as the text of a choice, or else from the accuracies. A reading
    counts only if it names a choice for every question and agrees with every logged accuracy.
    """
    pairs = list(zip(reference, candidate, strict=True))
    fitting = []
    for read in (_by_number, _by_text, _by_accuracy):
        choices = [read(*pair) for pair in pairs]
        agrees = all(
            (logged := document.metrics.get(ACCURACY)) is None or logged == float(_chosen(document) in right)
            for pair, right in zip(pairs, choices, strict=True)
            for document in pair
        )
        if all(choices) and agrees:
            fitting.append(choices)
    # if choices are numbers themselves, only accuracies could tell whether the target is a number or a text
    unsure = not any(ACCURACY in document.metrics for document in reference)
    return None if not fitting or (unsure and any(other != fitting[0] for other in fitting)) else fitting[0]


def _by_number(document: Document, _: Document) -> frozenset[int]:
    """Read the target as a number or a list of numbers; 1.0 is 1."""
    numbers = re.fullmatch(r"[\[(]?(\d{1,4}(?:\.0)?(?:, \d{1,4})*),?[\])]?", document.target)
    right = {int(float(number)) for number in numbers[1].split(", ")} if numbers else set()
    return frozenset(right if all(number < len(document.requests) for number in right) else ())


def _by_text(document: Document, _: Document) -> frozenset[int]:
    texts = [str(request[1]).strip() for request in document.requests]
    return frozenset(number for number, text in enumerate(texts) if text == document.target.strip())


def _by_accuracy(document: Document, other: Document) -> frozenset[int]:
    """The choice with which an arm was right; else the only choice with which no arm was wrong."""
    right, wrong = (
        {_chosen(arm) for arm in (document, other) if arm.metrics.get(ACCURACY) == value} for value in (1, 0)
    )
    left = set(range(len(document.requests))) - wrong
    return frozenset(right or (left if len(left) == 1 else ()))


def _chosen(document: Document) -> int:
    """The choice of highest log-likelihood; of equal ones the first, as in lm-eval."""
    return int(np.argmax(document.loglikelihoods))


# --- two runs on one task -------------------------------------------------------------------------

LOGLIKELIHOOD = "loglikelihood"
"""Name of the log-likelihood among the values of documents with one text, beside lm-eval's metrics."""
_BEST_KNOWN = ("exact_match", "acc")
"""The metrics to prefer as judges of a generated answer, if several say right or wrong."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairedFilter:
    """Both arms on the documents of a task, after one filter.

    Attributes:
        kind: kind of the task's requests.
        doc_ids: numbers of the documents, in order; they are the input ids of the evidence.
        values: by name the values of all documents in the reference and in the candidate, float64 [n_documents], NaN
            if missing: lm-eval's metrics that are one number, and "loglikelihood" if a document is one text.
        evidence: the choices as rankings, the generated text as an answer, or whether greedy decoding gives the text;
            None if there is no answer to compare.
        reason: why there is no evidence.
        judged_by: the metric that says which answers are right; None if none does.
    """

    kind: Kind
    doc_ids: tuple[int, ...]
    values: Mapping[str, tuple[Values, Values]]
    evidence: Evidence | None = None
    reason: str | None = None
    judged_by: str | None = None

    @property
    def right_or_wrong(self) -> list[str]:
        """Names of the metrics that are 0 or 1 for every document in both arms."""
        return [
            name
            for name, arms in self.values.items()
            if name != LOGLIKELIHOOD and all(np.isin(arm, (0.0, 1.0)).all() for arm in arms)
        ]


def pair_samples(reference: Sequence[Sample], candidate: Sequence[Sample], *, task: str) -> dict[str, PairedFilter]:
    """Pair the samples of two runs by document and filter.

    The chosen answer of a question is the choice of highest log-likelihood, the first of equal ones, as in lm-eval's
    `acc`.

    Args:
        reference: samples of one task, from lm-eval's memory or from a --log_samples file.
        candidate: the samples of the other run.
        task: name of the task.

    Returns:
        Both arms by filter, in the order of the samples.

    Raises:
        RunError: they are no samples, or differ in documents, prompts, targets, choices or settings of generation;
            says what differs.
    """
    before, after = (_by_filter(samples, task) for samples in (reference, candidate))
    _same("filters", before, after, task)
    filters = {}
    for name, documents in before.items():
        where = f"{task}, filter {name}" if len(before) > 1 else task
        _same("documents", documents, after[name], where)
        first, second = ([arm[number] for number in sorted(documents)] for arm in (documents, after[name]))
        _same_questions(first, second, where)
        filters[name] = _paired(first, second)
    return filters


def _by_filter(samples: Sequence[Sample], task: str) -> dict[str, dict[int, Document]]:
    filters: dict[str, dict[int, Document]] = {}
    for sample in samples:
        document = read_document(sample, task)
        if filters.setdefault(document.filter, {}).setdefault(document.doc_id, document) is not document:
            raise RunError(
                f"{task}: document {document.doc_id} occurs twice after the filter "
                f"{document.filter}; expected the samples of one run. Is it two files in one?"
            )
    if not filters:
        raise RunError(f"{task}: expected samples of lm-eval; there are none")
    return filters


def _same(what: str, before: Mapping[Any, Any], after: Mapping[Any, Any], where: str) -> None:
    if difference := only_in(before, after, ("the reference", "the candidate")):
        raise RunError(f"{where}: expected the same {what} in both runs; {difference}")


def _same_questions(before: Sequence[Document], after: Sequence[Document], where: str) -> None:
    differ: dict[str, list[str]] = {}
    for document, other in zip(before, after, strict=True):
        shared = [name for name in HASHES if name in document.hashes and name in other.hashes]
        parts = [name.removesuffix("_hash") for name in shared if document.hashes[name] != other.hashes[name]]
        for part in parts or ["choices or settings of generation"] * (document.requests != other.requests):
            differ.setdefault(part, []).append(str(document.doc_id))
    if differ:
        listed = "; ".join(f"{part} of {len(ids):,} documents ({some(ids)})" for part, ids in differ.items())
        raise RunError(
            f"{where}: expected the same questions in both runs; they differ in {listed}. Run both with the same task "
            "version, --num_fewshot, chat template, seeds and --gen_kwargs"
        )


def _paired(before: Sequence[Document], after: Sequence[Document]) -> PairedFilter:
    kind, ids = before[0].kind, [str(document.doc_id) for document in before]
    paired = PairedFilter(kind=kind, doc_ids=tuple(d.doc_id for d in before), values=_values(before, after))
    if any(document.kind != kind for document in (*before, *after)):
        return replace(paired, reason="its documents ask for answers of different kinds")
    if kind == "rolling":
        return replace(paired, reason="a document's perplexity has no answer that could change")
    if kind == "multiple_choice":
        return _of_choices(paired, before, after)
    if kind == "loglikelihood":
        marks = [{name: all(d.greedy) for name, d in zip(ids, arm, strict=True)} for arm in (before, after)]
        answers = [{name: "target" if right else "other" for name, right in arm.items()} for arm in marks]
        return replace(paired, evidence=evidence_of_answers(*answers, right=(marks[0], marks[1])), judged_by=ACCURACY)
    answers = [{name: d.answer for name, d in zip(ids, arm, strict=True)} for arm in (before, after)]
    for judge in sorted(paired.right_or_wrong, key=lambda name: name not in _BEST_KNOWN):
        marks = [dict(zip(ids, arm == 1.0, strict=True)) for arm in paired.values[judge]]
        try:
            return replace(paired, evidence=evidence_of_answers(*answers, right=(marks[0], marks[1])), judged_by=judge)
        except RunError:  # the metric depends on more than the answer
            continue
    return replace(paired, evidence=evidence_of_answers(*answers))


def _of_choices(paired: PairedFilter, before: Sequence[Document], after: Sequence[Document]) -> PairedFilter:
    """Add the evidence of questions, whose choices are two rankings."""
    if not np.isfinite([score for document in (*before, *after) for score in document.loglikelihoods]).all():
        return replace(paired, reason="a choice has a log-likelihood that is not finite")
    rankings = [
        {str(document.doc_id): {str(n): score for n, score in enumerate(document.loglikelihoods)} for document in arm}
        for arm in (before, after)
    ]
    qrels, right = None, right_choices(before, after)
    if right is not None:
        qrels = {name: {str(n): 1 for n in sorted(choices)} for name, choices in zip(rankings[0], right, strict=True)}
    evidence = evidence_of_rankings(*rankings, qrels=qrels, complete=True, position=int)
    return replace(paired, evidence=evidence, judged_by=None if right is None else ACCURACY)


def _values(before: Sequence[Document], after: Sequence[Document]) -> dict[str, tuple[Values, Values]]:
    def columns(name: str) -> tuple[Values, Values]:
        first, second = (np.array([d.metrics.get(name, math.nan) for d in arm]) for arm in (before, after))
        return first, second

    names = dict.fromkeys(name for document in before for name in document.metrics)
    common = set().union(*(document.metrics for document in after))
    values = {name: columns(name) for name in names if name in common}
    if all(len(document.loglikelihoods) == 1 for document in (*before, *after)):
        arms = (np.array([document.loglikelihoods[0] for document in arm]) for arm in (before, after))
        # a text of probability 0 has no finite change
        first, second = (np.where(np.isfinite(arm), arm, np.nan) for arm in arms)
        values[LOGLIKELIHOOD] = first, second
    return values


# --- figures of every document, and of the task ----------------------------------------------------

RIGHT_TO_WRONG, WRONG_TO_RIGHT = "drift_right_to_wrong_", "drift_wrong_to_right_"
CHANGE = f"drift_change_{LOGLIKELIHOOD}"
EPSILON = "drift_epsilon_median"

HIGHER_IS_BETTER: dict[str, bool | None] = {
    **dict.fromkeys(("drift_flip_at_1", "drift_at_risk", EPSILON, RIGHT_TO_WRONG), False),
    **dict.fromkeys(("drift_separation_median", WRONG_TO_RIGHT), True),
    CHANGE: None,
}
"""Whether higher is better, by figure; a name with an underscore at its end is a prefix to a metric's name."""

_OF_RANKINGS = frozenset({"rank", "gain", "grade", "similarity"})
"""Units of metrics that are meant for longer rankings than a question's few choices."""


def per_document(paired: PairedFilter) -> dict[str, Values]:
    """Figures of every document, float64 [n_documents] without NaN; a task has their means."""
    figures: dict[str, Values] = {}
    for name in ("flip@1", "at_risk"):
        values = _per_input(name, paired)
        if values is not None and not np.isnan(values).any():
            figures[key_of(parse_metric(name))] = values
    for name in paired.right_or_wrong:
        before, after = paired.values[name]
        figures[RIGHT_TO_WRONG + name] = before * (1 - after)
        figures[WRONG_TO_RIGHT + name] = (1 - before) * after
    if (change := _change(paired)) is not None:
        figures[CHANGE] = change
    return figures


def scores_of(paired: PairedFilter) -> dict[str, Values]:
    """Gap, epsilon and separation ratio of every document, NaN or +inf if it has no finite value."""
    columns = {f"drift_{name}": _per_input(name, paired) for name in ("gap", "epsilon", "separation")}
    return {name: values for name, values in columns.items() if values is not None and not np.isnan(values).all()}


def medians_of(parts: Sequence[PairedFilter]) -> dict[str, Estimate]:
    """Finite medians over the documents of one task, or of several pooled tasks."""
    separation = parse_metric("separation")
    medians = {key_of(separation): _over(separation, parts)}
    if changes := [change for part in parts if (change := _change(part)) is not None]:
        medians[EPSILON] = quantile_estimate(np.abs(np.concatenate(changes)))
    return {name: median for name, median in medians.items() if median.value is not None and np.isfinite(median.value)}


def details_of(paired: PairedFilter, *, warn: Callable[[str], None]) -> dict[str, Any]:
    """All figures of a task after one filter, as JSON values.

    Args:
        paired: both arms.
        warn: called with a sentence for each metric that cannot be computed.

    Returns:
        By key: the default metrics that fit, null if undefined; the figures of `per_document`; and of each of lm-eval's
        metrics that is one number the reference's mean and the change. Rates and changes also have `_low` and `_high`,
        the ends of the 95 % interval.
    """
    details = {"kind": paired.kind, "drift_n_inputs": len(paired.doc_ids), "judged_by": paired.judged_by}
    if paired.evidence is None:
        details["no_evidence"] = paired.reason
    else:
        details |= drift_keys(paired.evidence, _metrics(), warn=warn)
    of_harness = {}
    for name, (before, after) in paired.values.items():
        here = ~(np.isnan(before) | np.isnan(after))
        if here.any():
            of_harness[f"drift_reference_{name}"] = mean_estimate(before[here])
            of_harness[f"drift_change_{name}"] = mean_estimate((after - before)[here])
    return details | _written(_estimates([paired])) | _written(of_harness)


def pooled_details(parts: Sequence[PairedFilter]) -> dict[str, Any]:
    """The figures of several tasks together, every document counting once; without lm-eval's own metrics."""
    return {
        "drift_n_inputs": sum(len(part.doc_ids) for part in parts),
        **_written({key_of(metric): _over(metric, parts) for metric in _metrics()}),
        **_written(_estimates(parts)),
    }


def _metrics() -> list[Metric]:
    """The default metrics about the first answer, and those that the user asks for."""
    unfit = [
        metric
        for metric in default_metrics()
        if metric.unit in _OF_RANKINGS or (metric.family.cutoff_is == "rank" and metric.cutoff > 1)
    ]
    return [metric for metric in harness_metrics() if metric not in unfit]


def _estimates(parts: Sequence[PairedFilter]) -> dict[str, Estimate]:
    figures = [per_document(part) for part in parts]
    estimates = {}
    for name in dict.fromkeys(name for columns in figures for name in columns):
        values = np.concatenate([columns[name] for columns in figures if name in columns])
        estimates[name] = mean_estimate(values) if name == CHANGE else rate_estimate(values)
    return estimates | {name: median for name, median in medians_of(parts).items() if name == EPSILON}


def _written(estimates: Mapping[str, Estimate]) -> dict[str, Any]:
    written: dict[str, Any] = {}
    for name, estimate in estimates.items():
        entry = estimate.to_json()
        written[name] = entry["value"]
        if entry["value"] is not None and entry["low"] is not None:
            written[f"{name}_low"], written[f"{name}_high"] = entry["low"], entry["high"]
    return written


def _change(paired: PairedFilter) -> Values | None:
    """The change of the log-likelihood of every document with one text; None if one is not finite."""
    before, after = paired.values.get(LOGLIKELIHOOD, (np.array([np.nan]),) * 2)
    return after - before if np.isfinite(after - before).all() else None


def _per_input(name: str, paired: PairedFilter) -> Values | None:
    try:
        return None if paired.evidence is None else parse_metric(name).per_input(paired.evidence)
    except MetricError:
        return None


def _over(metric: Metric, parts: Sequence[PairedFilter]) -> Estimate:
    group = [part.evidence for part in parts if part.evidence is not None]
    return metric.known_over(group) if group else undefined("no task has answers to compare")

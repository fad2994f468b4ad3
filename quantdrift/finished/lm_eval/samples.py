"""Two runs of lm-eval on one task, document by document."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift import perturbation
from quantdrift.errors import RunError
from quantdrift.evidence import Evidence, Noise
from quantdrift.finished.lm_eval.document import HASHES, Document, Kind, read_document
from quantdrift.finished.lm_eval.evidence import (
    evidence_of_choices,
    evidence_of_texts,
    right_or_wrong,
)

__all__ = ["LOGLIKELIHOOD", "PairedFilter", "PairedSamples", "Sample", "pair_samples", "with_noise"]

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


def pair_samples(
    reference: Sequence[Sample], candidate: Sequence[Sample], *, task: str
) -> PairedSamples:
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
        noise = Noise(
            flips=perturbation.flips(other),
            epsilon=perturbation.epsilon(other).astype(np.float32),
        )
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


def _same_questions(
    before: Mapping[int, Document], after: Mapping[int, Document], where: str
) -> None:
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


def _values(
    before: Sequence[Document], after: Sequence[Document]
) -> dict[str, tuple[Values, Values]]:
    names = dict.fromkeys(name for document in before for name in document.metrics)
    known = set().union(*(document.metrics for document in after))
    values = {
        name: (_column(before, name), _column(after, name)) for name in names if name in known
    }
    if all(len(document.loglikelihoods) == 1 for document in (*before, *after)):
        once, again = (
            np.array([document.loglikelihoods[0] for document in arm], dtype=np.float64)
            for arm in (before, after)
        )
        # a text that a model holds for impossible has no change that could be averaged
        values[LOGLIKELIHOOD] = (
            np.where(np.isfinite(once), once, np.nan),
            np.where(np.isfinite(again), again, np.nan),
        )
    return values


def _column(documents: Sequence[Document], name: str) -> Values:
    return np.array([one.metrics.get(name, math.nan) for one in documents], dtype=np.float64)

"""The results of a pair's search: those of the candidate, with the drift."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from quantdrift.base.display import clean, complain, say
from quantdrift.base.errors import UnknownNameError, UnsupportedError
from quantdrift.base.text import percent
from quantdrift.candidate.pair import QuantizedPair
from quantdrift.evidence.record import Evidence
from quantdrift.harness import Outcome, Results
from quantdrift.measuring.flow import with_qrels
from quantdrift.metrics import FAMILIES, Metric, default_metrics, measure, parse_metric
from quantdrift.metrics.base import MetricError, cutoff_text
from quantdrift.models.store import key_of
from quantdrift.runs.folder import Run, write_run
from quantdrift.spec.grammar import Spec
from quantdrift.statistics.estimates import Estimate

_OTHERS = ("recall_cap", "r_cap", "r_cap@k", "hole", "hole@k")
BEIR_METRICS = ("mrr", "mrr@k", "mrr_cut", *_OTHERS, "acc", "top_k_acc", "accuracy", "accuracy@k", "top_k_accuracy")
"""Names of beir's own metrics, which take precedence over ours of the same name."""

Qrels = Mapping[str, Mapping[str, int]]
"""Query id to document id to grade."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Drift(Mapping[str, Estimate]):
    """The drift of a scheme: every metric by name, computed on access.

    A family with one cut-off needs none: "flip" is "flip@1".

    >>> results.drift["flip@1"].value, results.drift["flip@1"].low  # doctest: +SKIP
    (0.25333333333333335, 0.2009...)

    Attributes:
        evidence: the per-input record.
        reference: the reference's results, as deep as the candidate's.
        record: the record, as in run.json.
    """

    evidence: Evidence
    reference: Results
    record: Mapping[str, Any]

    def __getitem__(self, metric: str) -> Estimate:
        asked, *others = metrics_named(metric)
        if others:
            raise MetricError(
                f"{metric!r} names a family of metrics; expected one of them: {', '.join(map(str, (asked, *others)))}"
            )
        return asked.known_over([self.evidence])

    def __iter__(self) -> Iterator[str]:
        return (str(metric) for metric in default_metrics())

    def __len__(self) -> int:
        return len(default_metrics())

    def __repr__(self) -> str:
        return f"Drift({self.record['spec']!r}, {self.evidence.n_inputs:,} queries)"


class PairedResults(dict[str, dict[str, float]]):
    """The candidate's results, an ordinary dict to beir, with the drift.

    Attributes:
        drift: the drift of the scheme.
    """

    def __init__(self, results: Mapping[str, dict[str, float]], drift: Drift) -> None:
        super().__init__(results)
        self.drift = drift

    @property
    def evidence(self) -> Evidence:
        """The per-input record that every metric is computed from."""
        return self.drift.evidence

    @property
    def reference(self) -> Results:
        """The reference's results."""
        return self.drift.reference

    def copy(self) -> PairedResults:
        """Return a shallow copy with the same drift."""
        return PairedResults(self, self.drift)

    def save(self, folder: str | Path, *, qrels: Qrels | None = None, data: str = "beir") -> Run:
        """Write a run folder, which `quantdrift metrics FOLDER` reads.

        Args:
            folder: the folder, which may hold an earlier run.
            qrels: relevance labels.
            data: name of the data in tables.

        Raises:
            RunError: it cannot be written.
        """
        evidence, record = self.evidence, self.drift.record
        said = {**record["data"], "name": data}
        if qrels is not None:  # other labels are other data
            evidence = with_qrels(evidence, qrels)
            grades = sorted((q, d, int(g)) for q, of in qrels.items() for d, g in of.items())
            said["fingerprint"] = key_of(texts=said["fingerprint"], qrels=grades)
        metrics = {name: estimate.to_json() for name, estimate in measure(evidence).items()}
        record = {**record, "data": said, "metrics": metrics}
        return write_run(Path(folder).expanduser(), evidence=evidence, record=record)


def paired_results(
    spec: Spec, pair: QuantizedPair, outcome: Outcome, fingerprint: str, *, started: str, shown: bool = True
) -> PairedResults:
    """Return the results with their drift, and write a line to standard error."""
    data = {"name": "beir", "harness": "beir", "harness_version": version("beir"), "fingerprint": fingerprint}
    record = outcome.record(spec, pair, model={}, data=data, started=started)
    drift = Drift(evidence=outcome.evidence, reference=outcome.results("reference"), record=record)
    if shown:
        flips, noise = (percent(drift[name].value) for name in ("flip@1", "noise_floor"))
        of = f"{flips} of {outcome.evidence.n_inputs:,} inputs have another top-1 (noise alone: {noise})"
        say(f"{clean(str(spec))}: {of}", error=True)
    return PairedResults(outcome.results("candidate"), drift)


# --- metrics by name ------------------------------------------------------------------------------


def evaluate_custom(
    original: Callable[..., Any], qrels: Qrels, results: Any, k_values: Sequence[int], metric: str
) -> Any:
    """Do EvaluateRetrieval.evaluate_custom, with every metric of quantdrift too.

    Args:
        original: beir's own function.
        qrels: relevance labels.
        results: of a search.
        k_values: cut-offs for a metric without one in its name.
        metric: a name of beir's, a metric such as "gold_lost@10", or a family such as "flip".

    Returns:
        Metric to value, None if undefined; for beir's own metrics, the values of beir.

    Raises:
        UnknownNameError: neither beir nor quantdrift has the metric; names the nearest ones.
        MetricError: it has no such cut-off.
        UnsupportedError: the results are of one model, or have lost their drift.
    """
    if metric.lower() in BEIR_METRICS:
        return original(qrels, results, k_values, metric)
    chosen = metrics_named(metric, k_values)
    if not isinstance(results, PairedResults):
        raise UnsupportedError(
            f"{metric} compares two arms, and these results are of one. DenseRetrievalExactSearch and Rerank measure "
            'both if the model is wrapped before: QuantizedPair(model, "W4-rtn"). Two finished searches: quantdrift '
            "diff A B. A copy made by dict(results) or {**results} has lost its drift; results.copy() has not"
        )
    evidence = with_qrels(results.evidence, qrels)
    estimates = {str(wanted): wanted.known_over([evidence]) for wanted in chosen}
    for name, estimate in estimates.items():
        if estimate.value is None:
            complain(f"{name} is undefined: {estimate.reason}")
    return {name: estimate.value for name, estimate in estimates.items()}


def metrics_named(text: str, k_values: Sequence[int] = ()) -> list[Metric]:
    """Return the metrics of a name: one, or all of a family if the name has no cut-off.

    >>> [str(metric) for metric in metrics_named("change.ndcg", [5, 10])]
    ['change.ndcg@5', 'change.ndcg@10']
    >>> [str(metric) for metric in metrics_named("flip", [5, 10])]
    ['flip@1']
    """
    whole, colon, condition = text.strip().partition(":")
    family = FAMILIES.get(whole.rpartition(".")[2])
    if family is None or not family.cutoffs:
        try:
            return [parse_metric(text)]
        except UnknownNameError as error:
            names = [*FAMILIES, *(str(metric) for metric in default_metrics()), *BEIR_METRICS]
            hint = "(quantdrift list metrics shows all of quantdrift's)"
            raise UnknownNameError("metric", error.name, names, hint=hint) from error
    any_rank = family.cutoff_is == "rank" and family.other_cutoffs
    cutoffs = sorted(set(k_values)) if any_rank and k_values else family.cutoffs
    return [parse_metric(f"{whole}@{cutoff_text(cutoff)}{colon}{condition}") for cutoff in cutoffs]

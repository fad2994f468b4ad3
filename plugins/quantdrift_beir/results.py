"""What a search of a pair gives: the candidate's results, and with them the drift."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quantdrift.display import clean
from quantdrift.display import say as print_line
from quantdrift.engine.search import with_qrels
from quantdrift.engine.store import key_of
from quantdrift.errors import QuantDriftError
from quantdrift.evidence import Evidence
from quantdrift.metrics import FAMILIES, Metric, default_metrics, parse_metric
from quantdrift.metrics.base import MetricError, cutoff_text
from quantdrift.runs import Run, write_run
from quantdrift.statistics import Estimate, undefined
from quantdrift_beir.record import Made, record_of

DEPTH = 200
"""Ranks kept in the evidence; beir itself asks for more."""

Results = dict[str, dict[str, float]]
"""Query id to document id to score, as beir has them."""

Qrels = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Drift(Mapping[str, Estimate]):
    """What a scheme changed: every metric by its name, computed when it is asked for.

    A family that has one cut-off may go without it: "flip" is "flip@1".

    >>> results.drift["flip@1"].value, results.drift["flip@1"].low  # doctest: +SKIP
    (0.25333333333333335, 0.2009...)

    Attributes:
        evidence: the per-input record.
        reference: the reference's results, as deep as the candidate's.
        made: how it was measured.
    """

    evidence: Evidence
    reference: Results
    made: Made

    def __getitem__(self, metric: str) -> Estimate:
        asked = _metric_named(metric)
        try:
            return asked(self.evidence)
        except MetricError as error:  # it looks deeper than the results that were compared
            return undefined(str(error))

    def __contains__(self, metric: object) -> bool:
        try:
            _metric_named(str(metric))
        except QuantDriftError:
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        return (str(metric) for metric in default_metrics())

    def __len__(self) -> int:
        return len(default_metrics())

    def __repr__(self) -> str:
        return f"Drift({self.made.spec!r}, {self.evidence.n_inputs:,} queries)"

    def with_qrels(self, qrels: Qrels) -> Drift:
        """The same with relevance labels.

        Args:
            qrels: query id to document id to grade.
        """
        return replace(self, evidence=with_qrels(self.evidence, qrels))

    def save(self, folder: str | Path, *, qrels: Qrels | None = None, data: str = "beir") -> Run:
        """Write a run folder, which `quantdrift metrics FOLDER` reads.

        Args:
            folder: to write; may hold an earlier run.
            qrels: relevance labels.
            data: name of the data, for tables.

        Raises:
            RunError: it cannot be written.
        """
        labelled = self if qrels is None else self.with_qrels(qrels)
        record = record_of(self.made, labelled.evidence, data=data)
        if qrels is not None and "fingerprint" in record["data"]:  # other labels are other data
            grades = sorted((q, d, int(g)) for q, of in qrels.items() for d, g in of.items())
            record["data"]["fingerprint"] = key_of(texts=record["data"]["fingerprint"], qrels=grades)
        return write_run(Path(folder).expanduser(), evidence=labelled.evidence, record=record)


class PairedResults(dict[str, dict[str, float]]):
    """The candidate's results, an ordinary dict to beir, that carry the drift.

    Attributes:
        drift: what the scheme changed.
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

    def save(self, folder: str | Path, *, qrels: Qrels | None = None, data: str = "beir") -> Run:
        """Write a run folder, which `quantdrift metrics FOLDER` reads.

        Args:
            folder: to write; may hold an earlier run.
            qrels: relevance labels.
            data: name of the data, for tables.

        Raises:
            RunError: it cannot be written.
        """
        return self.drift.save(folder, qrels=qrels, data=data)

    def copy(self) -> PairedResults:
        """A shallow copy; it carries the same drift."""
        return PairedResults(self, self.drift)


def _metric_named(text: str) -> Metric:
    """The one metric that a name means.

    Raises:
        UnknownNameError: there is none of that name.
        MetricError: it means several, or has no such cut-off or arm, or its slice cannot be read.
    """
    whole, colon, condition = text.strip().partition(":")
    family = FAMILIES.get(whole.rpartition(".")[2])
    if family is None or not family.cutoffs:
        return parse_metric(text)
    members = [f"{whole}@{cutoff_text(cutoff)}{colon}{condition}" for cutoff in family.cutoffs]
    found = [parse_metric(member) for member in members]
    if len(found) == 1 and not family.other_cutoffs:
        return found[0]
    others = f", or with another {family.cutoff_is} behind the @" if family.other_cutoffs else ""
    raise MetricError(
        f"{text.strip()!r} names a family of metrics; expected one of them: {', '.join(members)}"
        f"{others}. EvaluateRetrieval.evaluate_custom takes a family, and gives all at its k_values"
    )


def say(spec: object, evidence: Evidence, *, shown: bool = True) -> None:
    """One line on standard error of what was found.

    Args:
        spec: the pair.
        evidence: of it.
        shown: whether anything is to be shown.
    """
    if not shown:
        return
    flip: Any = parse_metric("flip@1")(evidence).value
    noise: Any = parse_metric("noise_floor")(evidence).value
    told = "undefined" if flip is None else f"{100 * flip:.1f} % of {evidence.n_inputs:,} queries"
    floor = "" if noise is None else f" (noise floor {100 * noise:.1f} %)"
    print_line(f"drift of {clean(str(spec))}: another first answer for {told}{floor}", error=True)

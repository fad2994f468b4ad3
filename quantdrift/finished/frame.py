"""Evidence as a data frame of pandas, one row per input."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from quantdrift import perturbation
from quantdrift.evidence import Evidence, Top
from quantdrift.extras import extras_named
from quantdrift.metrics import parse_metric

if TYPE_CHECKING:
    import pandas as pd


def frame_of(evidence: Evidence, metrics: Iterable[str] = ()) -> pd.DataFrame:
    """The figures and first answers of every input, with a column for each metric.

    Args:
        evidence: of one run.
        metrics: metric strings.

    Raises:
        MissingExtraError: pandas is not installed.
        QuantDriftError: a metric is not known, or has no value per input.
    """
    with extras_named(needed_for="Run.to_pandas"):
        import pandas as pd  # noqa: PLC0415 -- an extra
    arms = (
        ("reference", evidence.reference_top, evidence.reference_top.reference_scores),
        ("candidate", evidence.candidate_top, evidence.candidate_top.candidate_scores),
    )
    asked = [metrics] if isinstance(metrics, str) else metrics
    columns: dict[str, Any] = {
        "flip": perturbation.flips(evidence),
        "gap": perturbation.gap(evidence),
        "candidate_gap": perturbation.candidate_gap(evidence),
        "epsilon": perturbation.epsilon(evidence),
        "separation": perturbation.separation_ratio(evidence),
        "S": perturbation.perturbation_s(evidence),
        "n_items": evidence.n_items,
        **{arm: _first(evidence, top) for arm, top, _ in arms},
        **{f"{arm}_score": scores[:, 0] for arm, _, scores in arms},
        **{f"{arm}_relevant": pd.array(_relevant(evidence, top), dtype="boolean") for arm, top, _ in arms},
        **{name: parse_metric(name).per_input(evidence) for name in asked},
    }
    return pd.DataFrame(columns, index=pd.Index(evidence.input_ids, name="input_id"))


def _first(evidence: Evidence, top: Top) -> list[str | None]:
    return [str(evidence.item_ids[item]) if item >= 0 else None for item in top.items[:, 0].tolist()]


def _relevant(evidence: Evidence, top: Top) -> Any:
    """Whether the first answers are relevant; None where an input has no labels."""
    if evidence.judgements is None:
        return np.full(evidence.n_inputs, None)
    labels = [evidence.judgements.of(row) for row in range(evidence.n_inputs)]
    firsts = top.items[:, 0].tolist()
    return [own.get(item, 0) > 0 if own else None for own, item in zip(labels, firsts, strict=True)]

"""Evidence as a data frame of pandas, one row per input."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from quantdrift import perturbation
from quantdrift.evidence import Evidence
from quantdrift.extras import extras_named
from quantdrift.metrics import parse_metric

if TYPE_CHECKING:
    import pandas as pd


def frame_of(evidence: Evidence, metrics: Iterable[str] = ()) -> pd.DataFrame:
    """The figures and first answers of every input, with a column for each metric."""
    with extras_named(needed_for="Run.to_pandas"):
        import pandas as pd  # noqa: PLC0415 -- an extra
    tops = {"reference": evidence.reference_top, "candidate": evidence.candidate_top}
    firsts = {arm: top.items[:, 0].tolist() for arm, top in tops.items()}
    judgements = evidence.judgements
    labels = [{} if judgements is None else judgements.of(row) for row in range(evidence.n_inputs)]
    columns: dict[str, Any] = {
        "flip": perturbation.flips(evidence),
        "gap": perturbation.gap(evidence),
        "candidate_gap": perturbation.candidate_gap(evidence),
        "epsilon": perturbation.epsilon(evidence),
        "separation": perturbation.separation_ratio(evidence),
        "S": perturbation.perturbation_s(evidence),
        "n_items": evidence.n_items,
    }
    for arm, own in firsts.items():
        columns[arm] = [str(evidence.item_ids[item]) if item >= 0 else None for item in own]
    columns |= {f"{arm}_score": getattr(top, f"{arm}_scores")[:, 0] for arm, top in tops.items()}
    for arm, own in firsts.items():
        # missing where an input has no labels
        relevant = [held.get(item, 0) > 0 if held else None for held, item in zip(labels, own, strict=True)]
        columns[f"{arm}_relevant"] = pd.array(relevant, dtype="boolean")
    for name in [metrics] if isinstance(metrics, str) else metrics:
        columns[name] = parse_metric(name).per_input(evidence)
    return pd.DataFrame(columns, index=pd.Index(evidence.input_ids, name="input_id"))

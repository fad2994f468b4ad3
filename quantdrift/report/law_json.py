"""What runs say of the law, as JSON values."""

from __future__ import annotations

import math
from pathlib import Path

from quantdrift.report.law_findings import law_findings
from quantdrift.report.law_runs import LawRun
from quantdrift.report.law_study import LawStudy
from quantdrift.theory import Line
from quantdrift.theory.held_out import HeldOut

__all__ = ["law_json"]


def law_json(study: LawStudy, figure: Path | None = None) -> dict[str, object]:
    """Every run and every result, as JSON values.

    JSON has no infinity: a separation of +infinity is null, and `separation_is_infinite` is true.

    Args:
        study: as computed by `study_law`.
        figure: file that was drawn, or None.
    """
    held = study.held_out.get("separation")
    unseen = {
        label: rate
        for group in (held.groups if held else ())
        for label, rate in group.predicted.items()
    }
    by = study.left_out if isinstance(study.left_out, str) else "pattern"
    return {
        "runs": [_run_json(run, unseen.get(run.point.label)) for run in study.runs],
        "spearman": {
            "all": {name: value.to_json() for name, value in study.spearman.items()},
            "by_data": {
                data: {name: value.to_json() for name, value in estimates.items()}
                for data, estimates in study.within.items()
            },
        },
        "line": _line_json(study.line),
        "held_out": {
            "by": by,
            "patterns": [] if isinstance(study.left_out, str) else list(study.left_out),
            "predictors": {name: _held_json(one) for name, one in study.held_out.items()},
            "reason": study.reason,
        },
        "findings": law_findings(study),
        "figure": None if figure is None else str(figure),
    }


def _run_json(run: LawRun, unseen: float | None) -> dict[str, object]:
    point = run.point
    finite = math.isfinite(point.separation)
    return {
        "path": str(run.path),
        "label": point.label,
        "spec": str(run.spec),
        "data": run.data,
        "n_documents": run.n_documents,
        "separation": point.separation if finite else None,
        "separation_is_infinite": not finite,
        "gap": point.gap,
        "epsilon": point.epsilon,
        "n_items": point.n_items,
        "change_rate": run.changed.to_json(),
        "predicted_unseen": unseen,
    }


def _line_json(line: Line | None) -> dict[str, object] | None:
    if line is None:
        return None
    return {
        "predictor": line.predictor,
        "slope": line.slope,
        "intercept": line.intercept,
        "pearson": line.pearson,
        "n": line.n,
    }


def _held_json(held: HeldOut) -> dict[str, object]:
    return {
        "r_squared": held.r_squared.to_json(),
        "mean_error": held.mean_error.to_json(),
        "groups": [
            {
                "name": group.name,
                "labels": list(group.predicted),
                "line": _line_json(group.line),
                "r_squared": group.r_squared.to_json(),
                "mean_error": group.mean_error.to_json(),
                "reason": group.reason,
            }
            for group in held.groups
        ],
    }

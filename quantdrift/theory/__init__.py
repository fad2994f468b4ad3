"""What follows from gaps and epsilon: guaranteed, modelled, and observed over many runs.

`reachability` and `stability` are exact and hold for every perturbation of at most epsilon.
`flip_probability` and `effective_scale` add a model of the perturbation, which may be wrong. `law`
and `held_out` only describe runs. None of them needs torch.
"""

from __future__ import annotations

from quantdrift.theory.effective_scale import (
    ContenderBucket,
    ContenderPrediction,
    EffectiveScale,
    fit_effective_scale,
    predicted_by_contender_count,
)
from quantdrift.theory.exact import Number, TheoryError
from quantdrift.theory.flip_probability import (
    flip_probability,
    flip_probability_limits,
    relative_gaps,
)
from quantdrift.theory.law import (
    PREDICTORS,
    LawPoint,
    Line,
    Predictor,
    fit_line,
    law_point,
    r_squared,
    spearman,
)
from quantdrift.theory.reachability import (
    is_reachable,
    must_precede,
    reachable_rankings,
    witness,
)
from quantdrift.theory.stability import contenders, top1_is_stable, topk_is_stable

__all__ = [
    "PREDICTORS",
    "ContenderBucket",
    "ContenderPrediction",
    "EffectiveScale",
    "LawPoint",
    "Line",
    "Number",
    "Predictor",
    "TheoryError",
    "contenders",
    "fit_effective_scale",
    "fit_line",
    "flip_probability",
    "flip_probability_limits",
    "is_reachable",
    "law_point",
    "must_precede",
    "predicted_by_contender_count",
    "r_squared",
    "reachable_rankings",
    "relative_gaps",
    "spearman",
    "top1_is_stable",
    "topk_is_stable",
    "witness",
]

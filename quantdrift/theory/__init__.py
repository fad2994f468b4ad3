"""What follows from gaps and epsilon: guaranteed, modelled, and observed over many runs.

`flip_probability` and `effective_scale` add a model of the perturbation, which may be wrong. `law`
and `held_out` only describe runs. None of them needs torch.
"""

from __future__ import annotations

from quantdrift.errors import TheoryError
from quantdrift.theory.effective_scale import (
    ContenderBucket,
    ContenderPrediction,
    EffectiveScale,
    fit_effective_scale,
    predicted_by_contender_count,
)
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

__all__ = [
    "PREDICTORS",
    "ContenderBucket",
    "ContenderPrediction",
    "EffectiveScale",
    "LawPoint",
    "Line",
    "Predictor",
    "TheoryError",
    "fit_effective_scale",
    "fit_line",
    "flip_probability",
    "flip_probability_limits",
    "law_point",
    "predicted_by_contender_count",
    "r_squared",
    "relative_gaps",
    "spearman",
]

"""`quantdrift predict`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quantdrift.allocation.curve import Prediction
from quantdrift.cli import Interrupted
from quantdrift.cli.measuring import ModelOptions
from quantdrift.cli.predicted import print_prediction
from quantdrift.cli.values import parse_group, refuse_scheme
from quantdrift.datasets.retrieval import RetrievalDataset
from quantdrift.display import print_json
from quantdrift.errors import QuantDriftError
from quantdrift.models.checkpoint import full_precision

if TYPE_CHECKING:
    from quantdrift.engine.sensitivity.jobs import Predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictOptions(ModelOptions):
    """The options of `quantdrift predict`, as typed by the user."""

    model: str
    dataset: RetrievalDataset
    shown_data: str
    widths: str
    group: str


def predict_command(options: PredictOptions) -> None:
    """Print what rounding to each width will change, uniform and allocated.

    Raises:
        QuantDriftError: anything wrong with options, model, data or runs.
    """
    refuse_scheme(options.model, "every width is predicted at once; use quantdrift predict {}")
    widths, group_size = _widths(options.widths), parse_group(options.group)
    full_precision(options.model)
    from quantdrift.engine.sensitivity.jobs import predict_model  # noqa: PLC0415 -- torch

    try:
        found = predict_model(
            options.model,
            options.dataset,
            widths=widths,
            group_size=group_size,
            settings=options.settings,
            store=options.store,
            progress=options.progress,
            device=options.device,
            revision=options.revision,
        )
    except KeyboardInterrupt:
        kept = "what was measured is kept, and the same command goes on"
        raise Interrupted(kept if options.store.root else "nothing is kept with --no-cache") from None
    if options.json_output:
        print_json(_json(found, options, group_size))
    else:
        print_prediction(
            found,
            model=options.model,
            data=options.dataset.name,
            shown_data=options.shown_data,
            group_size=group_size,
            widths=widths,
        )


def _widths(text: str) -> tuple[int, ...]:
    if not re.fullmatch("[2-8](,[2-8])+", text) or len(set(text.split(","))) == 1:
        raise QuantDriftError(
            f"--widths {text}: expected at least two whole numbers from 2 to 8 with commas between, e.g. 2,3,4,8"
        )
    return tuple(sorted({int(width) for width in text.split(",")}))


def _json(found: Predicted, options: PredictOptions, group_size: int | None) -> dict[str, Any]:
    return {
        "model": options.model,
        "data": options.dataset.name,
        "group_size": group_size,
        "input_ids": list(found.input_ids),
        "contenders": found.n_contenders,
        "median_gap": found.median_gap,
        "curve": [
            {
                "budget": point.budget,
                "allocated": point.allocated,
                "on_front": point.on_front,
                **_prediction(point.prediction),
            }
            for point in found.points
        ],
    }


def _prediction(found: Prediction) -> dict[str, Any]:
    return {
        "bits_per_weight": found.bits_per_weight,
        "flip@1": found.flips.to_json(),
        "random_signs": found.chance.to_json(),
        "median_shift": found.shift.to_json(),
    }

"""The stages of one scheme's candidate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quantdrift.engine.stages import ModelStage, VectorStage
from quantdrift.spec.grammar import Scheme
from quantdrift.stages import STAGES

if TYPE_CHECKING:
    from quantdrift.engine.pair import QuantizedPair


def model_stages(scheme: Scheme, pair: QuantizedPair) -> dict[str, ModelStage]:
    """Those of a candidate that change its model, by name, in order."""
    return {
        name: stage.make(scheme, pair)
        for name, stage in STAGES.items()
        if stage.work and stage.kind != "vectors" and stage.in_(scheme)
    }


def vector_stages(scheme: Scheme) -> tuple[VectorStage, ...]:
    """Those of a candidate that lie between its embeddings and what is returned, in order; none for exact search."""
    return tuple(stage.make(scheme) for stage in STAGES.values() if stage.kind == "vectors" and stage.in_(scheme))


def options_under_layers(scheme: Scheme) -> list[tuple[str, str]]:
    """Options of a scheme that change what linear layers are calibrated on."""
    keys = {key for stage in STAGES.values() if stage.under_layers for key in stage.options}
    return [option for option in scheme.options if option[0] in keys]

"""The interface of stages that change a model and undo that; `scoring.stages` has the stages of a search."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from quantdrift.kinds.stage import STAGES

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import nn

    from quantdrift.base.progress import Progress
    from quantdrift.candidate.calibration.in_order import MadeLayers
    from quantdrift.models.bits import StoredBits
    from quantdrift.models.layers import LinearLayer
    from quantdrift.scheme import Scheme


class StagedModel(Protocol):
    """The model whose candidate a stage works on; `QuantizedPair` is one.

    Attributes:
        name: name of the model, for messages.
        modules: the outermost torch modules.
        layers: the linear layers that are quantized.
        left_out: names of the linear layers that are not quantized, to the reasons.
        encoder: runs the model.
        notes: sentences about the model for the output of a run; a stage adds its own.
        made: the calibrated layers; None if there are none.
    """

    name: str
    modules: list[nn.Module]
    layers: list[LinearLayer]
    left_out: dict[str, str]
    encoder: Any
    notes: tuple[str, ...]
    made: MadeLayers | None

    @property
    def weight(self) -> torch.Tensor:
        """A weight of the model, which has its device and number type."""

    @property
    def device(self) -> torch.device:
        """The device of the model."""

    def under_layers(self) -> AbstractContextManager[None]:
        """Inside, the stages that linear layers are calibrated with are in place."""


class ModelStage:
    """A stage that changes a model beside the weights of its linear layers, for one candidate.

    Attributes:
        scheme: the scheme with the stage.
        pair: the model whose candidate it changes; in the constructor all of it but `made` is set.
        reaches: paths of further modules that change with the stage's own.
        batch_size: batch size of the candidate; None if it is the reference's.
    """

    reaches: Collection[str] = ()
    batch_size: int | None = None

    def __init__(self, scheme: Scheme, pair: StagedModel) -> None:
        """Find the parts to change; raise UnsupportedError if there are none."""
        self.scheme, self.pair = scheme, pair

    def applied(self) -> AbstractContextManager[Any]:
        """Inside, the model is changed; on leaving, it is restored bit for bit."""
        raise NotImplementedError

    def observed(self) -> AbstractContextManager[Any]:
        """Inside, the stage observes forward passes of the reference."""
        return nullcontext()

    def prepared(self, made: MadeLayers, *, root: Path | None, progress: Progress) -> MadeLayers:
        """Fit the stage to the sample that the layers were calibrated on; return the layers with its changes."""
        return made

    def key(self) -> str | None:
        """Return all that decides outputs beside the weights in place; None if these decide alone."""
        return str(self.scheme)

    def record(self) -> Mapping[str, Any]:
        """Return entries of the stage for "quantization" in run.json."""
        raise NotImplementedError

    def bits(self) -> Sequence[StoredBits]:
        """Return the parameters that take other bits than at full precision."""
        return ()


# --- the stages of one scheme's candidate --------------------------------------------------------------


def model_stages(scheme: Scheme, pair: StagedModel) -> dict[str, ModelStage]:
    """Make the stages of a scheme that change the candidate's model, by name, in order."""
    return {
        name: stage.make(scheme, pair)
        for name, stage in STAGES.items()
        if stage.work and stage.kind != "vectors" and stage.in_(scheme)
    }


def options_under_layers(scheme: Scheme) -> list[tuple[str, str]]:
    """Return the options that change the inputs of linear layers in calibration."""
    keys = {key for stage in STAGES.values() if stage.before_layers for key in stage.options}
    return [option for option in scheme.options if option[0] in keys]

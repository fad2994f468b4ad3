"""What a stage does that changes a model, and undoes it; `scoring.stages` has those of a search."""

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
    from quantdrift.candidate.calibration.made import MadeLayers
    from quantdrift.models.bits import StoredBits
    from quantdrift.models.layers import LinearLayer
    from quantdrift.scheme import Scheme


class StagedModel(Protocol):
    """The model whose candidate a stage works on; `QuantizedPair` is one.

    Attributes:
        name: of the model, for messages.
        modules: the outermost torch modules.
        layers: the linear layers that are quantized.
        left_out: name to reason of the linear layers that are not.
        encoder: what runs the model.
        notes: what a run says of the model, one sentence each; a stage adds its own.
        made: the layers that were calibrated; None where none were.
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
        """A weight of the model, which tells device and number type."""

    @property
    def device(self) -> torch.device:
        """The device that the model runs on."""

    def under_layers(self) -> AbstractContextManager[None]:
        """Inside, the stages are in place that linear layers are calibrated with."""


class ModelStage:
    """A stage that changes a model beside the weights of its linear layers, for one candidate.

    Attributes:
        scheme: that has it.
        pair: the model whose candidate it changes; all of it but `made` is there in the constructor.
        reaches: paths of modules that it changes with others, beside those that it is about.
        batch_size: of the candidate, where it is another than the reference's.
    """

    reaches: Collection[str] = ()
    batch_size: int | None = None

    def __init__(self, scheme: Scheme, pair: StagedModel) -> None:
        """Find what it changes; raise UnsupportedError where there is nothing."""
        self.scheme, self.pair = scheme, pair

    def applied(self) -> AbstractContextManager[Any]:
        """Inside, the model is changed; on leaving it is as it was, bit for bit."""
        raise NotImplementedError

    def observed(self) -> AbstractContextManager[Any]:
        """Inside, forward passes of the reference are looked at for what it covers."""
        return nullcontext()

    def prepared(self, made: MadeLayers, *, root: Path | None, progress: Progress) -> MadeLayers:
        """Fit it to the sample that the layers were made on; return the layers as they are with it."""
        del root, progress
        return made

    def key(self) -> str | None:
        """Return what decides outputs beside the weights that are in place; None where these decide alone."""
        return str(self.scheme)

    def record(self) -> Mapping[str, Any]:
        """Describe the stage for "quantization" in run.json."""
        raise NotImplementedError

    def bits(self) -> Sequence[StoredBits]:
        """Parameters that take other bits than at full precision."""
        return ()


# --- the stages of one scheme's candidate --------------------------------------------------------------


def model_stages(scheme: Scheme, pair: StagedModel) -> dict[str, ModelStage]:
    """The stages that change the candidate's model, by name, in order."""
    return {
        name: stage.make(scheme, pair)
        for name, stage in STAGES.items()
        if stage.work and stage.kind != "vectors" and stage.in_(scheme)
    }


def options_under_layers(scheme: Scheme) -> list[tuple[str, str]]:
    """The options that change what linear layers are calibrated on."""
    keys = {key for stage in STAGES.values() if stage.under_layers for key in stage.options}
    return [option for option in scheme.options if option[0] in keys]

"""The inputs of the linear layers, rounded as the model runs: the A8 of W4A8."""

from collections.abc import Iterator, Mapping
from typing import Any

from quantdrift.base.text import some
from quantdrift.kinds.quantizer import QUANTIZERS, input_scale
from quantdrift.kinds.stage import Advice, Option, Stage
from quantdrift.scheme import Scheme

_SCALES = {"tensor": "one scale per layer", "token": "a scale for each token", "block": "a scale for each block"}


def _lines(activations: Mapping[str, Any]) -> Iterator[str]:
    covered = f"{activations['layers_covered']} of {activations['layers']} linear layers"
    missing = activations["not_covered"]
    scale = _SCALES[activations.get("scale", "tensor")]
    why = "which no text reaches or whose product with an input is not seen"
    only = f"; not of {some(missing)}, {why}, so activations are quantized only in part" if missing else ""
    grid = f" ({activations['format']})" if "format" in activations else ""
    yield f"inputs of {covered} at {activations['bits']} bits{grid}, {scale}{only}"


def _remedies(scheme: Scheme) -> Iterator[Scheme]:
    """A scale for each token, where there is one per layer."""
    one_scale = scheme.activation_bits is not None and input_scale(scheme) == "tensor"
    if one_scale and "token" in QUANTIZERS[scheme.quantizer].ranges:
        yield scheme.with_option("act", "token")


def _mend(scheme: Scheme) -> Advice:
    for finer in _remedies(scheme):
        return Advice(what="Give each token a scale of its own.", scheme=finer, command="run")
    return Advice(what="Leave the inputs of the layers at full precision.")


STAGE = Stage(
    what="inputs of the linear layers: W4A8",
    kind="layers",
    place=10,
    work="quantdrift.builtin.activations.work:Activations",
    is_present=lambda scheme: scheme.activation_bits is not None,
    absent_fields={"activation_bits": None},
    options={
        "act": Option(
            pattern="tensor|token",
            values="tensor (one scale, from calibration) or token (a scale for each token, as it runs)",
        )
    },
    depends_on_batch=lambda scheme: (
        scheme.activation_bits is not None and QUANTIZERS[scheme.quantizer].depends_on_batch
    ),
    calibrates=lambda scheme: scheme.activation_bits is not None and input_scale(scheme) == "tensor",
    remedies=_remedies,
    advice=_mend,
    record_key="activations",
    run_lines=_lines,
)

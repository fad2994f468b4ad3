"""How a pair was measured, as a run records it; it is kept without the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any

from quantdrift.engine.pair import QuantizedPair
from quantdrift.engine.run import describe_run, now
from quantdrift.engine.search import Settings
from quantdrift.evidence import Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What is known of a measurement beside its evidence, as JSON values.

    Attributes:
        spec: the pair, `MODEL@SCHEME`, or two systems, `REFERENCE vs CANDIDATE`.
        model: name of the reference.
        fingerprint: digest of the reference's weights; None where there are none of ours.
        layers: names of the layers that are quantized.
        never_reached: names of those that no observed forward pass used.
        bits: bits per weight of the candidate; None where they are not known.
        quantization: how the candidate was made; likewise.
        runtime: what decides scores beside weights and inputs.
        candidate_fingerprint: digest of the candidate; None if it was not taken.
        settings: how it was measured.
        reading: how scores were had.
        data: what is known of queries and documents.
        left_out: number of queries that layers were measured on.
        started: when, ISO 8601.
        seconds: time per stage.
    """

    spec: str
    model: str
    fingerprint: str | None = None
    layers: Sequence[str] = ()
    never_reached: Sequence[str] = ()
    bits: Mapping[str, Any] | None = None
    quantization: Mapping[str, Any] | None = None
    runtime: Mapping[str, str] = field(default_factory=dict)
    candidate_fingerprint: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    reading: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    left_out: int = 0
    started: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return asdict(self)


def made_by(pair: QuantizedPair, spec: object, fingerprint: str, *, settings: Settings, **known: Any) -> Made:
    """What is known of a measurement of a pair, whose candidate has been made.

    Args:
        pair: the weights, the reference's in place.
        spec: model and scheme.
        fingerprint: digest of the reference's weights.
        settings: how it was measured.
        known: other fields.
    """
    return Made(
        spec=str(spec),
        model=pair.name,
        fingerprint=fingerprint,
        layers=[layer.name for layer in pair.layers],
        never_reached=pair.never_reached,
        bits=pair.bits().to_json(),
        quantization=pair.describe(),
        runtime=pair.runtime,
        settings=asdict(settings),
        **known,
    )


def record_of(made: Made, evidence: Evidence, *, data: str) -> dict[str, Any]:
    """The record of a run: everything that run.json holds.

    Args:
        made: how it was measured.
        evidence: what came out.
        data: name of the data.
    """
    known = _Known(made, evidence)
    settings = Settings(**{**made.settings, "noise_floor": evidence.noise is not None})
    return describe_run(
        known,
        known,
        known,
        settings,
        model={},
        data={"name": data, "harness": "beir", "harness_version": version("beir"), **made.data},
        reading=made.reading,
        started=made.started or now(),
    )


class _Known:
    """What the record of a run asks of a pair, its name and its outcome, answered from notes."""

    query_only = needs_calibration = False

    def __init__(self, made: Made, evidence: Evidence) -> None:
        self.made, self.evidence = made, evidence
        self.model, self.layers = made.model, made.layers
        self.never_reached = list(made.never_reached)
        self.fingerprint: Any = made.fingerprint
        self.candidate_fingerprint: Any = made.candidate_fingerprint
        self.device: Any = None
        self.observed: Any = None
        self.candidate: Any = None
        self.runtime = dict(made.runtime)
        self.left_out, self.seconds = made.left_out, made.seconds

    def __str__(self) -> str:
        return self.made.spec

    def bits(self) -> Any:
        """Bits per weight."""
        return self

    def to_json(self) -> dict[str, Any]:
        """Bits per weight, as JSON values."""
        return dict(self.made.bits or {})

    def describe(self) -> dict[str, Any]:
        """How the candidate was made."""
        return dict(self.made.quantization or {})

"""The record of a run, run.json: how it was measured, and every default metric of it."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

from quantdrift.evidence import Evidence
from quantdrift.measurement.encoding import Settings
from quantdrift.measurement.pair import Pair, PairName
from quantdrift.metrics import measure

__all__ = ["Outcome", "describe_run", "now"]

_PACKAGES = (
    "quantdrift",
    "torch",
    "transformers",
    "sentence-transformers",
    "numpy",
    "mteb",
    "lm_eval",
)


class Outcome(Protocol):
    """What a measurement gave, as far as its record tells it."""

    @property
    def evidence(self) -> Evidence:
        """The per-input record."""
        ...

    @property
    def fingerprint(self) -> str:
        """Digest of the reference's weights."""
        ...

    @property
    def candidate_fingerprint(self) -> str | None:
        """Digest of the candidate; None if it was not taken."""
        ...

    @property
    def left_out(self) -> int:
        """Number of inputs that layers were measured on."""
        ...

    @property
    def seconds(self) -> Mapping[str, float]:
        """Time per stage."""
        ...


def describe_run(
    spec: PairName,
    pair: Pair,
    measured: Outcome,
    settings: Settings,
    *,
    model: Mapping[str, Any],
    data: Mapping[str, Any],
    started: str,
    similarity: str | None = None,
    reading: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The record of a run: everything that run.json holds.

    Args:
        spec: model and scheme.
        pair: the pair that was measured.
        measured: what came out.
        settings: how it was measured.
        model: what is known of where the model came from.
        data: what is known of the data.
        started: when, ISO 8601.
        similarity: how embeddings were compared, where they were.
        reading: how logits were had, where they were.
    """
    estimates = measure(measured.evidence)
    bits, made = pair.bits(), pair.describe()
    # what runs a model by itself, as some harnesses do, sees no embeddings and has no notes
    notes = [*data.get("warnings", ()), *getattr(measured, "notes", ()), *_on_what_is_ranked(made)]
    return {
        "spec": str(spec),
        "model": {
            "name": spec.model,
            **model,
            "fingerprint": measured.fingerprint,
            "candidate_fingerprint": measured.candidate_fingerprint,
            "layers_quantized": None if pair.layers is None else len(pair.layers),
            "layers_never_reached": pair.never_reached,
        },
        "bits_per_weight": None if bits is None else bits.to_json(),
        "quantization": made,
        "data": {
            **data,
            "inputs_left_out": measured.left_out,
            "warnings": list(dict.fromkeys(notes)),
        },
        "settings": {
            "k": settings.k,
            "batch_size": settings.batch_size,
            "noise_floor": settings.noise_floor,
            "seed": settings.seed,
            **({} if similarity is None else {"similarity": similarity}),
            **(reading or {}),
            **pair.runtime,
        },
        "versions": _versions(),
        "times": {"started": started, "finished": now(), "seconds": dict(measured.seconds)},
        "metrics": {name: estimate.to_json() for name, estimate in estimates.items()},
    }


def _on_what_is_ranked(made: Mapping[str, Any]) -> list[str]:
    """Whether the candidate was fitted to the very documents that it ranks."""
    calibration = made.get("calibration") or {}
    n = calibration.get("n_inputs")
    if calibration.get("source") != "corpus" or n != calibration.get("of"):
        return []
    return [
        f"calibrated on all {n:,} documents, the very ones that are ranked: on other documents the "
        "candidate may change more answers. +calib=N takes fewer, +calib=FILE other texts"
    ]


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def now() -> str:
    """The time, ISO 8601 in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")

"""One of each file that quantdrift writes, and how it is read."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from quantdrift.allocation.record import Allocation
from quantdrift.evidence.probe import LinearProbe
from quantdrift.evidence.record import Evidence, Noise
from quantdrift.gate.baseline import Baseline
from quantdrift.gate.judge import snapshot_for
from quantdrift.gate.rules import parse_rule
from quantdrift.gate.target import target_of_run
from quantdrift.runs.folder import EVIDENCE, PROBE, RECORD, read_run, write_run
from quantdrift.runs.identity import Identity
from quantdrift.trust.check import StabilityCheck
from quantdrift.trust.router import GapRouter
from support.allocations import allocation as allocation_of
from support.routing_samples import classified

__all__ = ["EVIDENCE", "PROBE", "RECORD", "Written", "write_all"]

N, CLASSES = 40, 4


def evidence(seed: int) -> Evidence:
    rng = np.random.default_rng(seed)
    reference = rng.normal(size=(N, CLASSES)).astype(np.float32)
    candidate = reference + rng.normal(size=(N, CLASSES)) * 0.4
    noise = Noise(flips=np.zeros(N, dtype=bool), epsilon=np.full(N, 1e-7, dtype=np.float32))
    return classified(reference, candidate, rng.integers(CLASSES, size=N), noise=noise)


def record(spec: str = "vit@W4-channel-rtn", *, classes: bool = True) -> dict[str, Any]:
    """With all that commands read; of labelled inputs, or of a search."""
    data = {"name": "corpus", "fingerprint": "texts", "split": "test", "warnings": ["a word"], "inputs_left_out": 0}
    settings: dict[str, Any] = {"k": CLASSES, "device": "cpu", "dtype": "torch.float32"}
    if classes:
        data |= {"kind": "classification", "inputs": "texts", "n_inputs": N, "n_classes": CLASSES}
        settings |= {"reading": "linear probe", "probe": {"digest": "probe", "C": 1.0}}
    else:
        data |= {"n_queries": N, "n_documents": CLASSES}
        settings |= {"similarity": "cosine"}
    weights = {"fingerprint": "weights", "candidate_fingerprint": "rounded", "layers_never_reached": ["pooler"]}
    allocation = {"widths": {"a": 3, "b": 4}, "criterion": "gap", "edited": False}
    return {
        "spec": spec,
        "model": {"name": "vit", **weights},
        "bits_per_weight": {"linear": 4.0, "linear_with_scales": 4.1, "all_parameters": 7.5},
        "quantization": {"quantizer": "rtn", "nominal_bits": 4, "allocation": allocation},
        "data": data,
        "settings": settings,
        "versions": {"python": "3.12"},
        "times": {"finished": "2026-11-22T16:45:00+00:00", "seconds": {"encode": 1.5}},
        "metrics": {"flip@1": {"value": 0.25, "low": 0.1, "high": 0.4, "n": N}},
    }


@dataclass(frozen=True)
class Written:
    """A file, and how what it holds is read: as plain values, for comparison."""

    file: Path
    content: Callable[[], Any]


def plain(whole: Any) -> Any:
    """Arrays as bytes: NaN is what it was, too."""
    if isinstance(whole, np.ndarray):
        return whole.tolist() if whole.dtype == object else (str(whole.dtype), whole.tobytes())
    if hasattr(whole, "__dataclass_fields__"):
        return {name: plain(getattr(whole, name)) for name in whole.__dataclass_fields__}
    return {k: plain(v) for k, v in whole.items()} if isinstance(whole, dict) else whole


def write_all(folder: Path) -> dict[str, Written]:
    """A run, another run of the same names beside it, and what can be made of it."""
    rng = np.random.default_rng(0)
    probe = LinearProbe(classes=tuple("abcd"), weight=rng.normal(size=(CLASSES, 8)), bias=rng.normal(size=CLASSES))
    run = write_run(folder / "run", evidence=evidence(0), record=record(), probe=probe)
    write_run(folder / "other", evidence=evidence(1), record=record(), probe=probe)
    check, router, baseline, allocation = (
        folder / f"{name}.json" for name in ("check", "router", "baseline", "allocation")
    )
    StabilityCheck.calibrate(run.evidence(), alpha=0.2, on=run.record).save(check)
    GapRouter(threshold=0.5, origin=Identity.of(run.record).brief()).save(router)
    rules = [parse_rule("flip@1 no worse by 0.03")]
    Baseline.of(snapshot_for(target_of_run(run), rules)).write(baseline)
    measured = {"dataset": "corpus", "data_digest": "texts", "input_ids": ("q1", "q2"), "settings": {"loss": "hinge"}}
    allocation_of({"a": 3, "b": 4}, budget=3.5, bound=0.6, quantizer="rtn", **measured).write(allocation)
    kept = read_run(run.path)
    return {
        RECORD: Written(run.path / RECORD, lambda: read_run(run.path).record),
        EVIDENCE: Written(run.path / EVIDENCE, lambda: plain(kept.evidence())),
        PROBE: Written(run.path / PROBE, lambda: plain(kept.probe())),
        "check": Written(check, lambda: StabilityCheck.load(check)),
        "router": Written(router, lambda: GapRouter.load(router)),
        "baseline": Written(baseline, lambda: plain(Baseline.read(baseline).snapshot())),
        "allocation": Written(allocation, lambda: Allocation.read(allocation)),
    }

"""What a run says of how its candidate was made, in a few lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from quantdrift.spec import FULL_BITS

_SHOWN = 4
FEW_TOKENS = 10_000
"""Tokens of a layer below which second moments of a few hundred inputs are mostly noise."""


def quantization_lines(record: Mapping[str, Any]) -> list[str]:
    """Library, widths, calibration, quantized activations, and what the scheme could not do.

    Args:
        record: the content of run.json.
    """
    made: Mapping[str, Any] = record.get("quantization", {})
    lines = []
    if "version" in made:
        grid = f", grid: {made['grid']}" if "grid" in made else ""
        lines.append(f"{made['quantizer']} by {made['backend']} {made['version']}{grid}")
    if allocation := made.get("allocation"):
        lines.append(_widths(allocation))
    data = record.get("data", {})
    if left_out := data.get("inputs_left_out"):
        what = "queries" if "n_queries" in data else "inputs"
        rest = data[f"n_{what}"] - left_out
        lines.append(
            f"{left_out:,} {what} that layers were measured on are left out: every figure is over the other {rest:,}"
        )
    if calibration := made.get("calibration"):
        lines.append(_calibration(calibration, made, str(data.get("inputs", "texts"))))
        tokens = max((layer.get("n_tokens") or 0 for layer in made["layers"]), default=0)
        if 0 < tokens < FEW_TOKENS:
            lines.append(
                f"few tokens to calibrate on: {tokens:,} at most in a layer, where some tens of "
                "thousands are usual; give more documents (+calib=N) or texts (+calib=FILE)"
            )
    if activations := made.get("activations"):
        covered, total = activations["layers_covered"], activations["layers"]
        line = f"inputs of {covered} of {total} linear layers at {activations['bits']} bits"
        if missing := activations["not_covered"]:
            line += f"; not of {_some(missing)}, so activations are quantized only in part"
        lines.append(line)
    by_reason: dict[str, list[str]] = {}
    for name, reason in made.get("fallbacks", {}).items():
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        lines.append(f"rounded to nearest, {reason}: {_some(names)}")
    if left_out := made.get("layers_left_out"):
        lines.append(f"left at full precision: {_some(left_out)}")
    if unreached := record["model"].get("layers_never_reached"):
        lines.append(f"unused layer (does not affect embeddings): {_some(unreached)}")
    return lines


def _widths(allocation: Mapping[str, Any]) -> str:
    counts = sorted(Counter(allocation["widths"].values()).items())
    parts = [f"at {width}" for width, _ in counts if width != FULL_BITS]
    parts[-1:] = [f"{part} bits" for part in parts[-1:]]
    parts += ["not quantized" for width, _ in counts if width == FULL_BITS]
    numbers = [str(n) for _, n in counts]
    numbers[0] += " layer" if numbers[0] == "1" else " layers"
    shown = ", ".join(f"{n} {part}" for n, part in zip(numbers, parts, strict=True))
    bits, n = allocation["bits_per_weight"], allocation["calibration_inputs"]
    average = "" if bits is None else f"{bits:.2f} bits per weight: "
    how = "changed by hand after" if allocation["edited"] else "by"
    source = f" on {n:,} inputs of {allocation['dataset'] or 'the data'}" if n else ""
    return f"{average}{shown}, {how} {allocation['criterion']}{source}"


def _calibration(calibration: Mapping[str, Any], made: Mapping[str, Any], called: str) -> str:
    n, wanted = calibration["n_inputs"], calibration.get("wanted", 0)
    what, draw = f"{n:,} of {calibration['of']:,} documents", f"seed {calibration['seed']}"
    if calibration["source"] != "corpus":
        part = f"{n:,} of {calibration['of']:,}" if n < calibration["of"] else f"{n:,}"
        what = f"{part} {called} of {calibration['source']}"
    elif n < wanted:
        what, draw = f"all {n:,} documents", f"{wanted:,} were wanted"
    line = f"calibrated on {what} ({draw})"
    if made["layers_kept_from_before"] == len(made["layers"]):
        return f"{line}, kept from an earlier run"
    seconds, in_method = made["seconds"], made["seconds_in_method"]
    return f"{line} in {seconds:.0f} s, of which the method took {in_method:.0f}"


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more

"""What a run says of how its candidate was made, in a few lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["quantization_lines"]

_SHOWN = 4


def quantization_lines(record: Mapping[str, Any]) -> list[str]:
    """Library, calibration, quantized activations, and what the scheme could not do.

    Args:
        record: the content of run.json.
    """
    made: Mapping[str, Any] = record.get("quantization", {})
    lines = []
    if "version" in made:
        grid = f", {made['grid']} grid" if "grid" in made else ""
        lines.append(f"{made['quantizer']} by {made['backend']} {made['version']}{grid}")
    if calibration := made.get("calibration"):
        lines.append(_calibration(calibration, made))
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
        lines.append(f"never reached, so without effect: {_some(unreached)}")
    return lines


def _calibration(calibration: Mapping[str, Any], made: Mapping[str, Any]) -> str:
    what = f"{calibration['n_inputs']:,} of {calibration['of']:,} documents"
    if calibration["source"] != "corpus":
        what = f"{calibration['n_inputs']:,} texts of {calibration['source']}"
    line = f"calibrated on {what} (seed {calibration['seed']})"
    if made["layers_kept_from_before"] == len(made["layers"]):
        return f"{line}, kept from an earlier run"
    seconds, in_method = made["seconds"], made["seconds_in_method"]
    return f"{line} in {seconds:.0f} s, of which the method took {in_method:.0f}"


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more

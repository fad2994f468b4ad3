"""Tuning of what costs no bit: scales, biases, norms, and which codes, so that the reference's scores come back."""

from collections.abc import Iterator, Mapping
from typing import Any

from quantdrift.kinds.stage import Option, Stage
from quantdrift.scheme import FULL_BITS, Scheme

STEPS = "36"
"""Of Adam, where nothing else is said: some two and a half times the time of GPTQ."""


def _check(scheme: Scheme) -> str | None:
    if scheme.weight_bits == FULL_BITS:
        return "+tuned makes good what rounding of weights has changed, and none are rounded; leave it out"
    if scheme.activation_bits is not None:
        return f"+tuned has no gradient through rounded inputs of layers; leave A{scheme.activation_bits} or +tuned out"
    return None


def _lines(tuned: Mapping[str, Any]) -> Iterator[str]:
    before, after = tuned["loss_before"], tuned["loss_after"]
    on = f"loss on {tuned['held_out']} held-out {tuned['what']}"
    if tuned["best_step"]:
        how = f"{tuned['best_step']} steps: {on} {before:.3g}, then {after:.3g}"
        codes = f", {tuned['codes_moved']:,} of {tuned['codes']:,} codes moved" if tuned["codes"] else ""
        yield f"{tuned['scales']:,} scales and {tuned['others']:,} biases and norms tuned{codes}, {how}"
    else:
        yield f"tuning made it worse and was undone: {on} {before:.3g}, and never less in {tuned['steps_taken']} steps"


STAGE = Stage(
    what="scales, biases, norms and, in long runs, codes, tuned",
    kind="model",
    place=15,
    work="quantdrift.builtin.tuned.work:Tuned",
    options={"tuned": Option(pattern="[1-9][0-9]{0,4}", values="the number of steps, 1 or more", bare_value=STEPS)},
    check=_check,
    in_waterfall=False,
    calibrates=lambda scheme: scheme.option("tuned") is not None and scheme.weight_bits != FULL_BITS,
    passes=lambda scheme, *_: 4 * 64 * int(scheme.option("tuned") or 0),  # both arms, one with a backward pass
    memory=lambda _, n_weights: 8.0 * n_weights,
    repair_options=({"tuned": STEPS},),
    slow_repair_options=({"tuned": "240"},),
    can_save=True,
    record_key="tuned",
    run_lines=_lines,
)

"""Judged runs made by hand, for what tells of them."""

from dataclasses import replace
from typing import Any

from quantdrift.gate.judge import verdict_of
from quantdrift.gate.result import Earlier, GateResult, Judgement, Verdict, Worst
from quantdrift.gate.rules import parse_rule
from quantdrift.statistics.estimates import Estimate

NASTY = (
    "a|b `code` a\\|b $`x`$ $x$",
    "<script>alert(1)</script></details><h1>pass</h1> &lt;b&gt;",
    "[pass](http://evil.example) http://evil.example www.evil.example",
    "someone@evil.example @someone #1 :tada: **bold** _it_ ~~no~~",
    "line\n\n# heading\n\n| a |\n|---|",
    "\x1b[31mred\x00 \u202egnp.exe half \ud800 pair \uffff",
    "",
    "x" * 500,
)
"""What a name of an input could try."""


def judgement(rule: str, outcome: Verdict = "pass", reason: str = "fine", **more: Any) -> Judgement:
    return Judgement(rule=parse_rule(rule), outcome=outcome, reason=reason, **more)


WORSE = judgement(
    "flip@1 no worse by 0.03",
    "fail",
    "shown to be worse",
    n=1509,
    now=Estimate(value=0.244, low=0.2231, high=0.2664, n=1509),
    before=0.2,
    difference=Estimate(value=0.044, low=0.021, high=0.0678, n=1509),
    worse=100,
    better=34,
    set_aside=3,
    p_worse=0.0001,
    p_worse_holm=0.0003,
    p_no_worse=0.9,
    needed=1201,
)
FEW = judgement(
    "ndcg@10 no worse by 0.03",
    "underpowered",
    "too few inputs to tell: 225, and it takes about 640",
    n=225,
    now=Estimate(value=0.3912, low=0.36, high=0.42, n=225),
    before=0.4,
    difference=Estimate(value=-0.0088, low=-0.03, high=0.0123, n=225),
    worse=40,
    better=30,
    p_worse=0.2,
    p_worse_holm=0.4,
    p_no_worse=0.08,
    needed=640,
)
LIMIT = judgement("flip@1 <= 0.25", "pass", "within the limit", n=1509, now=WORSE.now)
BROKEN = replace(LIMIT, rule=parse_rule("flip@1 <= 0.2"), outcome="fail", reason="above the limit")
UNDEFINED = judgement("noise_floor <= 0.05", "error", "undefined: none there")
OTHER = judgement("flip@1 no worse by 0.03", "incomparable", "not of the same, see below")


WORST = Worst(
    input_id="q7",
    before="d1",
    after="d9",
    rank_before=4,
    rank_after=3,
    was_right=True,
    is_right=False,
    gap=0.01234,
    new=True,
)


def result(*judgements: Judgement, **changes: Any) -> GateResult:
    """A run of 1,509 inputs of which 312 changed; its verdict by its rules."""
    plain = GateResult(
        verdict=verdict_of([judgement.outcome for judgement in judgements]),
        spec="minilm@W4-rtn",
        data="cranfield (test)",
        n_inputs=1509,
        rules=judgements,
        n_changed=312,
    )
    return replace(plain, **changes)


def nasty(name: str, n: int) -> GateResult:
    """A run in which everything that comes from outside is that name."""
    return result(
        replace(WORSE, rule=replace(WORSE.rule, on=name), reason=f"shown {name} to be worse"),
        judgement("flip@1 no worse by 0.03", "incomparable", f"no {name}"),
        spec=name,
        data=name,
        baseline=Earlier(spec=f"{name} of then"),
        differs=(f"setting {name}: {name} in the baseline, {name} now", name),
        notes=(name, f"{name} differs"),
        worst=(replace(WORST, input_id=name, before=name, after=name, part=name),) * n,
    )

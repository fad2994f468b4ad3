"""The gate: a finished run against rules and a committed baseline, ending in a verdict.

`target` is what is judged, `rule` what is asked of it, `baseline` what it is compared with, and
`judge` brings them together. Nothing here needs torch or a harness.
"""

from __future__ import annotations

from quantdrift.gate.baseline import Snapshot, read_baseline, write_baseline
from quantdrift.gate.judge import GateResult, Judgement, Verdict, gate
from quantdrift.gate.rules import Rule, RuleError, parse_rule
from quantdrift.gate.target import Target, target_of_diff, target_of_run

__all__ = [
    "GateResult",
    "Judgement",
    "Rule",
    "RuleError",
    "Snapshot",
    "Target",
    "Verdict",
    "gate",
    "parse_rule",
    "read_baseline",
    "target_of_diff",
    "target_of_run",
    "write_baseline",
]

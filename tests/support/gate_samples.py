"""Targets, snapshots and pairs of them, made by hand, for the tests of the gate."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.evidence.record import Evidence, Noise
from quantdrift.gate.baseline import Snapshot
from quantdrift.gate.judge import Matched, decide, judge_change
from quantdrift.gate.result import ALPHA, Judgement
from quantdrift.gate.rules import Rule, parse_rule
from quantdrift.gate.target import Part, Target
from quantdrift.runs.identity import Identity
from support.comparison_samples import COMPUTED, evidence_of, flipped, scores

Values = NDArray[np.float64]

IDENTITY = Identity(
    spec="minilm@W4-g64-rtn",
    model="minilm",
    model_fingerprint="reference weights",
    candidate_fingerprint="candidate weights",
    data="corpus (test)",
    data_fingerprint="texts",
    settings=COMPUTED,
)


def rules(*texts: str) -> list[Rule]:
    return [parse_rule(text) for text in texts]


def ones(n: int, places: Iterable[int]) -> Values:
    """0.0 and 1.0 by input."""
    flags = np.zeros(n)
    flags[list(places)] = 1
    return flags


def snapshot(values: Mapping[str, Values], *, answers: Sequence[str] | None = None, **identity: Any) -> Snapshot:
    n = len(next(iter(values.values())))
    return Snapshot(
        identity=replace(IDENTITY, **identity),
        input_ids=tuple(f"q{row}" for row in range(n)),
        answers=("-",) * n if answers is None else tuple(answers),
        values=values,
    )


def pair(before: Mapping[str, Values], now: Mapping[str, Values]) -> Matched:
    """Of the same inputs, row by row."""
    return Matched(now=snapshot(now), before=snapshot(before))


def judge_changes(rules: Sequence[Rule], matched: Matched, *, alpha: float = ALPHA) -> list[Judgement]:
    """What comparisons of all inputs come to that are paired already, adjusted over the rules."""
    return decide([judge_change(rule, matched, None, alpha=alpha) for rule in rules], alpha=alpha)


def judged(rule: str, before: Values, now: Values, *, alpha: float = ALPHA) -> Judgement:
    """One rule, on outcomes of its own metric."""
    (parsed,) = rules(rule)
    name = str(parsed.metric)
    (judgement,) = judge_changes([parsed], pair({name: before}, {name: now}), alpha=alpha)
    return judgement


def reference(n: int = 60) -> Values:
    """Scores of n inputs and 12 items."""
    return np.tile(scores(), (-(-n // 60), 1))[:n]


def evidence(flips: Iterable[int] = (), *, n: int = 60, noise: Iterable[int] | None = None, **asked: Any) -> Evidence:
    """Ranks 1 and 2 change places on some inputs; the reference's first item is the relevant one.

    So a flip loses the relevant document from the first place and from no other, and nDCG@10 of
    that input falls from 1 to 1 / log2(3).
    """
    of_reference = reference(n)
    changed = ones(n, flips)[:, np.newaxis] == 1
    candidate = np.where(changed, flipped(of_reference, range(n)), of_reference)
    made = evidence_of(of_reference, candidate, **asked)
    if noise is None:
        return made
    flags = ones(n, noise).astype(np.bool_)
    return replace(made, noise=Noise(flips=flags, epsilon=np.zeros(n, dtype=np.float32)))


def target(evidence: Evidence, **identity: Any) -> Target:
    return Target(identity=replace(IDENTITY, **identity), parts=(Part(name="", evidence=evidence),))

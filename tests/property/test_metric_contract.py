"""What every metric must satisfy, in a table: a family that is not listed fails.

The table says how a metric answers to a change that should not matter.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantdrift.evidence.record import Evidence, Noise
from quantdrift.metrics import FAMILIES, Metric, default_metrics, measure, parse_metric
from support.metric_samples import names
from support.small_evidence import evidence_of

# --- cases: scores, labels, a noise floor; changed one by one -------------------------------------


@dataclass(frozen=True, kw_only=True)
class Case:
    """Whole-number scores [n_inputs, n_items], labels and a noise floor."""

    reference: Any
    candidate: Any
    qrels: dict[str, dict[str, int]]
    noisy: Any

    def evidence(self, *, input_ids: list[str] | None = None, **changed: Any) -> Evidence:
        case = replace(self, **changed)
        n_inputs, n_items = case.reference.shape
        noise = Noise(flips=case.noisy, epsilon=np.zeros(n_inputs, dtype=np.float32))
        named: Any = {"item_ids": names(n_items), "input_ids": input_ids, "qrels": case.qrels, "noise": noise}
        return evidence_of(case.reference, case.candidate, k=20, **named)


@st.composite
def cases(draw: st.DrawFn, *, ties: bool = True) -> Case:
    n_inputs, n_items = draw(st.integers(1, 6)), draw(st.integers(1, 14))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    spread = draw(st.sampled_from([1, 3, 12]))
    reference = np.array([rng.permutation(n_items) for _ in range(n_inputs)], dtype=float) * 4
    if ties and draw(st.booleans()):
        reference = rng.integers(0, 5, reference.shape) * 4.0
    candidate = reference + rng.integers(-2 * spread, 2 * spread + 1, reference.shape)
    if not ties:
        candidate = np.argsort(np.argsort(candidate, axis=1), axis=1) * 4.0 + 1
    judged = rng.integers(-1, 4, reference.shape)
    shown = rng.random(reference.shape) < 0.4
    qrels = {
        f"q{row}": {f"d{item}": int(judged[row, item]) for item in np.flatnonzero(shown[row])}
        for row in range(n_inputs)
    }
    return Case(reference=reference, candidate=candidate, qrels=qrels, noisy=rng.random(n_inputs) < 0.3)


# --- the table ------------------------------------------------------------------------------------

EQUAL, NONE = "equal arms", "undefined"


@dataclass(frozen=True, kw_only=True)
class Contract:
    """How a family answers.

    identity: its value where both arms are the same; EQUAL: that of the reference; NONE: no value.
    shift: the same after a constant is added to all candidate scores.
    monotone: the same after a strictly increasing map of each arm's scores.
    affine: after the same positive affine map of both arms: the same, or multiplied by the factor.
    """

    identity: float | Literal["equal arms", "undefined"]
    shift: bool = True
    monotone: bool = True
    affine: Literal["same", "scales"] = "same"


RANKS = Contract(identity=0)
SHARE_OF_FLIPS = Contract(identity=NONE)
RATIO = Contract(identity=math.inf, shift=False, monotone=False)
GAP = Contract(identity=EQUAL, monotone=False, affine="scales")

ALIKE = {
    RANKS: ("flip", "flip_least", "gold_lost", "gold_gained", "harm", "benefit"),
    SHARE_OF_FLIPS: (
        *("interchangeable", "flip_to_runner_up", "new_top_rank"),  # the noise of the cases is 0: exact ties alone
        *("flip_to_irrelevant", "flip_among_relevant", "flip_to_relevant", "flip_among_unjudged"),
    ),
    Contract(identity=EQUAL): (
        *("ndcg", "recall", "mrr", "accuracy", "served_relevance"),
        *("noise_floor", "tied", "flip_expected", "flip_most"),  # a model against itself flips too, where it ties
    ),
    RATIO: ("separation", "separation_quantile", "cut_separation"),
    GAP: ("gap", "candidate_gap"),
    Contract(identity=1): ("set_kept", "rbo", "overlap", "tau_b"),
    Contract(identity=0, shift=False, monotone=False): ("at_risk", "contenders"),
    Contract(identity=1, shift=False, monotone=False): ("stable",),
    Contract(identity=0, shift=False, monotone=False, affine="scales"): ("epsilon",),
    Contract(identity=0, monotone=False, affine="scales"): ("S",),
    Contract(identity=1, monotone=False): ("accepted", "coverage"),
    Contract(identity=0, monotone=False): ("accepted_changed", "violation", "joint_violation"),
}
CONTRACTS = {name: contract for contract, alike in ALIKE.items() for name in alike}
METRICS = [
    *default_metrics(),
    *map(parse_metric, ("relative.ndcg@3", "gold_lost@2", "flip@1:separation=0.05..1", "harm:contenders=1..")),
    # the cases are small; here one calibration input is enough
    *map(parse_metric, ("coverage@0.5", "violation@0.5", "joint_violation@0.6")),
]


def contract(metric: Metric) -> Contract:
    plain = CONTRACTS[metric.family.name]
    if metric.arm in {"change", "relative"}:
        return Contract(identity=0, shift=plain.shift, monotone=plain.monotone, affine=plain.affine)
    if metric.where is not None:  # who is in the slice is decided by the separation
        return Contract(identity=NONE, shift=False, monotone=False)
    return plain


def test_every_family_has_a_contract() -> None:
    assert set(CONTRACTS) == set(FAMILIES)


EACH = [metric for metric in METRICS if metric.arm != "relative"]
"""Those that have a value for every input; a relative change is one of means."""


@given(cases())
def test_identity(case: Case) -> None:
    """A model against itself."""
    same = case.evidence(candidate=case.reference)
    for metric in EACH:
        values = metric.per_input(same)
        wanted = contract(metric).identity
        if wanted == EQUAL and metric.family.arms:
            other = Metric(family=metric.family, cutoff=metric.cutoff, arm="reference")
            np.testing.assert_array_equal(values, other.per_input(same), str(metric))
        elif wanted == NONE:
            assert np.isnan(values).all(), metric
        elif wanted != EQUAL:
            defined = values[~np.isnan(values)]
            np.testing.assert_allclose(defined, wanted, rtol=1e-12, err_msg=str(metric))
        if metric.direction == "lower" and wanted not in {NONE, EQUAL}:
            assert wanted == metric.low  # no damage


def the_same(metric: Metric, first: Evidence, second: Evidence) -> bool:
    return np.array_equal(metric.per_input(first), metric.per_input(second), equal_nan=True)


@given(cases(), st.integers(-300, 300))
def test_a_common_shift_of_all_candidate_scores(case: Case, shift: int) -> None:
    plain, shifted = case.evidence(), case.evidence(candidate=case.candidate + shift)
    for metric in EACH:
        assert the_same(metric, plain, shifted) or not contract(metric).shift, metric


@given(cases())
def test_a_monotone_map_of_either_arm(case: Case) -> None:
    """Either arm's scores through a map of its own, strictly increasing and exact."""
    plain = case.evidence()
    other = case.evidence(reference=np.exp2(case.reference / 4), candidate=case.candidate**3)
    for metric in EACH:
        assert the_same(metric, plain, other) or not contract(metric).monotone, metric


@given(cases(), st.integers(-6, 6), st.sampled_from([1, 3, 5]), st.integers(-20, 20))
def test_scores_in_another_unit(case: Case, power: int, factor: int, shift: int) -> None:
    scale = factor * 2.0**power
    plain = case.evidence()
    other = case.evidence(reference=scale * (case.reference + shift), candidate=scale * (case.candidate + shift))
    for metric in EACH:
        wanted = metric.per_input(plain) * (scale if contract(metric).affine == "scales" else 1)
        values = metric.per_input(other)
        np.testing.assert_allclose(values, wanted, rtol=1e-12, err_msg=str(metric))


@given(cases(ties=False), st.integers(0, 2**32))
def test_the_order_of_items(case: Case, seed: int) -> None:
    """Without ties, for these break by position."""
    order = np.random.default_rng(seed).permutation(case.reference.shape[1])
    place = {f"d{old}": f"d{new}" for new, old in enumerate(order.tolist())}
    moved = case.evidence(
        reference=case.reference[:, order],
        candidate=case.candidate[:, order],
        qrels={query: {place[item]: grade for item, grade in labels.items()} for query, labels in case.qrels.items()},
    )
    plain = case.evidence()
    for metric in EACH:
        values, wanted = metric.per_input(moved), metric.per_input(plain)
        np.testing.assert_allclose(values, wanted, rtol=1e-12, err_msg=str(metric))


@settings(deadline=None, max_examples=8)
@given(cases(), st.integers(0, 2**32))
def test_the_order_of_inputs(case: Case, seed: int) -> None:
    """Values and intervals, up to rounding: sums may be taken in another order."""
    order = np.random.default_rng(seed).permutation(len(case.reference))
    moved = case.evidence(
        reference=case.reference[order],
        candidate=case.candidate[order],
        noisy=case.noisy[order],
        input_ids=[f"q{row}" for row in order.tolist()],
    )
    plain = measure(case.evidence(), METRICS)
    for name, estimate in measure(moved, METRICS).items():
        wanted = plain[name]
        assert (estimate.n, estimate.reason) == (wanted.n, wanted.reason), name
        for part in ("value", "low", "high"):
            got, expected = getattr(estimate, part), getattr(wanted, part)
            close = None if expected is None else pytest.approx(expected, rel=1e-12, abs=1e-12)
            assert got == close, name


@settings(deadline=None, max_examples=8)
@given(cases(), st.data())
def test_a_part_of_the_inputs_is_as_if_the_others_had_never_been_there(case: Case, data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, len(case.reference) - 1), min_size=1, unique=True))
    fields = {name: getattr(case, name)[rows] for name in ("reference", "candidate", "noisy")}
    alone = case.evidence(**fields, input_ids=[f"q{row}" for row in rows])
    assert measure(case.evidence().part(np.array(rows)), METRICS) == measure(alone, METRICS)


@settings(deadline=None, max_examples=8)
@given(cases())
def test_values_lie_in_the_stated_range(case: Case) -> None:
    evidence = case.evidence()
    for metric in METRICS:
        within = (metric.low - 1e-12, metric.high + 1e-12)
        if metric in EACH:
            values = metric.per_input(evidence)
            values = values[~np.isnan(values)]
            assert ((values >= within[0]) & (values <= within[1])).all(), metric
            assert metric.uncertainty != "wilson" or set(values.tolist()) <= {0.0, 1.0}, metric
        estimate = metric(evidence)
        if estimate.value is not None:
            assert within[0] <= estimate.value <= within[1], metric
            if estimate.low is not None and estimate.high is not None:
                assert estimate.low - 1e-12 <= estimate.value <= estimate.high + 1e-12, metric

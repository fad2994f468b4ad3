"""Ways to repair a model, and which deployment is best, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from quantdrift.base.errors import UnsupportedError
from quantdrift.features.repair import choice
from quantdrift.features.repair.choice import Deployment
from quantdrift.spec.grammar import parse_scheme
from support.routing_samples import classified, searched

BITS = {"linear_with_scales": 4.125, "all_parameters": 18.8}

# the first is kept; of the others the reference's first item is 2nd and 3rd; candidate gaps 0.4, 0.25, 0.1
BEFORE = [[0.9, 0.5, 0.4], [0.9, 0.5, 0.4], [0.9, 0.5, 0.4]]
AFTER = [[0.9, 0.5, 0.4], [0.5, 0.75, 0.4], [0.3, 0.5, 0.4]]


def deployment(rate: float, *, bits: float = 4.125, size: float = 18.0, vector: int = 32) -> Deployment:
    return Deployment(
        scheme=parse_scheme("W4"),
        run="run",
        bits=bits,
        all_bits=size,
        vector_bits=vector,
        changed=np.arange(1000) < round(1000 * rate),
    )


@pytest.mark.parametrize(
    ("scheme", "problem"),
    [
        ("fp+emb=int8", "it quantizes no weights"),
        ("W16A8", "it quantizes no weights"),
        ("W3.5+gap", "its bits are chosen by layer already"),
        ("W4+query", "is one of the configurations"),
    ],
)
def test_what_is_no_plain_scheme_is_refused(scheme: str, problem: str) -> None:
    with pytest.raises(UnsupportedError, match=problem):
        choice.check_plain(parse_scheme(scheme))


@pytest.mark.parametrize(
    ("schemes", "expected"),
    [
        (choice.uniform_configurations(parse_scheme("W4-g64"), ["hqq", "rtn"]), ["W4-g64-rtn", "W4-g64-hqq"]),
        (  # options of a quantizer stay with it
            choice.uniform_configurations(parse_scheme("W4-g32-gptq+grid=library+seed=1"), ["gptq", "rtn"]),
            ["W4-g32-gptq+grid=library+seed=1", "W4-g32-rtn+seed=1"],
        ),
        (  # what a stage has already is not written twice
            choice.staged_configurations(parse_scheme("W4+tuned=9"), "model", thorough=True),
            [f"W4-g128-rtn+{more}" for more in ("tuned=36", "tuned=240", "table=8+tuned=9")],
        ),
        (choice.staged_configurations(parse_scheme("W4"), "vectors", thorough=False), ["W4-g128-rtn+emb=int8"]),
        (choice.finer_configurations(parse_scheme("W4-g64")), ["W4-g32-rtn"]),
        (choice.finer_configurations(parse_scheme("W4-channel")), ["W4-g64-rtn", "W4-g32-rtn"]),
        (choice.finer_configurations(parse_scheme("W4-g32")), []),
        (  # widths lie around the budget
            [choice.allocated_configuration(parse_scheme("W4-gptq+seed=1"), 4.125)],
            ["W4.125-g128-gptq+gap+seed=1+widths=2,3,4,5,6,8"],
        ),
        ([choice.allocated_configuration(parse_scheme("W4"), bits) for bits in (1.9, 8.0)], ["None"] * 2),
    ],
)
def test_what_is_tried(schemes: list[object], expected: list[str]) -> None:
    assert list(map(str, schemes)) == expected


def test_a_deployment_is_what_its_run_says_and_classes_have_no_embeddings() -> None:
    searching = choice.deployment_of(parse_scheme("W4+emb=int8"), searched(BEFORE, AFTER), BITS, "run")
    assert (searching.rate, searching.bits, searching.vector_bits) == (pytest.approx(2 / 3), 4.125, 8)
    evidence = classified([[2.0, 0.0], [1.0, 0.0]], [[2.0, 0.0], [0.0, 0.1]])
    reading = choice.deployment_of(parse_scheme("W4"), evidence, BITS, "run")
    assert (reading.rate, reading.vector_bits) == (0.5, 0)


def test_the_front_keeps_what_nothing_beats() -> None:
    candidates = [deployment(0.5), deployment(0.4), deployment(0.4, size=10.0), deployment(0.6, vector=8)]
    assert choice.front(candidates) == [False, False, True, True]


def test_the_best_is_within_bits() -> None:
    plain, finer, wide = deployment(0.5), deployment(0.3, bits=4.25), deployment(0.2, bits=4.5)
    candidates = [plain, finer, wide]
    assert choice.best(candidates, 4.25) is finer
    assert choice.best(candidates, 4.125) is plain
    against = choice.against_plain(candidates)
    assert against[0].difference is None
    assert [other.difference and other.difference.value for other in against[1:]] == pytest.approx([-0.2, -0.3])


def test_the_rate_of_what_was_chosen_is_of_inputs_that_the_choice_did_not_see() -> None:
    """Seven equal ways at a true 10 %, half of whose changes they share: the least of seven is 2 points too low."""
    rng = np.random.default_rng(0)
    n, rate, chosen, confirmed, covered = 300, 0.1, [], [], []
    for seed in range(400):
        common = rng.random(n) < rate / 2
        ways = [common | (rng.random(n) < (rate / 2) / (1 - rate / 2)) for _ in range(7)]
        candidates = [replace(deployment(0.0), changed=way) for way in ways]
        found = choice.chosen_apart(candidates, 4.125, seed=seed)
        chosen.append(found.chosen.rate)
        confirmed.append(found.confirmed.rate)
        flips = found.confirmed.flips
        covered.append(flips.low <= rate <= flips.high)  # type: ignore[operator]  # of many inputs
    assert np.mean(chosen) < 0.085
    assert np.mean(confirmed) == pytest.approx(rate, abs=0.003)
    assert 0.92 < np.mean(covered) < 0.98
    assert found.plain.flips.n + found.deployments[0].flips.n == n

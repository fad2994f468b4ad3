"""Ways to repair a model, and which deployment is best, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from quantdrift.base.errors import UnsupportedError
from quantdrift.features.repair import choice
from quantdrift.features.repair.choice import Deployment, Goals
from quantdrift.spec.grammar import parse_scheme
from support.routing_samples import classified, searched

GOALS = Goals(speed_up=4.0)
BITS = {"linear_with_scales": 4.125, "all_parameters": 18.8}

# the first is kept; of the others the reference's first item is 2nd and 3rd; candidate gaps 0.4, 0.25, 0.1
BEFORE = [[0.9, 0.5, 0.4], [0.9, 0.5, 0.4], [0.9, 0.5, 0.4]]
AFTER = [[0.9, 0.5, 0.4], [0.5, 0.75, 0.4], [0.3, 0.5, 0.4]]


def deployment(
    rate: float, *, bits: float = 4.125, size: float = 18.0, cost: float = 1.0, vector: int = 32
) -> Deployment:
    return Deployment(
        scheme=parse_scheme("W4"),
        run="run",
        bits=bits,
        all_bits=size,
        vector_bits=vector,
        cost=cost,
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


def test_a_second_look_gives_back_what_is_unsure_and_near() -> None:
    scheme, evidence = parse_scheme("W4"), searched(BEFORE, AFTER)
    alone, *again = choice.deployments(scheme, evidence, BITS, "run", GOALS)
    assert (alone.rate, alone.looked, alone.cost, alone.vector_bits) == (pytest.approx(2 / 3), 0.0, 1.0, 32)
    # half of three is between two: the least sure is below, and it comes back
    assert [(other.looked, other.rate) for other in again[-1:]] == [(pytest.approx(1 / 3), pytest.approx(1 / 3))]
    # 1.9 times the time: a share of 0.225 may be asked again, and the least sure of three is a third
    (limited,) = [*choice.deployments(scheme, evidence, BITS, "run", replace(GOALS, latency=3.0))][1:]
    assert (limited.looked, limited.cost) == (pytest.approx(1 / 3), pytest.approx(1 + 4 / 3))
    assert limited.changed.tolist() == [False, True, False]
    assert len([*choice.deployments(scheme, evidence, BITS, "run", replace(GOALS, latency=1.0))]) == 1
    # a limit lets as many be rescored as fit into it, of any number of inputs
    rng = np.random.default_rng(0)
    for n in range(20, 60):
        some = searched(rng.random((n, 3)), rng.random((n, 3)))
        _, way = choice.deployments(scheme, some, BITS, "run", replace(GOALS, latency=1.5))
        assert 1.5 - GOALS.speed_up / n < way.cost <= 1.5
    # with documents at full precision, to ask again is to search at full precision
    assert len([*choice.deployments(parse_scheme("W4+query"), evidence, BITS, "run", GOALS)]) == 1


def test_classes_have_no_embeddings_and_a_routed_answer_is_the_references() -> None:
    evidence = classified([[2.0, 0.0], [1.0, 0.0]], [[2.0, 0.0], [0.0, 0.1]])
    alone, *again = choice.deployments(parse_scheme("W4"), evidence, BITS, "run", GOALS)
    assert (alone.rate, alone.vector_bits) == (0.5, 0)
    assert (again[-1].looked, again[-1].rate) == (0.5, 0.0)


def test_the_front_keeps_what_nothing_beats() -> None:
    candidates = [
        deployment(0.5),
        deployment(0.4),
        deployment(0.4, size=10.0),
        deployment(0.1, cost=2.0),
        deployment(0.6, vector=8),
    ]
    assert choice.front(candidates) == [False, False, True, True, True]


def test_the_best_is_within_bits_and_latency_and_a_target_takes_the_cheapest() -> None:
    plain, finer, wide, dear = (
        deployment(0.5),
        deployment(0.3, bits=4.25),
        deployment(0.2, bits=4.5),
        deployment(0.05, cost=2.0),
    )
    candidates = [plain, finer, wide, dear]
    assert choice.best(candidates, GOALS, 4.25) is finer
    assert choice.best(candidates, GOALS, 4.125) is plain
    assert choice.best(candidates, replace(GOALS, latency=2.0), 4.25) is dear
    # the interval of 300 of 1,000 ends at 0.329
    assert choice.best(candidates, replace(GOALS, target=0.33), 4.25) is finer
    assert choice.best(candidates, replace(GOALS, target=0.1), 4.25) is dear
    assert choice.best(candidates, replace(GOALS, target=0.1, latency=1.5), 4.25) is finer  # nothing reaches it
    against = choice.against_plain(candidates)
    assert against[0].difference is None
    assert [other.difference and other.difference.value for other in against[1:]] == pytest.approx([-0.2, -0.3, -0.45])


def test_the_rate_of_what_was_chosen_is_of_inputs_that_the_choice_did_not_see() -> None:
    """Seven equal ways at a true 10 %, half of whose changes they share: the least of seven is 2 points too low."""
    rng, goals = np.random.default_rng(0), replace(GOALS, target=None)
    n, rate, chosen, confirmed, covered = 300, 0.1, [], [], []
    for seed in range(400):
        common = rng.random(n) < rate / 2
        ways = [common | (rng.random(n) < (rate / 2) / (1 - rate / 2)) for _ in range(7)]
        candidates = [replace(deployment(0.0), changed=way) for way in ways]
        found = choice.chosen_apart(candidates, goals, 4.125, seed=seed)
        chosen.append(found.chosen.rate)
        confirmed.append(found.confirmed.rate)
        flips = found.confirmed.flips
        covered.append(flips.low <= rate <= flips.high)  # type: ignore[operator]  # of many inputs
    assert np.mean(chosen) < 0.085
    assert np.mean(confirmed) == pytest.approx(rate, abs=0.003)
    assert 0.92 < np.mean(covered) < 0.98
    assert found.plain.flips.n + found.deployments[0].flips.n == n


def test_a_target_is_shown_by_the_upper_end_of_the_interval() -> None:
    # 1 of 200 inputs: 0.5 %, and up to 2.8 %
    few = replace(deployment(0.0), changed=np.arange(400) % 200 == 0)
    choices = [choice.chosen_apart([few], replace(GOALS, target=target), 4.125) for target in (0.02, 0.05, None)]
    assert choices[0].confirmed.rate <= 0.01
    assert [found.target_shown for found in choices] == [False, True, None]
    # 10 of 1,000 are up to 1.8 %, so nothing is shown to reach 1.5 %: the nearest is taken
    nearest = choice.best([deployment(0.5), deployment(0.01)], replace(GOALS, target=0.015), 4.125)
    assert nearest.rate == 0.01

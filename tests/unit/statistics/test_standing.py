"""The one rule behind every verdict, and how many inputs close what it leaves open."""

import pytest

from quantdrift.base.errors import QuantDriftError
from quantdrift.statistics.estimates import Estimate, share_estimate
from quantdrift.statistics.standing import Tolerances, exceeds, falls, standing

HELD, FELL, UNSURE = (0.0, -0.01, 0.01), (-0.06, -0.09, -0.04), (-0.02, -0.05, 0.01)


def change(values: tuple[float, float, float], n: int) -> Estimate:
    value, low, high = values
    return Estimate(value=value, low=low, high=high, n=n)


@pytest.mark.parametrize(
    ("flips", "lost", "mean", "word"),
    [
        ((1, 300), (0, 150), HELD, "safe to deploy"),
        ((1, 300), None, None, "answers stay"),
        ((368, 1509), (106, 804), (-0.0107, -0.0187, -0.0029), "right answers lost"),  # README's run: the mean hides it
        ((368, 1509), (106, 804), FELL, "right answers lost"),
        ((1, 300), (0, 150), FELL, "quality fell"),  # what lies behind the first answers
        ((60, 300), (0, 150), HELD, "answers change, right ones stay"),
        ((60, 300), None, HELD, "answers change, right ones stay"),  # the reference is right nowhere
        ((60, 300), (6, 150), HELD, "answers change"),  # 4 % of the right ones, 1.8 to 8.5
        ((60, 300), (0, 150), UNSURE, "answers change"),
        ((60, 300), None, None, "answers change"),
        ((16, 40), (2, 10), UNSURE, "answers change"),  # that they change is settled
        ((9, 300), (0, 150), HELD, "open"),
        ((0, 20), None, None, "open"),
        ((1, 300), (0, 150), UNSURE, "open"),
    ],
)
def test_what_one_candidate_comes_to(
    flips: tuple[int, int], lost: tuple[int, int] | None, mean: tuple[float, float, float] | None, word: str
) -> None:
    stands = standing(
        share_estimate(*flips),
        lost=None if lost is None else share_estimate(*lost),
        change=None if mean is None else change(mean, flips[1]),
        tolerances=Tolerances(),
    )
    assert stands.word == word
    settled = word in {"safe to deploy", "right answers lost", "quality fell"}
    assert not (settled and stands.needed)


def test_one_input_decides_nothing_and_two_lost_of_two_are_no_chance() -> None:
    """P(1 of 1) = 3 % is more than 2.5 %, P(2 of 2) = 0.09 % is less."""
    assert (exceeds(share_estimate(1, 1), 0.03), exceeds(share_estimate(2, 2), 0.03)) == ("open", "yes")
    assert exceeds(share_estimate(1, 3), 0.03) == "open"  # Wilson's interval begins at 6.1 %


def test_fewer_than_99_inputs_rule_out_no_fall() -> None:
    assert falls(Estimate(value=0.0, low=0.0, high=0.0, n=98), 0.03) == "open"
    assert falls(Estimate(value=0.0, low=0.0, high=0.0, n=99), 0.03) == "no"


def test_as_many_inputs_as_are_named_close_a_question() -> None:
    """Of 20 inputs none changed: with 125 of which none changes, 3 % are ruled out, and with 124 they are not."""
    needed = standing(share_estimate(0, 20), tolerances=Tolerances()).needed["changed"]
    assert needed == 125
    assert [exceeds(share_estimate(0, n), 0.03) for n in (needed - 1, needed)] == ["open", "no"]
    lost = standing(share_estimate(60, 300), lost=share_estimate(6, 150), tolerances=Tolerances()).needed["lost"]
    assert lost is not None
    assert exceeds(share_estimate(round(0.04 * lost / 2), lost // 2), 0.03) == "yes"  # half of the inputs were right


def test_tolerances_decide() -> None:
    assert standing(share_estimate(60, 300), tolerances=Tolerances(changed=0.3)).word == "answers stay"
    with pytest.raises(QuantDriftError, match="between 0 and 1"):
        Tolerances(changed=3)

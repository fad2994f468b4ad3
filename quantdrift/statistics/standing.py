"""The rule behind every verdict: do answers change, are right answers lost, does the mean fall?"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from quantdrift.base.errors import QuantDriftError
from quantdrift.statistics.estimates import Estimate, at_least, at_most, share_estimate

Word = Literal[
    "safe to deploy",
    "answers stay",
    "answers change, right ones stay",
    "answers change",
    "right answers lost",
    "quality fell",
    "open",
]
"""The possible verdicts on a candidate, by `standing`."""

Question = Literal["changed", "lost", "mean"]
Answer = Literal["yes", "no", "open"]
"""Whether a change above the tolerance is shown, ruled out, or neither."""

MARGIN = 0.03
"""The default tolerance."""
TAIL = 0.025
"""The probability beyond one end of a 95 % interval."""
_Z_SQUARED = 1.959963984540054**2
_MOST = 10_000_000
"""Most inputs that are given as advice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerances:
    """The changes that are tolerated of a candidate.

    Attributes:
        changed: share of inputs whose top-1 may change, and of right first answers that may be lost.
        mean: fall of nDCG@10 or accuracy that is allowed, in its own unit.

    Raises:
        QuantDriftError: one is not between 0 and 1.
    """

    changed: float = MARGIN
    mean: float = MARGIN

    def __post_init__(self) -> None:
        for name, value in (("changed answers", self.changed), ("a fall of the mean", self.mean)):
            if not 0 < value < 1:
                raise QuantDriftError(f"the tolerance of {name} lies between 0 and 1 (0.03 is 3 %); got {value:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The verdict on a candidate, and the open questions.

    Attributes:
        word: the verdict.
        answers: the answer to each question that the data allow.
        needed: for each open question the number of inputs that would settle it if the estimates stay the same; None if
            it is not known or too large.
    """

    word: Word
    answers: Mapping[Question, Answer]
    needed: Mapping[Question, int | None] = field(default_factory=dict)


def exceeds(rate: Estimate, limit: float) -> Answer:
    """Whether a share is above a limit.

    Its 95 % interval and the exact binomial test at 2.5 % have to agree. Wilson's interval alone would call one changed
    answer of three "more than 3 %", which is wrong in up to 9 % of cases.

    Args:
        rate: a share with its Wilson interval.
        limit: between 0 and 1.
    """
    if rate.value is None or rate.low is None or rate.high is None:
        return "open"
    hits = round(rate.value * rate.n)
    if rate.high <= limit and at_most(hits, rate.n, limit) <= TAIL:
        return "no"
    return "yes" if rate.low > limit and at_least(hits, rate.n, limit) <= TAIL else "open"


def falls(change: Estimate, margin: float) -> Answer:
    """Whether a mean falls by a margin.

    Even if no input lost anything, a share of up to 1 - 0.05^(1/n) of all inputs may lose everything, so that fewer
    than 99 inputs cannot rule out a fall by 0.03.

    Args:
        change: of the mean, candidate minus reference, with its 95 % interval.
        margin: above 0.
    """
    if change.low is None or change.high is None:
        return "open"
    if change.low > -margin and change.n >= _enough(margin):
        return "no"
    return "yes" if change.high <= -margin else "open"


def standing(
    flip: Estimate, *, lost: Estimate | None = None, change: Estimate | None = None, tolerances: Tolerances
) -> Standing:
    """Judge a candidate; this is the rule behind every verdict.

    - right answers lost: more of the right first answers than the tolerance are wrong now;
    - quality fell: the mean fell by its tolerance or more;
    - safe to deploy: no more answers change than the tolerance, and such a fall of the mean is ruled out;
    - answers stay: no more answers change than the tolerance, and there are no labels;
    - answers change, right ones stay: more answers change, but a loss of more right ones and the fall are ruled out;
    - answers change: more answers change, and the rest is open for lack of labels or inputs;
    - open: there are too few inputs to tell.

    Each uses the less favourable end of a 95 % interval. A mean alone is never enough for a good verdict, because it
    stays the same if as many answers are won as lost.

    Args:
        flip: share of inputs with a top-1 change.
        lost: share of inputs with a relevant top-1 whose new top-1 is not relevant; None if there is none.
        change: change of nDCG@10 or accuracy; None without labels.
        tolerances: the tolerances.
    """
    answers: dict[Question, Answer] = {"changed": exceeds(flip, tolerances.changed)}
    if lost is not None:
        answers["lost"] = exceeds(lost, tolerances.changed)
    if change is not None:
        answers["mean"] = falls(change, tolerances.mean)
    word = _word(answers)
    asked = {name for name, answer in answers.items() if answer == "open"}
    if word in {"safe to deploy", "right answers lost", "quality fell"}:
        asked = set()
    elif word == "open":
        asked -= {"lost"}  # if no more answers change than the tolerance, no more are lost
    needed: dict[Question, int | None] = {}
    if "changed" in asked:
        needed["changed"] = _inputs_for(flip, tolerances.changed)
    if lost is not None and "lost" in asked:
        right = _inputs_for(lost, tolerances.changed)
        needed["lost"] = None if right is None else _bounded(right * flip.n / lost.n)
    if change is not None and "mean" in asked:
        needed["mean"] = _inputs_for_mean(change, tolerances.mean)
    return Standing(word=word, answers=answers, needed=needed)


def _word(answers: Mapping[Question, Answer]) -> Word:
    changed, lost, fell = (answers.get(name) for name in ("changed", "lost", "mean"))
    if lost == "yes":
        return "right answers lost"
    if fell == "yes":
        return "quality fell"
    if changed == "open":
        return "open"
    if changed == "no":
        return "answers stay" if fell is None else "safe to deploy" if fell == "no" else "open"
    return "answers change, right ones stay" if lost != "open" and fell == "no" else "answers change"


# --- inputs that would settle an open question ----------------------------------------------------


def _enough(margin: float) -> int:
    """Least number of inputs, if none loses anything, to rule out a fall of the mean by a margin; 99 for 0.03."""
    return math.ceil(math.log(0.05) / math.log1p(-margin))


def _inputs_for(rate: Estimate, limit: float) -> int | None:
    """Inputs with which the same share would be shown to be above a limit or not, by `exceeds`."""
    if rate.value is None or rate.value == limit:
        return None
    n = _bounded(_Z_SQUARED * limit * (1 - limit) / (rate.value - limit) ** 2)
    while n is not None and exceeds(share_estimate(round(rate.value * n), n), limit) == "open":
        n = _bounded(1.02 * n + 1)
    return n


def _inputs_for_mean(change: Estimate, margin: float) -> int | None:
    """Inputs with which the interval of the same change, narrower by their square root, excludes the margin."""
    value, low, high = change.value, change.low, change.high
    if value is None or low is None or high is None or value == -margin:
        return None
    width = value - low if value > -margin else high - value
    return _bounded(max(change.n * (width / (value + margin)) ** 2, _enough(margin)))


def _bounded(inputs: float) -> int | None:
    return math.ceil(inputs) if inputs <= _MOST else None

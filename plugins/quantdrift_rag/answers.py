"""The answers of a generator behind a search: whether they are right, and what changes when the search is quantized.

Answers are normalized as in SQuAD: lower case, without ASCII punctuation and the words a, an, the. The record has the
questions, the gold answers and the answers in each condition; all numbers are computed from it.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from operator import ne
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, NonNegativeInt, model_validator

from quantdrift.parts import Estimate, Record, estimate, holm, mcnemar_exact, paired_difference

RECORD = "rag.json"
Outcomes = NDArray[np.float64]
Kind = Literal["generator", "extractive reader"]
_UNSIGNED = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


# --- one answer -----------------------------------------------------------------------------------


def normalized(text: str) -> str:
    """Normalize an answer as SQuAD does.

    >>> normalized("The  U.S. Army!")
    'us army'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_UNSIGNED)).split())


def exact_match(answer: str, golds: Sequence[str]) -> bool:
    """True if an answer is one of the gold answers, both normalized."""
    return normalized(answer) in {normalized(gold) for gold in golds}


def token_f1(answer: str, golds: Sequence[str]) -> float:
    """The harmonic mean of precision and recall of words, for the gold answer with the largest; 0 to 1.

    If a text has no words, it is 1 if the other has none either, and else 0, as in SQuAD 2.0.
    """
    return max((_f1(normalized(answer).split(), normalized(gold).split()) for gold in golds), default=0.0)


def _f1(said: Sequence[str], gold: Sequence[str]) -> float:
    if not said or not gold:
        return float(said == gold)
    common = sum((Counter(said) & Counter(gold)).values())
    return 2 * common / (len(said) + len(gold))  # 2pr / (p + r) with p = common / said, r = common / gold


def holds_answer(passages: Sequence[str], golds: Sequence[str]) -> bool:
    """True if a passage contains one of the gold answers as whole words, both normalized."""
    wanted = [f" {words} " for gold in golds if (words := normalized(gold))]
    return any(gold in f" {normalized(passage)} " for passage in passages for gold in wanted)


# --- the record -----------------------------------------------------------------------------------


class Condition(BaseModel, frozen=True, strict=True, extra="forbid"):
    """The answers with one set of passages.

    Attributes:
        name: "no passages", "full precision", or the scheme.
        spec: spec of the run whose candidate found the passages; None for the other conditions.
        answers: one answer per question; empty until the generator is asked.
        passages: ids of the passages, best first; None without passages, or if the ids are unknown.
        gold_in_context: whether a gold passage was among them; None without passages.
    """

    name: str
    spec: str | None = None
    answers: list[str] = Field(default_factory=list)
    passages: list[list[str]] | None = None
    gold_in_context: list[bool] | None = None


class RagRecord(Record):
    """rag.json: questions, gold answers, and the answers in each condition.

    Attributes:
        generator: name of the generator.
        kind: kind of the generator.
        data: name of the data.
        n_passages: passages for each question, at most.
        gold_by: whether relevance labels, or the text of a gold answer in it, make a passage gold.
        ids: ids of the questions.
        questions: texts of the questions.
        golds: gold answers of each question.
        control: the condition without passages, if it was asked.
        reference: the condition with the passages of the reference.
        candidates: the conditions with the passages of each candidate.
        notes: remarks, one sentence each, without a full stop.
    """

    FORMAT, VERSION = "quantdrift-rag", 1
    WHAT = "the record of answers behind a search"
    MAKE = "quantdrift rag RUN... --model hf --model-args pretrained=NAME"

    generator: str
    kind: Kind
    data: str
    n_passages: NonNegativeInt
    gold_by: Literal["labels", "answer text"]
    ids: list[str]
    questions: list[str]
    golds: list[list[str]]
    control: Condition | None
    reference: Condition
    candidates: list[Condition]
    notes: list[str] = Field(default_factory=list)

    @property
    def conditions(self) -> list[Condition]:
        """All conditions, in the order of the table."""
        return [*([] if self.control is None else [self.control]), self.reference, *self.candidates]

    @model_validator(mode="after")
    def _whole(self) -> Self:
        n = len(self.ids)
        parts: list[Sequence[object] | None] = [self.ids, self.questions, self.golds]
        for condition in self.conditions:
            parts += [condition.answers, condition.passages, condition.gold_in_context]
        lengths = {len(part) for part in parts if part is not None}
        if lengths != {n} or not n:
            raise ValueError(f"expected {n:,} of everything, one a question; got {sorted(lengths)}")
        names = [condition.name for condition in self.conditions]
        if len(set(names)) < len(names):
            raise ValueError(f"expected conditions of different names; got {names}")
        if not self.candidates or not all(self.golds):
            raise ValueError("expected a candidate, and a gold answer for every question")
        return self


# --- what changed ---------------------------------------------------------------------------------

_MEASURES: dict[str, Literal["rate", "mean"]] = {"exact_match": "rate", "token_f1": "mean", "gold_in_context": "rate"}
_TURNS = {(1, 0): "right to wrong", (0, 1): "wrong to right", (0, 0): "still wrong", (1, 1): "still right"}
"""Whether an answer was right before and after, to the name of that change; in the order of the output."""


@dataclass(frozen=True, slots=True)
class Changed:
    """A question with another answer with the candidate's passages; `kind` is one of `_TURNS`."""

    id: str
    question: str
    golds: Sequence[str]
    before: str
    after: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Effect:
    """The changes by the passages of one candidate.

    Attributes:
        name: name of the candidate.
        other_passages: questions with other passages, or the same in another order; None if unknown.
        changed: share of the questions whose normalized answer differs, with a Wilson interval.
        right_to_wrong: questions whose answer was an exact match and no longer is.
        wrong_to_right: questions whose answer was no exact match and now is.
        p_value: p-value of the exact McNemar test that both directions are equally frequent.
        p_holm: the p-value adjusted for the number of candidates.
        differences: candidate minus reference: exact match and gold in context with Tango's interval, token F1 with a
            paired bootstrap.
        changes: the questions whose normalized answer differs, right to wrong first.
    """

    name: str
    other_passages: int | None
    changed: Estimate
    right_to_wrong: int
    wrong_to_right: int
    p_value: float
    p_holm: float
    differences: dict[str, Estimate]
    changes: Sequence[Changed]

    @property
    def n_changed(self) -> int:
        """Questions whose normalized answer differs."""
        return len(self.changes)


@dataclass(frozen=True, kw_only=True, eq=False)
class Rag:
    """All numbers of a record."""

    record: RagRecord

    @cached_property
    def outcomes(self) -> dict[str, dict[str, Outcomes]]:
        """Outcomes by condition and measure, float64 [n_questions]; without passages, gold_in_context is missing."""
        scored = {}
        for condition in self.record.conditions:
            pairs = list(zip(condition.answers, self.record.golds, strict=True))
            outcomes = {
                "exact_match": np.array([exact_match(*pair) for pair in pairs], float),
                "token_f1": np.array([token_f1(*pair) for pair in pairs], float),
            }
            if condition.gold_in_context is not None:
                outcomes["gold_in_context"] = np.array(condition.gold_in_context, float)
            scored[condition.name] = outcomes
        return scored

    @cached_property
    def estimates(self) -> dict[str, dict[str, Estimate]]:
        """Exact match and gold in context with Wilson intervals, token F1 with a bootstrap interval."""
        return {
            condition: {measure: estimate(values, _MEASURES[measure]) for measure, values in outcomes.items()}
            for condition, outcomes in self.outcomes.items()
        }

    @cached_property
    def effects(self) -> dict[str, Effect]:
        """The changes by each candidate, by its name."""
        candidates = self.record.candidates
        right = [self.outcomes[part.name]["exact_match"] for part in (self.record.reference, *candidates)]
        tests = [mcnemar_exact(right[0], after) for after in right[1:]]
        adjusted = holm([test.p_value for test in tests])
        parts = zip(candidates, tests, adjusted, strict=True)
        return {candidate.name: self._effect(candidate, test, p_holm or 0.0) for candidate, test, p_holm in parts}

    def _effect(self, after: Condition, test: Any, p_holm: float) -> Effect:
        before = self.record.reference
        outcomes = self.outcomes[before.name], self.outcomes[after.name]
        said = before.answers, after.answers
        differs = np.array(list(map(ne, *(map(normalized, answers) for answers in said))))
        turns = [_TURNS[turn] for turn in zip(*(part["exact_match"].tolist() for part in outcomes), strict=True)]
        columns = (self.record.ids, self.record.questions, self.record.golds, *said, turns)
        changes = [Changed(*row) for row in compress(zip(*columns, strict=True), differs)]
        known = before.passages is not None and after.passages is not None
        return Effect(
            name=after.name,
            other_passages=sum(map(ne, before.passages or (), after.passages or ())) if known else None,
            changed=estimate(differs.astype(float), "rate"),
            right_to_wrong=test.only_a,
            wrong_to_right=test.only_b,
            p_value=test.p_value,
            p_holm=p_holm,
            differences={
                measure: paired_difference(values, outcomes[1][measure], _MEASURES[measure])
                for measure, values in outcomes[0].items()
                if measure in outcomes[1]
            },
            changes=sorted(changes, key=lambda change: list(_TURNS.values()).index(change.kind)),
        )

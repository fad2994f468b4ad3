"""What is asked of a run, one line each: a limit, or a comparison with the baseline.

    RULE  := METRIC [ "[" SLICE "]" ] TEST
    TEST  := ( "<=" | ">=" ) NUMBER             a limit on what is observed
           | "no worse" [ "by" NUMBER ]         than the baseline, by that or more

A number may be written as a share: 25 % is 0.25.

>>> rule = parse_rule("flip@1 [german] no worse by 3 %")
>>> str(rule), rule.number, parse_rule(str(rule)) == rule
('flip@1 [german] no worse by 0.03', 0.03, True)
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from quantdrift.errors import DataError, QuantDriftError, UnknownNameError, nearest
from quantdrift.gate.target import Target
from quantdrift.metrics import Metric, parse_metric

# --- What is asked of a run, one line each: a limit, or a comparison with the baseline ------------

Test = Literal["<=", ">=", "no worse"]

NOISE = parse_metric("noise_floor")
"""The reference against itself, which is all of a flip that quantization has no part in."""

_EXAMPLES = "'flip@1 <= 0.25', 'flip@1 no worse by 0.03' or 'ndcg@10 [german] >= 0.6'"
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_PERCENT = 100

_OF_CANDIDATE = {"flip_to_irrelevant": "harm", "flip_to_relevant": "benefit", "gold_gained": "recall@10"}
"""Metrics of the inputs that the candidate's own answers choose, which are others in every run;
and what asks the like of all inputs."""

_RULE = re.compile(
    r"""\s*(?P<metric>[^\s\[\]<>]+?)
    \s*(?:\[\s*(?P<slice>[^\[\]]*?)\s*\])?
    \s*(?:
        (?P<limit><=|>=)\s*(?P<at>[^\s%]+)\s*(?P<share>%)?
      | \b(?P<worse>no\s+worse)(?:\s+by\s+(?P<by>[^\s%]+)\s*(?P<by_share>%)?)?
    )\s*""",
    re.VERBOSE,
)

_GONE = {
    "within": "ask for 'no worse by' that much, which lets the run be better",
    "shown": "a limit is on what is observed; leave the word out",
    "beyond noise": "ask for 'flip@1 <= NUMBER' and 'noise_floor <= NUMBER', or compare with a "
    "baseline: 'flip@1 no worse by NUMBER' sets aside what noise changes",
}
"""Words of rules that there were, and what to ask in their place."""


class RuleError(QuantDriftError):
    """A rule cannot be read, or asks for what its metric does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that is asked of a run.

    Attributes:
        metric: of what.
        test: a limit ("<=", ">="), or a comparison with the baseline ("no worse").
        number: the limit, or the margin, in the metric's own unit; None for "no worse" without one.
        on: name of the slice of inputs it looks at; None for all.

    Raises:
        RuleError: the metric has no such test.
    """

    metric: Metric
    test: Test
    number: float | None = None
    on: str | None = None

    def __post_init__(self) -> None:
        if problem := self._no_comparison() if self.compares else self._no_limit():
            raise RuleError(f"the rule '{self}' cannot be judged: {problem}")

    def __str__(self) -> str:
        words = [str(self.metric)]
        if self.on is not None:
            words.append(f"[{self.on}]")
        words.append(self.test)
        if self.number is not None:
            words += ["by"] if self.test == "no worse" else []
            words.append(repr(float(self.number)).removesuffix(".0"))
        return " ".join(words)

    @property
    def compares(self) -> bool:
        """Whether it needs a baseline."""
        return self.test == "no worse"

    @property
    def kind(self) -> Literal["rate", "mean", "quantile"]:
        """What is tested: a rate (0 or 1 per input), a mean or a quantile."""
        kinds = {"wilson": "rate", "order statistics": "quantile"}
        return cast(Literal["rate", "mean", "quantile"], kinds.get(self.metric.uncertainty, "mean"))

    @property
    def span(self) -> float:
        """Greatest possible difference of two values of an input."""
        family = self.metric.family
        # in a change the reference, which both runs share, cancels
        return family.high - family.low if math.isfinite(family.low) else math.inf

    def _no_limit(self) -> str | None:
        metric, number = self.metric, self.number
        if number is None or not math.isfinite(number):
            return "a limit is a finite number"
        if not metric.low <= number <= metric.high:
            return f"{metric} lies from {metric.low:g} to {metric.high:g}, all on one side of it; 25 % is 0.25"
        if metric.arm == "relative" and self.on is not None:
            other = str(metric).replace("relative.", "change.", 1)
            return f"a ratio of means has no value per input; ask for {other}"
        return None

    def _no_comparison(self) -> str | None:
        metric, number = self.metric, self.number
        by = None if metric.where is None else metric.where.by
        margin = number is None or 0 < number < self.span
        checks = (
            (
                _of_reference(metric) or metric == NOISE,
                f"{metric} is of the reference, which the baseline shares; give a limit",
            ),
            (metric.direction == "none", f"neither way is better for {metric}; give a limit"),
            (metric.family.cutoff_is == "level", f"each run calibrates its own threshold for {metric}; give a limit"),
            (
                metric.family.name in _OF_CANDIDATE,
                f"{metric} is of inputs that the candidate's answers choose, others in every run; "
                f"ask for {_OF_CANDIDATE.get(metric.family.name)}, or give a limit",
            ),
            (self.kind == "quantile", f"{metric} is a median or quantile, which has no paired test; give a limit"),
            (
                metric.arm == "relative",
                "a ratio of means has no value per input; ask for " + str(metric).replace("relative.", "change.", 1),
            ),
            (
                by is not None and not _of_reference(by),
                f"a slice by {by} holds other inputs in every run; take one by the reference, "
                "such as gap, or a slice of names",
            ),
            (
                not margin,
                "a margin lies above 0 and below the greatest difference there can be "
                f"({self.span:g}); for 2 percentage points give 0.02",
            ),
        )
        return next((problem for wrong, problem in checks if wrong), None)


def _of_reference(metric: Metric) -> bool:
    return metric.family.of_reference or metric.arm == "reference"


def parse_rule(text: str) -> Rule:
    """The rule that a line names; `str` of it parses back to an equal one.

    Args:
        text: for example `flip@1 no worse by 0.03`.

    Raises:
        RuleError: it cannot be read, or its metric has no such test.
        UnknownNameError: there is no such metric; carries the nearest names.
        MetricError: the metric's cut-off, arm or slice cannot be read.
    """
    match = _RULE.fullmatch(text)
    if match is None:
        outside = " ".join(re.sub(r"\[.*?\]", " ", text).split()[1:])
        for word, instead in _GONE.items():
            if re.search(rf"\b{word}\b", outside):
                raise RuleError(f"a rule has no {word!r}: {instead}; got {text!r}")
        raise RuleError(f"expected a rule such as {_EXAMPLES}; got {text!r}")
    if match["slice"] == "":
        raise RuleError(f"expected the name of a slice between the brackets; got {text!r}")
    number: float | None
    if match["limit"]:
        test, number = match["limit"], _number(match["at"], match["share"], text)
    else:
        test = "no worse"
        number = None if match["by"] is None else _number(match["by"], match["by_share"], text)
    return Rule(metric=parse_metric(match["metric"]), test=cast(Test, test), number=number, on=match["slice"])


def _number(text: str, share: str | None, rule: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise RuleError(f"expected a number in the rule {rule!r}, got {text!r}")
    # in decimals: 0.7 % is 0.007, to the last bit
    return float(Decimal(text) / (_PERCENT if share else 1))


# --- Named slices of the inputs: by patterns on their ids, for rules that look at a part ----------

Slices = Mapping[str, Sequence[str]]
"""Name of a slice to patterns on input ids, with `*`, `?` and `[...]`; an input belongs if one
of them matches."""


def check_slice(name: str, slices: Slices) -> None:
    """Refuse the name of a slice that there is not.

    Raises:
        UnknownNameError: carries the nearest names.
    """
    if name not in slices:
        hint = "(expected one under [tool.quantdrift.gate.slices], or --slice NAME=PATTERN)"
        raise UnknownNameError("slice", name, slices, hint=hint)


def in_slice(name: str, slices: Slices, input_ids: Sequence[str]) -> NDArray[np.bool_]:
    """Which inputs belong to a slice, bool [n_inputs].

    Args:
        name: of the slice.
        slices: those there are.
        input_ids: of the inputs.

    Raises:
        UnknownNameError: there is no slice of that name.
        DataError: one of its patterns matches no input.

    >>> in_slice("german", {"german": ["de-*"]}, ["de-1", "en-1"]).tolist()
    [True, False]
    """
    check_slice(name, slices)
    patterns = slices[name]
    found = np.zeros(len(input_ids), dtype=np.bool_)
    for pattern in patterns:
        matching = np.array([fnmatchcase(each, pattern) for each in input_ids], dtype=np.bool_)
        if not matching.any():
            raise DataError(
                f"the slice {name!r}: no input matches {pattern!r}; ids are like "
                f"{', '.join(repr(each) for each in input_ids[:3])}"
            )
        found |= matching
    return found


# --- The gate's settings in `pyproject.toml`, under [tool.quantdrift.gate] ------------------------

FILE = "pyproject.toml"
TABLE = "[tool.quantdrift.gate]"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateConfig:
    """What a file says; None or empty where it says nothing.

    Attributes:
        target: spec or run folder; paths are those of the file's folder.
        data: folder of the data.
        task: name of a task.
        baseline: the committed file.
        rules: what is asked.
        slices: of inputs, by name.
        alpha: level of the tests.
        accept_underpowered: whether too few inputs end in success.
        path: the file; None where there is none.
    """

    target: str | None = None
    data: Path | None = None
    task: str | None = None
    baseline: Path | None = None
    rules: tuple[Rule, ...] = ()
    slices: Slices = field(default_factory=dict)
    alpha: float | None = None
    accept_underpowered: bool = False
    path: Path | None = None


_KINDS: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    "target": (str, "a spec or a run folder, such as 'minilm@W4-rtn'"),
    "data": (str, "a folder"),
    "task": (str, "the name of a task"),
    "baseline": (str, "a file, such as 'drift-baseline.json'"),
    "rules": (list, "a list of rules, such as ['flip@1 no worse by 0.03']"),
    "slices": (dict, "a table of patterns on input ids, such as {german = 'de-*'}"),
    "alpha": ((int, float), "a probability, such as 0.05"),
    "accept-underpowered": (bool, "true or false"),
}


def find_config(start: Path) -> Path | None:
    """The nearest pyproject.toml with settings of the gate, in a folder or above it.

    A file that cannot be read is named too, so that `read_config` says what is wrong with it:
    rules that are not seen must not be taken for none.

    Args:
        start: the folder to begin with.
    """
    start = start.absolute()
    for folder in (start, *start.parents):
        path = folder / FILE
        if not path.is_file():
            continue
        try:
            found = _table(tomllib.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return path
        # the project ends where its file is, whether that has settings of the gate or not
        return None if found is None else path
    return None


def read_config(path: Path) -> GateConfig:
    """The settings in a file.

    Args:
        path: of a TOML file with the table.

    Raises:
        DataError: it cannot be read, has no such table, an unknown key (names the nearest), a value
            of another kind, or a rule that cannot be read.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as TOML: {error}") from error
    table = _table(content)
    if not isinstance(table, Mapping):
        raise DataError(
            f"{path} has no table {TABLE}; expected one, with rules = [...] for example"
            + ("" if table is None else f". What it has there is {table!r}")
        )
    for key, value in table.items():
        _check(path, key, value)
    folder = path.parent
    try:
        rules = tuple(parse_rule(text) for text in table.get("rules", ()))
    except QuantDriftError as error:
        raise DataError(f"{path}, {TABLE}, rules: {error}") from error
    target = table.get("target")
    return GateConfig(
        # a run folder or a local model is meant as seen from the file
        target=None if target is None else _seen_from(folder, target),
        data=_beside(folder, table.get("data")),
        task=table.get("task"),
        baseline=_beside(folder, table.get("baseline")),
        rules=rules,
        slices={name: _patterns(path, name, held) for name, held in table.get("slices", {}).items()},
        alpha=table.get("alpha"),
        accept_underpowered=table.get("accept-underpowered", False),
        path=path,
    )


def parse_slice(text: str) -> tuple[str, tuple[str, ...]]:
    """Name and patterns of a slice given as NAME=PATTERN,PATTERN.

    Raises:
        DataError: it is something else.
    """
    name, equals, patterns = text.partition("=")
    found = tuple(each.strip() for each in patterns.split(",") if each.strip())
    if not equals or not name.strip() or not found:
        raise DataError(f"expected a slice as NAME=PATTERN, such as german=de-*; got {text!r}")
    return name.strip(), found


def _table(content: Any) -> Any:
    """What stands there, a table or not; None for nothing."""
    for name in ("tool", "quantdrift", "gate"):
        content = content.get(name) if isinstance(content, Mapping) else None
    return content


def _check(path: Path, key: str, value: Any) -> None:
    if key not in _KINDS:
        meant = nearest(key, _KINDS)
        hint = f"; did you mean {' or '.join(meant)}?" if meant else f"; known: {', '.join(_KINDS)}"
        raise DataError(f"{path}, {TABLE}: there is no setting {key!r}{hint}")
    kind, what = _KINDS[key]
    fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if not fits or value == "" or (key == "rules" and not all(isinstance(x, str) for x in value)):
        raise DataError(f"{path}, {TABLE}: {key} is {what}; got {value!r}")


def _patterns(path: Path, name: str, held: Any) -> Sequence[str]:
    patterns = (held,) if isinstance(held, str) else held
    if not isinstance(patterns, Sequence) or not all(isinstance(each, str) for each in patterns):
        raise DataError(
            f"{path}, {TABLE}: the slice {name!r} is a pattern on input ids or a list of such, say 'de-*'; got {held!r}"
        )
    return tuple(patterns)


def _beside(folder: Path, value: str | None) -> Path | None:
    return None if value is None else folder / value


def _seen_from(folder: Path, target: str) -> str:
    """A target whose paths are those of a folder, as seen from the current one."""
    if (folder / target).exists():
        return str(folder / target)
    return " vs ".join(_model_seen_from(folder, side) for side in target.split(" vs "))


def _model_seen_from(folder: Path, side: str) -> str:
    """A side of a spec; a short name is no folder, though one of that name may lie there."""
    model, at, scheme = side.rpartition("@") if "@" in side else (side, "", "")
    path = folder / model
    if "/" not in model or Path(model).is_absolute() or not path.is_dir():
        return side
    if Path(model).is_dir() and path.samefile(model):
        return side
    # not absolute, as the spec is written into the baseline
    return f"{os.path.relpath(path)}{at}{scheme}"


# --- The rules that hold if nobody gives others, and what a baseline holds for later ones ---------

SEARCH = ("flip@1 no worse by 0.03", "gold_lost@10 no worse by 0.05", "ndcg@10 no worse by 0.03")
CLASSES = ("flip@1 no worse by 0.03", "accuracy no worse by 0.03")
NO_LABELS = ("flip@1 no worse by 0.03",)
"""docs/gate.md has their false alarms and their power. Without any difference 99 inputs show "no
worse by 0.03", and 59 "by 0.05": gold_lost@10 is defined for those of 100 that found something."""

_STORED = ("flip@1", "gold_lost@1", "gold_lost@5", "gold_lost@10", "ndcg@10", "recall@10", "mrr@10")
_STORED_CLASSES = ("flip@1", "gold_lost@1", "accuracy")


def default_rules(target: Target) -> list[Rule]:
    """The rules for a run that nobody gave rules for.

    Args:
        target: what is judged: whether it has labels and ranks, and whether its inputs have one
            right answer.
    """
    if all(evidence.judgements is None for evidence in target.evidence):
        return [parse_rule(text) for text in NO_LABELS]
    rules = [parse_rule(text) for text in (CLASSES if _one_answer(target) else SEARCH)]
    # a run can be made again with more ranks, and says so; lists of others end where they end
    listed = all(not evidence.exact for evidence in target.evidence)
    return [rule for rule in rules if not listed or _is_stored(rule.metric, target)]


def stored_metrics(target: Target) -> list[Metric]:
    """The metrics whose outcomes a baseline holds in any case.

    Args:
        target: the run.
    """
    names = _STORED_CLASSES if _one_answer(target) else _STORED
    metrics = [parse_metric(name) for name in names]
    return [*(metric for metric in metrics if _is_stored(metric, target)), NOISE]


def _is_stored(metric: Metric, target: Target) -> bool:
    depth = min((each.depth for each in target.evidence if each.cut_short), default=None)
    return depth is None or metric.cutoff + metric.family.ranks_beyond <= depth


def _one_answer(target: Target) -> bool:
    """Whether inputs have one right answer, or answers without ranks: a class, a choice, a text."""
    return target.classes or all(each.deltas == "none" for each in target.evidence)

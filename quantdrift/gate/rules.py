"""Rules, one line each: a limit, or a comparison with the baseline.

    RULE  := METRIC [ "[" SLICE "]" ] TEST
    TEST  := ( "<=" | ">=" ) NUMBER             a limit on the observed value
           | "no worse" [ "by" NUMBER ]         a comparison with the baseline, with a margin

A number may be written in percent: 25 % is 0.25.

>>> rule = parse_rule("flip@1 [german] no worse by 3 %")
>>> str(rule), rule.number, parse_rule(str(rule)) == rule
('flip@1 [german] no worse by 0.03', 0.03, True)
"""

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from quantdrift.base.errors import DataError, QuantDriftError
from quantdrift.base.records import problem_of
from quantdrift.base.text import NUMBER, share_of
from quantdrift.gate.target import Target
from quantdrift.metrics import Metric, parse_metric
from quantdrift.statistics.standing import MARGIN

Test = Literal["<=", ">=", "no worse"]

NOISE = parse_metric("noise_floor")
"""Share of the inputs on which the reference gives another top-1 when it runs a second time."""

_EXAMPLES = "'flip@1 <= 0.25', 'flip@1 no worse by 0.03' or 'ndcg@10 [german] >= 0.6'"
_RULE = re.compile(
    rf"""\s*(?P<metric>[^\s\[\]<>]+?)
    \s*(?:\[\s*(?P<slice>[^\[\]\s](?:[^\[\]]*[^\[\]\s])?)\s*\])?
    \s*(?:
        (?P<limit><=|>=)\s*(?P<at>{NUMBER}\s*%?)
      | \bno\s+worse(?:\s+by\s+(?P<by>{NUMBER}\s*%?))?
    )\s*""",
    re.VERBOSE,
)
_OF_CANDIDATE = {"flip_to_irrelevant": "harm", "flip_to_relevant": "benefit", "gold_gained": "recall@10"}
"""Metrics over inputs that the candidate's own answers select, and so over others in every run; and a like metric over
all inputs."""


class RuleError(QuantDriftError):
    """A rule cannot be read, or its metric has no such test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A requirement that a run has to meet.

    Attributes:
        metric: the metric.
        test: a limit ("<=", ">="), or a comparison with the baseline ("no worse").
        number: the limit, or the margin, in the metric's own unit; None for "no worse" without a margin.
        on: name of a slice of the inputs; None for all of them.

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
        on = "" if self.on is None else f"[{self.on}] "
        by = " by" if self.compares and self.number is not None else ""
        number = "" if self.number is None else " " + repr(float(self.number)).removesuffix(".0")
        return f"{self.metric} {on}{self.test}{by}{number}"

    @property
    def compares(self) -> bool:
        """Whether it needs a baseline."""
        return self.test == "no worse"

    @property
    def _no_ratio(self) -> str:
        change = str(self.metric).replace("relative.", "change.", 1)
        return f"a ratio of means has no value per input; ask for {change}"

    def _no_limit(self) -> str | None:
        metric, number = self.metric, self.number
        if number is None or not math.isfinite(number):
            return "a limit is a finite number"
        if not metric.low <= number <= metric.high:
            return f"a limit on {metric} lies from {metric.low:g} to {metric.high:g}; 25 % is 0.25"
        return self._no_ratio if metric.arm == "relative" and self.on is not None else None

    def _no_comparison(self) -> str | None:
        metric, family, number = self.metric, self.metric.family, self.number
        by = None if metric.where is None else metric.where.by
        checks = {
            f"{metric} is a value of the reference, which the baseline shares; give a limit": _of_reference(metric)
            or metric == NOISE,
            f"{metric} has no better direction; give a limit": metric.direction == "none",
            f"each run calibrates its own threshold for {metric}; give a limit": family.cutoff_is == "level",
            f"{metric} is over inputs that the candidate's answers select, others in every run; ask for "
            f"{_OF_CANDIDATE.get(family.name)}, or give a limit": family.name in _OF_CANDIDATE,
            f"{metric} is a median or quantile, which has no paired test; give a limit": metric.kind == "quantile",
            self._no_ratio: metric.arm == "relative",
            f"a slice by {by} holds other inputs in every run; take a slice by a value of the reference, such as gap, "
            "or by patterns on ids": by is not None and not _of_reference(by),
            f"a margin lies above 0 and below the largest possible difference ({metric.span:g}); 2 percentage points "
            "are 0.02": number is not None and not 0 < number < metric.span,
        }
        return next((problem for problem, wrong in checks.items() if wrong), None)


def _of_reference(metric: Metric) -> bool:
    return metric.family.of_reference or metric.arm == "reference"


def parse_rule(text: str) -> Rule:
    """Read a rule; parsing `str` of it gives an equal rule."""
    match = _RULE.fullmatch(text)
    if match is None:
        raise RuleError(f"expected a rule such as {_EXAMPLES}; got {text!r}")
    number = match["at"] or match["by"]
    test: Test = "<=" if match["limit"] == "<=" else ">=" if match["limit"] else "no worse"
    return Rule(
        metric=parse_metric(match["metric"]),
        test=test,
        number=None if number is None else share_of(number),
        on=match["slice"],
    )


# --- slices of the inputs -------------------------------------------------------------------------

Slices = Mapping[str, Sequence[str]]
"""Name of a slice to patterns on input ids, with `*`, `?` and `[...]`; an input belongs to it if one matches."""


def slices_of(patterns: Mapping[str, str | Sequence[str]], rules: Sequence[Rule] = ()) -> Slices:
    """The slices with one pattern or several each; refuses a rule on any other slice."""
    slices = {name: (held,) if isinstance(held, str) else tuple(held) for name, held in patterns.items()}
    for rule in rules:
        if rule.on is not None and rule.on not in slices:
            raise RuleError(
                f"the rule '{rule}' names an unknown slice; expected {rule.on!r} in [tool.quantdrift.gate.slices], "
                f"--slice NAME=PATTERN, or in a test slices={{{rule.on!r}: 'PATTERN*'}}: patterns on input ids"
            )
    return slices


def parse_slice(text: str) -> tuple[str, list[str]]:
    """Read a slice that is written as NAME=PATTERN,PATTERN."""
    name, _, patterns = text.partition("=")
    listed = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    if not name.strip() or not listed:
        raise DataError(f"expected a slice as NAME=PATTERN, such as german=de-*; got {text!r}")
    return name.strip(), listed


def in_slice(name: str, slices: Slices, input_ids: Sequence[str], *, so_far: bool = False) -> NDArray[np.bool_]:
    """Return which inputs belong to a slice, bool [n_inputs]; more may follow `so_far`.

    >>> in_slice("german", {"german": ["de-*"]}, ["de-1", "en-1"]).tolist()
    [True, False]
    """
    inside = np.zeros(len(input_ids), dtype=np.bool_)
    for pattern in slices[name]:
        matching = np.array([fnmatchcase(input_id, pattern) for input_id in input_ids], dtype=np.bool_)
        if not so_far and not matching.any():
            raise DataError(f"the slice {name!r}: no input matches {pattern!r}; ids are like {input_ids[0]!r}")
        inside |= matching
    return inside


# --- settings in pyproject.toml, under [tool.quantdrift.gate] -------------------------------------

FILE = "pyproject.toml"
TABLE = "[tool.quantdrift.gate]"


class GateConfig(BaseModel, strict=True, extra="forbid"):
    """The settings in a file; paths are relative to its folder, and a setting that is not there is None or empty."""

    target: str | None = Field(default=None, min_length=1)
    data: str | None = Field(default=None, min_length=1)
    columns: str | None = Field(default=None, min_length=1)
    task: str | None = Field(default=None, min_length=1)
    baseline: str | None = Field(default=None, min_length=1)
    rules: list[str] = []
    slices: dict[str, str | list[str]] = {}
    alpha: float | None = Field(default=None, ge=1e-9, le=0.5)
    accept_underpowered: bool = Field(default=False, alias="accept-underpowered")

    def data_for(self, data: Path | None, columns: str | None, task: str | None) -> dict[str, Any]:
        """The data, columns and task of the command line, or else those of the settings."""
        if data is None and task is None:
            data, task = None if self.data is None else Path(self.data), self.task
            columns = columns or self.columns
        return {"data": data, "columns": columns, "task": task}


def configured(file: Path | None) -> tuple[GateConfig, Path]:
    """The settings in a file, by default the nearest pyproject.toml here or above, and the folder of that file."""
    file = file or find_config(Path.cwd())
    return (GateConfig(), Path()) if file is None else (read_config(file), file.parent)


def find_config(start: Path) -> Path | None:
    """The nearest pyproject.toml in a folder or above it, if it has settings of the gate or cannot be read.

    `read_config` then says what is wrong with it: a file that cannot be read must not pass for one without rules.
    """
    start = start.absolute()
    path = next((path for folder in (start, *start.parents) if (path := folder / FILE).is_file()), None)
    if path is not None:
        with suppress(OSError, ValueError):
            # a file further up belongs to another project
            return None if _table(path) is None else path
    return path


def read_config(path: Path) -> GateConfig:
    """Read the settings from a TOML file that has the table."""
    try:
        content = _table(path)
        if content is None:
            raise DataError(f"{path} has no table {TABLE}; expected one, with rules = [...] for example")
        table = GateConfig.model_validate(content)
    except ValidationError as error:
        raise DataError(f"{path}, {TABLE}: {problem_of(error)}") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as TOML: {error}") from error
    for name in ("data", "baseline", "target"):
        if (value := getattr(table, name)) is not None and (name != "target" or (path.parent / value).exists()):
            setattr(table, name, str(path.parent / value))
    return table


def _table(path: Path) -> Any:
    """Return the value of [tool.quantdrift.gate], a table or not; None for nothing."""
    content: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    for name in ("tool", "quantdrift", "gate"):
        content = content.get(name) if isinstance(content, Mapping) else None
    return content


# --- default rules, and the metrics of a baseline -------------------------------------------------

SEARCH = (f"flip@1 no worse by {MARGIN}", "gold_lost@10 no worse by 0.05", f"ndcg@10 no worse by {MARGIN}")
CLASSES = (f"flip@1 no worse by {MARGIN}", f"accuracy no worse by {MARGIN}")
NO_LABELS = (f"flip@1 no worse by {MARGIN}",)
"""docs/reference/gate.md has their false alarms and their power. Without any difference 99 inputs show "no
worse by 0.03", and 59 "by 0.05": gold_lost@10 is defined for those of 100 that found something."""

_STORED = ("flip@1", "gold_lost@1", "gold_lost@5", "gold_lost@10", "ndcg@10", "recall@10", "mrr@10")
_STORED_CLASSES = ("flip@1", "gold_lost@1", "accuracy")


def default_rules(target: Target) -> list[Rule]:
    """The default rules, which depend on the run's labels, its ranks and its kind of answers."""
    if all(evidence.judgements is None for evidence in target.evidence):
        return [parse_rule(text) for text in NO_LABELS]
    rules = [parse_rule(text) for text in (CLASSES if _one_answer(target) else SEARCH)]
    # our own runs can be measured again with more ranks, and the gate says so; other lists cannot
    listed = all(not evidence.exact for evidence in target.evidence)
    return [rule for rule in rules if not listed or _is_stored(rule.metric, target)]


def stored_metrics(target: Target) -> list[Metric]:
    """The metrics that every baseline holds."""
    metrics = [parse_metric(name) for name in (_STORED_CLASSES if _one_answer(target) else _STORED)]
    return [*(metric for metric in metrics if _is_stored(metric, target)), NOISE]


def _is_stored(metric: Metric, target: Target) -> bool:
    depth = min((part.depth for part in target.evidence if part.cut_short), default=None)
    return depth is None or metric.cutoff + metric.family.ranks_beyond <= depth


def _one_answer(target: Target) -> bool:
    """True if each input has one answer without ranks: a class, a choice, a text."""
    return target.classes or all(part.unranked for part in target.evidence)

"""The gate's settings in `pyproject.toml`, under [tool.quantdrift.gate]."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quantdrift.errors import DataError, QuantDriftError, nearest
from quantdrift.gate.rule import Rule, parse_rule
from quantdrift.gate.slices import Slices

__all__ = ["GateConfig", "find_config", "parse_slice", "read_config"]

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
        slices={
            name: _patterns(path, name, held) for name, held in table.get("slices", {}).items()
        },
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
            f"{path}, {TABLE}: the slice {name!r} is a pattern on input ids or a list of such, say "
            f"'de-*'; got {held!r}"
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

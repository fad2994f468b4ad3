"""The tables as tables.yaml has them: what makes their rows and columns of studies."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from quantdrift_paper import allocation, damage
from quantdrift_paper.cells import ANY, by, each, mean_of, only, usual
from quantdrift_paper.latex import Column, Row, Table, escaped, lines_of

_FUNCTIONS: Mapping[str, Callable[..., Any]] = {**vars(damage), **vars(allocation)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a table of the paper is made; see tables.yaml.

    Attributes:
        said: what stands there.
        models: of the paper's table, by which notes say what is not here.
    """

    said: Mapping[str, Any]
    models: Sequence[str]

    @property
    def title(self) -> str:
        """What it shows."""
        return str(self.said["title"])

    def made(self, source: Any) -> Table | str:
        """The table of studies, or what they lack."""
        rows, columns = list(self._rows(source)), self._columns(source)
        lines = lines_of(rows, columns) if columns else []
        if not lines:
            return str(self.said["needs"])
        here = each(only(source.cells, family=(*self.said["families"],)), "model")
        notes = {
            "Not of the paper": [name for name in here if name not in self.models],
            "Of the paper's models not here": [name for name in self.models if name not in here],
        }
        return Table(
            labels=self.said["labels"],
            columns=columns,
            lines=lines,
            about=re.sub(r"\{(\w+)\}", lambda found: self._word(found[1], source, rows), self.said["about"]),
            notes=[f"{what}: {', '.join(names)}." for what, names in notes.items() if names],
            best=self.said.get("best"),
        )

    def _rows(self, source: Any) -> Iterable[Row]:
        rest = _facts(self.said["rows"])
        made = rest.pop("made", None)
        rows: Iterable[Row] = _FUNCTIONS[made](source, **rest) if made else by(source.cells, rest.pop("by"), **rest)
        return rows

    def _columns(self, source: Any) -> list[Column]:
        said = self.said["columns"]
        if isinstance(said, list):
            return [_column(column) for column in said]
        rest = _facts(said)
        made, of = rest.pop("made"), rest.pop("of", None)
        if of is None:
            columns: list[Column] = _FUNCTIONS[made](source, **rest)
            return columns
        models = _FUNCTIONS[made](source, **rest)
        return [_column(column, model) for model in models for column in of]

    def _word(self, word: str, source: Any, rows: Sequence[Row]) -> str:
        """What stands for a word in braces."""
        if word == "over":
            names = each(usual(source.cells, family=(*self.said["families"],), quantizer=ANY), "data")
            return f"Mean over {len(names)} {'corpus' if len(names) == 1 else 'corpora'} ({', '.join(names)})."
        return str(_FUNCTIONS[word](source, rows))


_DEFAULTS: tuple[Any, ...] = (".1%", {})
"""Of the form and the facts of a column."""


def _column(said: Sequence[Any], model: str | None = None) -> Column:
    head, value, form, facts = (*said, *_DEFAULTS[len(said) - 2 :])
    heads, more = (head,) if isinstance(head, str) else tuple(head), _facts(facts)
    if model is not None:
        heads, more = tuple(filter(None, (escaped(model), *heads))), {**more, "model": model}
    if not value.endswith("()"):
        return Column(heads, mean_of(value, **more), form)
    function = _FUNCTIONS[value.removesuffix("()")]
    return Column(heads, lambda row: function(row, **more), form)


def _facts(said: Mapping[str, Any]) -> dict[str, Any]:
    """Facts as code has them: several values in a tuple."""
    return {
        name: ANY if value == "any" else tuple(value) if isinstance(value, list) and name != "of" else value
        for name, value in said.items()
    }


def _read() -> dict[str, Plan]:
    content = yaml.safe_load(Path(__file__).with_name("tables.yaml").read_text(encoding="utf-8"))
    sets = content["models"]
    return {
        name: Plan(said=said, models=[model for group in said["models"] for model in sets[group]])
        for name, said in content["tables"].items()
    }


PLANS = _read()
"""Every table of the paper by its file's name."""

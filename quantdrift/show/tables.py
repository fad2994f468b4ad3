"""Tables for terminals, Markdown, pages, JSON and files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from quantdrift.base.display import clean, shorten
from quantdrift.base.errors import QuantDriftError, UnknownNameError

if TYPE_CHECKING:
    from quantdrift.metrics import Metric
    from quantdrift.statistics.estimates import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """One table. The first column and those named in `words` hold words, the others numbers.

    On a terminal, `stacked` puts the part of a cell in brackets on a line of its own, and `ruled` draws a line between
    rows whose first cells differ.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    words: Collection[str] = ()
    stacked: bool = False
    ruled: bool = False
    lines: Sequence[str] = ()
    """Sentences below this table."""
    links: Sequence[str] = ()
    """Name of the section or part that each row links to in a page."""
    on_terminal: Grid | None = None
    plain: Sequence[str] = ()
    """A terminal shows `on_terminal`, or the unwrapped lines of `plain`, in place of this table."""


Kind = Literal["words", "number", "count", "flag"]
_CELL = 32_000
"""Characters of a cell in CSV at most; a spreadsheet takes 32,767."""
_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
"""First characters of a formula in a spreadsheet."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table, for terminals, Markdown, JSON, CSV and Parquet.

    Attributes:
        title: the column's head; a column without one is in JSON and files alone.
        value: the value of a row, as a path of attributes, the key of a mapping, or a function.
        show: the function from the value to the text of a cell.
        kind: words are aligned on the left; numbers and counts on the right.
        key: name in JSON and files; by default the path of `value`. An empty one leaves the column out there.
    """

    title: str
    value: str | Callable[[Any], Any]
    show: Callable[[Any], str] = str
    _: KW_ONLY
    kind: Kind = "number"
    key: str | None = None

    @property
    def name(self) -> str:
        """The name in JSON and files; empty if the column is left out there."""
        if self.key is not None:
            return self.key
        return self.value if isinstance(self.value, str) else ""

    def of(self, row: Any) -> Any:
        """The value of a row."""
        if not isinstance(self.value, str):
            return self.value(row)
        return row.get(self.value) if isinstance(row, Mapping) else attrgetter(self.value)(row)


def table(columns: Sequence[Column], rows: Sequence[Any], **more: Any) -> Grid:
    """Make the table of some rows; `more` are further fields of the Grid."""
    seen = [column for column in columns if column.title]
    return Grid(
        head=[column.title for column in seen],
        rows=[[column.show(column.of(row)) for column in seen] for row in rows],
        words={column.title for column in seen if column.kind == "words"},
        **more,
    )


def metric_columns(metrics: Iterable[Metric], of: Callable[[Any], Mapping[str, Estimate]]) -> list[Column]:
    """One column per metric, with intervals, which JSON leaves out; `of` returns the estimates of a row by name."""
    from quantdrift.metrics.numbers import cell  # noqa: PLC0415 -- scipy

    def column(metric: Metric) -> Column:
        return Column(str(metric), lambda row: of(row)[str(metric)], lambda value: cell(metric, value), key="")

    return [column(metric) for metric in metrics]


def records(columns: Sequence[Column], rows: Sequence[Any]) -> list[dict[str, Any]]:
    """The rows as JSON values."""
    from quantdrift.statistics.estimates import as_json  # noqa: PLC0415 -- scipy

    return [as_json({column.name: column.of(row) for column in columns if column.name}) for row in rows]


def write_table(columns: Sequence[Column], rows: Sequence[Any], path: Path) -> None:
    """Write rows into a .csv or .parquet file.

    In CSV a text that begins like a formula gets an apostrophe, so that no spreadsheet runs it.

    Raises:
        QuantDriftError: the file has another suffix, or cannot be written.
    """
    import pyarrow as pa  # noqa: PLC0415 -- slow to load
    from pyarrow import csv, parquet  # noqa: PLC0415

    from quantdrift.base.records import whole_file  # noqa: PLC0415 -- pydantic

    writers = {".csv": csv.write_csv, ".parquet": parquet.write_table}
    if path.suffix.lower() not in writers:
        raise QuantDriftError(f"expected a table named .csv or .parquet; got {str(path)!r}")
    kinds = {"words": pa.string(), "count": pa.int64(), "number": pa.float64(), "flag": pa.bool_()}
    schema = pa.schema([(column.name, kinds[column.kind]) for column in columns if column.name])
    values = records(columns, rows)
    if path.suffix.lower() == ".csv":
        values = [{name: _csv_cell(value) for name, value in row.items()} for row in values]
    content = pa.Table.from_pylist(values, schema=schema)
    try:
        with whole_file(path) as partial:
            writers[path.suffix.lower()](content, partial)
    except OSError as error:
        raise QuantDriftError(f"{path} was not written: {error.strerror or error}. Choose another place") from error


def _csv_cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    line = shorten(clean(value), _CELL)
    return f"'{line}" if line.startswith(_FORMULA) else line


def metric_grid(estimates: Mapping[str, Estimate], title: str = "") -> Grid:
    """Value and interval of every metric.

    On a terminal each metric has its meaning, and metrics that are undefined for one reason share a row. A metric of a
    package that is not installed here is shown without a value.
    """
    from quantdrift.metrics import parse_metric  # noqa: PLC0415 -- scipy
    from quantdrift.metrics.numbers import has_value, show, show_interval  # noqa: PLC0415

    metrics: dict[str, Metric] = {}
    for name in estimates:
        with suppress(UnknownNameError):
            metrics[name] = parse_metric(name)

    def reason(item: tuple[str, Estimate]) -> str:
        if item[0] not in metrics:
            return "no package that is installed here has this metric"
        return "" if has_value(item[1]) else str(item[1].to_json()["reason"])

    head, rows, meanings, explained = ["metric", "value", "95 % interval", "n"], [], [], ""
    for why, group in groupby(estimates.items(), key=reason):
        items = list(group)
        for name, estimate in items:
            metric = metrics.get(name)
            told = ("-", why) if metric is None else (show(metric, estimate), why or show_interval(metric, estimate))
            rows.append(row := [name, *told, f"{estimate.n:,}"])
            if metric and not why:  # the members of a family follow each other and share one explanation
                meanings.append([*row, metric.family.summary if metric.family.name != explained else ""])
                explained = metric.family.name
        if why:
            more = f" and {len(items) - 1} more" if len(items) > 1 else ""
            meanings.append([f"{items[0][0]}{more}", "-", "", "", why])
    last = "what it says"
    on_terminal = Grid(title=title, head=[*head, last], rows=meanings, words={last})
    return Grid(title=title, head=head, rows=rows, on_terminal=on_terminal)

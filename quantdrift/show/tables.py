"""Tables, as terminals, Markdown and pages show them."""

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
    """One table. The first column holds words; the others numbers, unless they are named in `words`.

    With `stacked`, what is in brackets stands below the rest of a cell on a terminal. With `ruled` a line separates
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
    """Where each row leads in a page: names of sections or of parts; empty for none."""
    on_terminal: Grid | None = None
    plain: Sequence[str] = ()
    """What a terminal shows in its place, if that is another one, or lines that are not broken."""


Kind = Literal["words", "number", "count", "flag"]
_CELL = 32_000
"""Characters of a cell in CSV; a spreadsheet takes 32,767."""
_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
"""What a spreadsheet takes for the beginning of a formula."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table, stated once for terminals, Markdown, JSON, CSV and Parquet.

    Attributes:
        title: its head where people read it; a column without one is in JSON and files alone.
        value: of a row: a path of attributes, the key of a mapping, or a function.
        show: turns the value into the text of a cell.
        kind: words are written from the left; numbers and counts from the right.
        key: its name in JSON and files: the path of `value` if not given. An empty one leaves it out there.
    """

    title: str
    value: str | Callable[[Any], Any]
    show: Callable[[Any], str] = str
    _: KW_ONLY
    kind: Kind = "number"
    key: str | None = None

    @property
    def name(self) -> str:
        """Its name in JSON and files; empty if it is not there."""
        if self.key is not None:
            return self.key
        return self.value if isinstance(self.value, str) else ""

    def of(self, row: Any) -> Any:
        """The value that a row has in this column."""
        if not isinstance(self.value, str):
            return self.value(row)
        return row.get(self.value) if isinstance(row, Mapping) else attrgetter(self.value)(row)


def table(columns: Sequence[Column], rows: Sequence[Any], **more: Any) -> Grid:
    """Rows as people read them; `more` are further parts of the Grid."""
    seen = [column for column in columns if column.title]
    return Grid(
        head=[column.title for column in seen],
        rows=[[column.show(column.of(row)) for column in seen] for row in rows],
        words={column.title for column in seen if column.kind == "words"},
        **more,
    )


def metric_columns(metrics: Iterable[Metric], of: Callable[[Any], Mapping[str, Estimate]]) -> list[Column]:
    """A column a metric, with its interval, where `of` gives a row's estimates by name; JSON has these as a whole."""
    from quantdrift.metrics.numbers import cell  # noqa: PLC0415 -- scipy

    def column(metric: Metric) -> Column:
        return Column(str(metric), lambda row: of(row)[str(metric)], lambda value: cell(metric, value), key="")

    return [column(metric) for metric in metrics]


def records(columns: Sequence[Column], rows: Sequence[Any]) -> list[dict[str, Any]]:
    """Rows as JSON has them."""
    from quantdrift.statistics.estimates import as_json  # noqa: PLC0415 -- scipy

    return [as_json({column.name: column.of(row) for column in columns if column.name}) for row in rows]


def write_table(columns: Sequence[Column], rows: Sequence[Any], path: Path) -> None:
    """Write rows into .csv that no spreadsheet runs, or into .parquet, which DuckDB and pandas read.

    In CSV a text that begins like a formula gets an apostrophe.

    Raises:
        QuantDriftError: the name ends in something else, or it cannot be written.
    """
    import pyarrow as pa  # noqa: PLC0415 -- slow to load
    from pyarrow import csv, parquet  # noqa: PLC0415

    from quantdrift.base.records import whole_file  # noqa: PLC0415 -- pydantic

    writers = {".csv": csv.write_csv, ".parquet": parquet.write_table}
    if path.suffix.lower() not in writers:
        raise QuantDriftError(f"the name of a table tells its format: expected .csv or .parquet; got {str(path)!r}")
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
    """Value and interval of every metric; on a terminal its meaning too, and what is undefined for one reason once.

    A run has metrics of the packages that were installed where it was measured.
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
            if metric and not why:  # members of a family stand beside each other: one explanation for all of them
                meanings.append([*row, metric.family.summary if metric.family.name != explained else ""])
                explained = metric.family.name
        if why:
            more = f" and {len(items) - 1} more" if len(items) > 1 else ""
            meanings.append([f"{items[0][0]}{more}", "-", "", "", why])
    last = "what it says"
    on_terminal = Grid(title=title, head=[*head, last], rows=meanings, words={last})
    return Grid(title=title, head=head, rows=rows, on_terminal=on_terminal)

"""The token embedding matrix, rounded to nearest with a scale for each row."""

from collections.abc import Iterator, Mapping
from typing import Any

from quantdrift.base.text import some
from quantdrift.kinds.stage import Advice, Option, Stage


def _lines(table: Mapping[str, Any]) -> Iterator[str]:
    tied = f", and with it {some(table['tied'])}, tied to it" if table["tied"] else ""
    yield f"token embeddings ({some(table['tables'])}) at {table['bits']} bits, a scale for each row{tied}"


STAGE = Stage(
    what="the token embedding matrix",
    kind="model",
    place=20,
    work="quantdrift.builtin.table.work:Table",
    options={"table": Option(pattern="8|4", values="8 or 4, the bits of the token embedding matrix")},
    before_layers=True,
    repair_options=({"table": "8"},),
    remedies=lambda scheme: [scheme.with_option("table", "8")] if scheme.option("table") else [],
    can_save=True,
    advice=lambda _: Advice(what="Give the token embeddings more bits (+table=8), or leave them at full precision."),
    record_key="embedding_table",
    run_lines=_lines,
)

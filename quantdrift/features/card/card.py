"""The card of a quantized model on the Hugging Face hub: a section of README.md, and what it was made of."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import yaml

from quantdrift.base.display import clean, markdown_table, prose
from quantdrift.base.errors import QuantDriftError, RunError
from quantdrift.metrics import Metric, parse_metric
from quantdrift.metrics.base import estimates
from quantdrift.metrics.numbers import cell, show
from quantdrift.runs.folder import Run, refuse_copies
from quantdrift.runs.identity import Identity, classifies
from quantdrift.runs.verdict import verdict
from quantdrift.show.tables import Column, table
from quantdrift.spec.grammar import Spec, parse_pair
from quantdrift.statistics.estimates import Estimate

TITLE = "## What quantization changed"
_FLIP, _LOST = map(parse_metric, ("flip@1", "gold_lost@1"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A run in the card.

    Attributes:
        data: name of the data.
        scheme: name of the quantized version.
        answer: the word for a model's answer: "class" or "first result".
        quality: nDCG@10 or accuracy, of the reference and of the candidate.
        run: the run.
        estimates: the estimate of each metric.
    """

    data: str
    scheme: str
    answer: str
    quality: tuple[Metric, Metric]
    run: Run
    estimates: Mapping[Metric, Estimate]

    @property
    def bits(self) -> str:
        """Bits per weight, scales counted."""
        bits = (self.run.record.get("bits_per_weight") or {}).get("linear_with_scales")
        return "-" if bits is None else f"{bits:.4g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The parts of README.md.

    Attributes:
        section: the section, as Markdown.
        metadata: the front matter, `base_model`; empty if the hub does not have the model.
    """

    section: str
    metadata: Mapping[str, Any]

    @property
    def text(self) -> str:
        """A README.md with these parts alone."""
        front = yaml.safe_dump(dict(self.metadata), sort_keys=False, allow_unicode=True, width=math.inf)
        return f"---\n{front}---\n\n{self.section}\n" if self.metadata else f"{self.section}\n"


def card_of(runs: Sequence[Run], *, base_model: str | None = None) -> Card:
    """The card of some runs of one model.

    Args:
        runs: runs of one reference, on any data, with any schemes.
        base_model: id of the reference on the hub; by default that in the runs, if there is one.

    Raises:
        RunError: the runs are of several models, or two are copies of one.
    """
    refuse_copies(runs)
    first = Identity.of(runs[0].record)
    for run in runs[1:]:
        if differs := first.differences(Identity.of(run.record), ("reference", "name"), sides=("here", "there")):
            raise RunError(
                f"expected runs of one model; {runs[0].path} (here) and {run.path} (there) differ: {differs[0]}"
            )
    rows = sorted(map(_row, runs), key=lambda row: row.data)
    model = runs[0].record.get("model") or {}
    base = base_model or (model.get("canonical") if model.get("kind") in {"hub", "embedded"} else None)
    metadata = {"base_model": clean(str(base)), "base_model_relation": "quantized"} if base else {}
    parts = [[row for row in rows if row.answer == answer] for answer in sorted({row.answer for row in rows})]
    return Card(section="\n\n".join([TITLE, *map(_table, parts), "\n".join(_meanings(rows))]), metadata=metadata)


def _row(run: Run) -> Row:
    classes, data = classifies(run.record), run.record["data"]
    name = "accuracy" if classes else "ndcg@10"
    quality = parse_metric(f"reference.{name}"), parse_metric(name)
    metrics = [_FLIP, _LOST, *quality]
    part = f" ({data['split']})" if data.get("split") not in {None, "test"} else ""
    return Row(
        data=clean(f"{data['name']}{part}"),
        scheme=_scheme_of(run.record),
        answer="class" if classes else "first result",
        quality=quality,
        run=run,
        estimates=dict(zip(metrics, estimates(metrics, run.evidence()), strict=True)),
    )


def _scheme_of(record: Mapping[str, Any]) -> str:
    """Name of the quantized version, without folders and addresses: the scheme, or the checkpoint's own name."""
    try:
        pair = parse_pair(record["spec"])
    except QuantDriftError:  # two finished runs have names of any form
        return clean(_last(str(record["spec"]).rpartition(" vs ")[2]))
    return str(pair.scheme) if isinstance(pair, Spec) else clean(_last(pair.candidate))


def _last(place: str) -> str:
    """The end of a path or an address.

    >>> _last("./models/a-gptq/"), _last("openai:http://host/v1#served")
    ('a-gptq', 'served')
    """
    return re.split(r"[/\\#]", place.rstrip("/\\"))[-1]


def _table(rows: Sequence[Row]) -> str:
    """One row per run; a column that is empty for all of them is left out."""
    answer, (before, after) = rows[0].answer, rows[0].quality
    quality = "accuracy" if answer == "class" else "nDCG@10"
    columns = [
        Column("data", "data"),
        Column("quantized as", "scheme"),
        Column("bits per weight", "bits"),
        Column(f"another {answer}", lambda row: row.estimates[_FLIP], partial(cell, _FLIP)),
        Column(f"right {answer} lost", lambda row: row.estimates[_LOST], partial(cell, _LOST)),
        Column(f"{quality}, full precision", lambda row: row.estimates[before], partial(show, before)),
        Column(f"{quality}, quantized", lambda row: row.estimates[after], partial(show, after)),
        Column("verdict", lambda row: verdict(row.run.record).word),
    ]
    grid = table([column for column in columns if any(column.show(column.of(row)) != "-" for row in rows)], rows)
    return markdown_table(grid.head, grid.rows, names={"data", "quantized as"})


def _meanings(rows: Sequence[Row]) -> Iterator[str]:
    """Explain the columns for users of the model."""
    for said in dict.fromkeys(text for row in rows for text in row.run.record["data"].get("warnings", ())):
        if said.startswith(("a quick try", "full precision is")):
            yield f"- {prose(clean(said))}."
    yield (
        "- *Another*: the share of all inputs that get another answer than at full precision, better or worse. "
        "*Right ... lost*: the share of the inputs with a right answer that lost it."
    )
    yield "- In brackets: 95 % intervals, which hold for inputs like these; your own may be harder."
    versions = {str((row.run.record.get("versions") or {}).get("quantdrift") or "") for row in rows}
    yield f"- Measured by quantdrift {prose(clean(', '.join(sorted(versions))))}."

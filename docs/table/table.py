"""The table of docs/table: `python docs/table/table.py RUN...` adds finished runs, a file each, and writes the page.

Without arguments only the page is written. A row holds what a run folder says; nothing is typed by hand.
"""

import json
import re
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from quantdrift.base.text import percent
from quantdrift.runs.folder import read_run
from quantdrift.runs.identity import classifies, signature
from quantdrift.statistics.estimates import Estimate
from quantdrift.statistics.standing import Tolerances, standing

HERE = Path(__file__).parent
PAGE, ROWS = HERE / "README.md", HERE / "rows"
HEAD = """# Which formats change which answers?

Every row is a run of quantdrift: a model, a scheme, a corpus, and what the scheme changed. "top-1 changes" is the share
of the inputs whose first answer is another one than at full precision, "gold lost" the share of those with a relevant
first answer that lost it, both with 95 % intervals; the verdict follows
[one rule](../reference/gate.md#the-verdict-of-one-run), which here takes "gold lost" for the right answers that are
lost: of a query with several relevant documents that counts an exchange of two of them, too. Bits are per weight of the
linear layers, scales counted; of an index it is what it stores. The corpora are small, so a rate of one row is not that
of another corpus. `small-colbert`
(a vector for each token) and `small-splade` (weights of words) are trained from MiniLM in minutes, by
`docs/measured/recipes/train_rows.py`: they stand for their kinds, and are no products. On the website the field above
the tables filters rows.

To add a row: measure, then `python docs/table/table.py RUN`, and commit the file that it writes to `docs/table/rows/`.
The file's `signature` names what decides the figures.
"""


CORPORA = {
    "PythonDocsSmall": "378 docstrings of Python's standard library, found by first sentences; in the package",
    "cranfield": "1,400 abstracts on aerodynamics (Cranfield)",
    "med": "1,033 abstracts on medicine (MED)",
    "scifact": "5,183 abstracts of research papers (SciFact)",
    "scifact1400": "1,400 of SciFact's abstracts: the 283 that its labels name, and the first of the others",
    "xquad_en": "240 paragraphs of Wikipedia (XQuAD, the English part)",
}
"""What each corpus is."""


class Share(BaseModel):
    """A rate or a change with its 95 % interval."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    value: float
    low: float | None = None
    high: float | None = None
    n: int


class Row(BaseModel):
    """What the table says of one run."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    model: str
    scheme: str
    data: str
    bits: float | None
    bytes_per_document: float | None
    flips: Share
    gold_lost: Share | None
    quality: Share | None
    signature: str

    @property
    def verdict(self) -> str:
        """What the figures come to; "gold lost" stands for the right answers that are lost."""
        parts = {"flip": self.flips, "lost": self.gold_lost, "change": self.quality}
        known: dict[str, Any] = {
            name: Estimate(**part.model_dump()) for name, part in parts.items() if part is not None
        }
        return standing(**known, tolerances=Tolerances()).word

    @property
    def file(self) -> Path:
        """Where the row lies."""
        return ROWS / (re.sub(r"[^A-Za-z0-9.@+=_,-]+", "_", f"{self.data}_{self.model}@{self.scheme}") + ".json")


def row_of(folder: Path) -> Row:
    """The row of a finished run."""
    record = read_run(folder).record
    metrics, (model, _, scheme) = record["metrics"], record["spec"].rpartition("@")
    named = {"flips": "flip@1", "gold_lost": "gold_lost@1"}
    named["quality"] = "change.accuracy" if classifies(record) else "change.ndcg@10"
    shares: dict[str, Any] = {}
    for field, name in named.items():
        entry = metrics.get(name) or {}
        known = entry.get("value") is not None
        shares[field] = {key: entry.get(key) for key in Share.model_fields} if known else None
    bits = record.get("bits_per_weight") or {}
    index = (record.get("deployment") or {}).get("index") or {}
    return Row.model_validate(
        {
            "model": Path(model).name,
            "scheme": scheme,
            "data": record["data"]["name"],
            "bits": bits.get("linear_with_scales"),
            "bytes_per_document": index.get("bytes_per_document"),
            "signature": signature(record),
            **shares,
        }
    )


def page(rows: list[Row]) -> str:
    """The page: a table for each model and corpus, the fewest bits first."""
    lines = [HEAD]
    ordered = sorted(
        rows, key=lambda row: (row.model, row.data, row.bits or 0.0, row.bytes_per_document or 0.0, row.scheme)
    )
    for (model, data), group in groupby(ordered, key=lambda row: (row.model, row.data)):
        listed = list(group)
        lines += [f"## {model} on {data}", "", f"{listed[0].flips.n:,} inputs. The corpus: {CORPORA[data]}.", ""]
        lines += [
            "| scheme | bits, bytes | top-1 changes | gold lost | quality moves by | verdict |",
            "|---|---|---|---|---|---|",
        ]
        for row in listed:
            moved = "" if row.quality is None else f"{row.quality.value:+.4f}"
            cells = (f"`{row.scheme}`", _cost(row), _share(row.flips), _share(row.gold_lost))
            lines.append(f"| {' | '.join((*cells, moved, row.verdict))} |")
        lines.append("")
    return "\n".join(lines)


def _cost(row: Row) -> str:
    if row.bytes_per_document is not None:
        return f"{row.bytes_per_document:,.0f} bytes a document"
    return f"{row.bits:.2f} bits" if row.bits else ""


def _share(share: Share | None) -> str:
    if share is None:
        return ""
    ends = "" if share.low is None or share.high is None else f" ({100 * share.low:.1f} to {100 * share.high:.1f})"
    return f"{percent(share.value)}{ends}"


def rows_there() -> list[Row]:
    """All rows, checked against the schema."""
    return [Row.model_validate_json(file.read_text(encoding="utf-8")) for file in sorted(ROWS.glob("*.json"))]


if __name__ == "__main__":
    for folder in map(Path, sys.argv[1:]):
        row = row_of(folder)
        row.file.write_text(json.dumps(row.model_dump(), indent=1) + "\n", encoding="utf-8")
        print(row.file)  # noqa: T201 -- a script
    PAGE.write_text(page(rows_there()), encoding="utf-8")

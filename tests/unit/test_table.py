"""The table of formats: rows that fit the schema, a page that is made of them, and a row from a finished run."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from support.comparison_samples import evidence_of, flipped, run_of, scores
from support.places import ROOT, module_at


@pytest.fixture(scope="module")
def table() -> Any:
    return module_at(ROOT / "docs" / "table" / "table.py")


def test_the_page_is_that_of_the_rows(table: Any) -> None:
    rows = table.rows_there()
    assert table.PAGE.read_text(encoding="utf-8") == table.page(rows), "python docs/table/table.py"
    assert all(row.file.exists() for row in rows)
    assert len({row.signature for row in rows}) == len(rows) == len(list(table.ROWS.glob("*.json")))


def test_a_row_is_what_the_run_says(table: Any, tmp_path: Path) -> None:
    figures = {
        "flip@1": {"value": 0.065, "low": 0.04, "high": 0.11, "n": 60},
        "change.ndcg@10": {"value": None, "n": 0},
    }
    evidence = evidence_of(scores(), flipped(scores(), range(4)))
    run = run_of(tmp_path / "run", evidence, metrics=figures, bits_per_weight={"linear_with_scales": 4.25})
    row = table.row_of(run.path)
    assert (row.model, row.scheme, row.data, row.quality) == ("minilm", "W4-g64-rtn", "corpus", None)
    assert row.signature.startswith("quantdrift:")
    with pytest.raises(KeyError):
        table.page([row])  # a reader wants to know what the corpus is
    table.CORPORA["corpus"] = "60 documents"
    line = next(line for line in table.page([row]).splitlines() if row.scheme in line)
    assert line == f"| `W4-g64-rtn` | 4.25 bits | 6.5 % (4.0 to 11.0) |  |  | {row.verdict} |"
    with pytest.raises(ValidationError):
        table.Row.model_validate({**json.loads(row.model_dump_json()), "flips_at_1": 0.1})

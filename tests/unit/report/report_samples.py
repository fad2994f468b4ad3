"""Small finished runs for reports: four queries whose figures can be computed by hand."""

import re
from pathlib import Path
from typing import Any

import numpy as np
from markdown_it import MarkdownIt

from quantdrift.evidence.record import Noise
from quantdrift.runs.folder import Run, write_run
from support.small_evidence import CANDIDATE, QRELS, REFERENCE, evidence_of
from support.written_samples import record

N = len(REFERENCE)
HUB = {"name": "minilm", "canonical": "org/MiniLM", "kind": "embedded", "fingerprint": "weights"}
SHORT = {"versions": {"quantdrift": "0.1.0"}, "quantization": {"quantizer": "rtn"}}
QUIET = Noise(flips=np.zeros(N, dtype=bool), epsilon=np.zeros(N, dtype=np.float32))


def written(
    folder: Path,
    scheme: str = "W4-g128-rtn",
    data: str = "corpus",
    *,
    same: bool = False,
    labels: bool = True,
    **more: Any,
) -> Run:
    """A run of two flips in four queries, or with none; of three relevant first answers two are lost."""
    base = record(f"minilm@{scheme}", classes=False)
    described = {**base["data"], "name": data, "fingerprint": data, "n_queries": N, "n_documents": 4, "warnings": []}
    candidate, qrels = REFERENCE if same else CANDIDATE, QRELS if labels else None
    evidence = evidence_of(REFERENCE, candidate, k=4, qrels=qrels, noise=QUIET)
    return write_run(folder, evidence=evidence, record={**base, "model": HUB, "data": described, **SHORT, **more})


def rendered(text: str) -> str:
    """Markdown as a page, by a reader of it that is not ours."""
    return str(MarkdownIt("commonmark", {"html": True}).enable("table").render(text))


def tables(page: str) -> list[list[list[str]]]:
    """The cells of every table of a page, as a reader sees them."""
    rows = [re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL) for table in page.split("</table>")[:-1]]
    cells = [[re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row, re.DOTALL) for row in table] for table in rows]
    return [[[re.sub("<[^>]*>", "", cell) for cell in row] for row in table] for table in cells]

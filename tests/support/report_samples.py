"""Small finished runs for reports: four queries whose figures can be computed by hand."""

from pathlib import Path
from typing import Any

import numpy as np

from quantdrift.evidence.record import Noise
from quantdrift.runs.folder import Run, write_run
from support.small_evidence import CANDIDATE, QRELS, REFERENCE, evidence_of
from support.written_samples import record

N = len(REFERENCE)
QUIET = Noise(flips=np.zeros(N, dtype=bool), epsilon=np.zeros(N, dtype=np.float32))


def written(
    folder: Path,
    scheme: str = "W4-g128-rtn",
    data: str = "corpus",
    *,
    model: dict[str, Any] | None = None,
    same: bool = False,
    labels: bool = True,
    **changes: Any,
) -> Run:
    """A run of two flips in four queries, or with none; of three relevant first answers two are lost."""
    base = record(f"minilm@{scheme}", classes=False)
    hub = {"name": "minilm", "canonical": "org/MiniLM", "kind": "embedded", "fingerprint": "weights"}
    known = {**base["data"], "name": data, "fingerprint": data, "n_queries": N, "n_documents": 4, "warnings": []}
    evidence = evidence_of(
        REFERENCE, REFERENCE if same else CANDIDATE, k=4, qrels=QRELS if labels else None, noise=QUIET
    )
    whole = {**base, "model": model or hub, "data": known, "versions": {"quantdrift": "0.1.0"}}
    whole |= {"quantization": {"quantizer": "rtn"}, **changes}
    return write_run(folder, evidence=evidence, record=whole)

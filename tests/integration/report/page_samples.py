"""Small runs to make reports of, with the data that their texts come from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from quantdrift.asking.opening import describe_data
from quantdrift.data.retrieval import read_beir_folder
from quantdrift.evidence.record import Evidence, Noise
from quantdrift.measuring.flow import assemble
from quantdrift.metrics import measure
from quantdrift.runs.folder import Run, write_run
from quantdrift.scoring.streamed import score_matrix
from quantdrift.statistics.estimates import as_json
from support.beir_folder import numbered, write_beir_folder
from support.routing_samples import classified, logits
from support.written_samples import record


def _written(folder: Path, evidence: Evidence, **changes: Any) -> Run:
    metrics = as_json(measure(evidence))
    whole = {**record("minilm@W4-g128-rtn"), "metrics": metrics, "quantization": {"quantizer": "rtn"}, **changes}
    return write_run(folder, evidence=evidence, record=whole)


def search_run(
    folder: Path,
    queries: Mapping[str, str] | None = None,
    documents: Mapping[str, str] | None = None,
    *,
    noise: float = 0.3,
    **changes: Any,
) -> Run:
    """A run on data of its own, in `folder`/run and `folder`/data; every query is about one document."""
    queries = queries or numbered("q", [f"query number {row}" for row in range(120)])
    documents = documents or numbered("d", [f"text of document {row}, in a few words" for row in range(15)])
    names = list(documents)
    rng = np.random.default_rng(0)
    about = rng.integers(0, len(names), len(queries))
    labels = {query: [names[document]] for query, document in zip(queries, about, strict=True)}
    dataset = read_beir_folder(write_beir_folder(folder / "data", queries, documents, labels))
    reference = rng.normal(size=(len(queries), len(names)))
    reference[np.arange(len(queries)), about] += 2
    evidence = assemble(
        score_matrix(reference, reference + noise * rng.normal(size=reference.shape)),
        input_ids=dataset.query_ids,
        item_ids=dataset.document_ids,
        qrels=dataset.qrels,
        noise=Noise(flips=np.arange(len(queries)) == 3, epsilon=np.zeros(len(queries), np.float32)),
    )
    data = {**describe_data(dataset), "path": str(folder / "data")}
    return _written(folder / "run", evidence, **{"data": data, "settings": {"k": evidence.depth}, **changes})


def classes_run(folder: Path) -> Run:
    """A classification run of 40 inputs whose data lie nowhere."""
    return _written(folder / "classes", classified(*logits(40, n_classes=3, noise=2)), settings={"reading": "logits"})

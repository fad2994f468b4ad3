"""Small runs to make reports of, with the data that their texts come from."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quantdrift.data.retrieval import read_beir_folder
from quantdrift.engine.flow import assemble
from quantdrift.engine.opening import describe_data
from quantdrift.engine.scoring.streamed import score_matrix
from quantdrift.evidence.record import Noise
from quantdrift.metrics import measure
from quantdrift.runs.folder import Run, write_run
from quantdrift.statistics.estimates import as_json
from support.beir_folder import numbered, write_beir_folder

BITS = {"linear": 4.0, "linear_with_scales": 4.125, "all_parameters": 18.6, "n_quantized": 10, "n_parameters": 20}


def search_run(
    folder: Path,
    queries: Mapping[str, str] | None = None,
    documents: Mapping[str, str] | None = None,
    *,
    noise: float = 0.3,
    seed: int = 0,
    qrels: Mapping[str, list[str]] | None = None,
    **record: Any,
) -> Run:
    """A run on data of its own, in `folder`/run and `folder`/data; every query is about one document."""
    queries = queries or numbered("q", [f"query number {row}" for row in range(120)])
    documents = documents or numbered("d", [f"text of document {row}, in a few words" for row in range(15)])
    names = list(documents)
    rng = np.random.default_rng(seed)
    about = rng.integers(0, len(names), len(queries))
    labels = {query: [names[one]] for query, one in zip(queries, about, strict=True)} if qrels is None else qrels
    dataset = read_beir_folder(write_beir_folder(folder / "data", queries, documents, labels))
    reference = rng.normal(size=(len(queries), len(names)))
    reference[np.arange(len(queries)), about] += 2
    candidate = reference + noise * rng.normal(size=reference.shape)
    floor = Noise(flips=np.arange(len(queries)) == 3, epsilon=np.zeros(len(queries), np.float32))
    evidence = assemble(
        score_matrix(reference, candidate),
        input_ids=dataset.query_ids,
        item_ids=dataset.document_ids,
        qrels=dataset.qrels,
        noise=floor,
    )
    whole = {
        "spec": "minilm@W4-g128-rtn",
        "data": {**describe_data(dataset), "path": str(folder / "data")},
        "bits_per_weight": BITS,
        "metrics": as_json({name: each.to_json() for name, each in measure(evidence).items()}),
        **record,
    }
    return write_run(folder / "run", evidence=evidence, record=whole)


def classes_run(folder: Path, labels: Sequence[str] = ("sports", "politics", "weather")) -> Run:
    """A classification run of 40 inputs whose data lie nowhere."""
    rng = np.random.default_rng(1)
    reference = 3 * rng.normal(size=(40, len(labels)))
    names = [f"text {row}" for row in range(40)]
    right = reference.argmax(axis=1)
    evidence = assemble(
        score_matrix(reference, reference + 2 * rng.normal(size=reference.shape)),
        input_ids=names,
        item_ids=list(labels),
        qrels={name: {labels[place]: 1} for name, place in zip(names, right, strict=True)},
    )
    record = {
        "spec": "distil@W4-g128-rtn",
        "data": {
            "name": "news",
            "kind": "classification",
            "inputs": "texts",
            "n_inputs": 40,
            "n_classes": len(labels),
            "warnings": [],
        },
        "settings": {"reading": "logits"},
        "bits_per_weight": BITS,
        "metrics": as_json({name: each.to_json() for name, each in measure(evidence).items()}),
    }
    return write_run(folder / "classes", evidence=evidence, record=record)

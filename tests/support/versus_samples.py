"""Eight sentences, runs of two models on them, and the scores that a model gives by itself."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from torch import Tensor

from quantdrift.asking.ask import Ask
from quantdrift.asking.ensure import ensure
from quantdrift.base.progress import Silent
from quantdrift.data.labelled import Dataset
from quantdrift.data.retrieval import RetrievalDataset, facts_of
from quantdrift.finished.shortlist import Shortlist
from quantdrift.models.inputs import Settings
from quantdrift.models.store import EmbeddingStore
from quantdrift.runs.folder import Run
from quantdrift.spec.grammar import Spec, Versus, parse

QUERIES = ("Which animal gives milk?", "How is bread baked?", "Why did the engine stop?")
DOCUMENTS = (
    "The cow is milked twice a day.",
    "Goats and sheep are kept for their milk.",
    "Knead the dough and let it rise for an hour.",
    "Bread is baked in a hot oven with a little steam.",
    "The motor stalled because the fuel pump failed.",
    "A broken belt let the engine overheat.",
    "Trains to the coast depart from platform four.",
    "Inflation eats up savings.",
)
DATASET = RetrievalDataset.of(
    {f"q{number}": text for number, text in enumerate(QUERIES)},
    {f"d{number}": text for number, text in enumerate(DOCUMENTS)},
    {f"q{q}": {f"d{2 * q}": 1, f"d{2 * q + 1}": 1} for q in range(len(QUERIES))},
    name="eight sentences",
)
SETTINGS = Settings(k=8, batch_size=8, noise_floor=False)


def run_pair(
    pair: Spec | Versus, dataset: Dataset, *, out: Path, shortlist: Shortlist | None = None, **how: Any
) -> Run:
    """A run that is measured, whatever lies at its place."""
    ask = Ask(pair=pair, data=facts_of(dataset), dataset=dataset, shortlist=shortlist)
    return ensure(ask, out, reuse=False, **how)


def run_any(
    pair: Spec | Versus,
    out: Path,
    *,
    dataset: RetrievalDataset = DATASET,
    store: EmbeddingStore | None = None,
    settings: Settings = SETTINGS,
    **options: Any,
) -> Run:
    how: Any = {"settings": settings, "store": store or EmbeddingStore(None), "progress": Silent(), "device": "cpu"}
    return run_pair(pair, dataset, out=out, **{**how, **options})


def run_two(reference: str | Path, candidate: Path, out: Path, *, store: EmbeddingStore | None = None) -> Run:
    return run_any(Versus(reference=str(reference), candidate=str(candidate)), out, store=store)


def run_w4(folder: Path) -> Run:
    """A model rounded to four bits, in the folder `run` beside it."""
    return run_any(parse(f"{folder}@W4-rtn"), folder.parent / "run")


def change(file: Path, **settings: Any) -> None:
    """Give a JSON file other values for some keys."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))


def scores(model: Any) -> NDArray[np.float64]:
    queries, documents = (
        np.asarray(encode(list(texts)), dtype=np.float64)
        for encode, texts in ((model.encode_query, QUERIES), (model.encode_document, DOCUMENTS))
    )
    return np.asarray(queries @ documents.T)


def with_weights(folder: Path, weights: Mapping[str, Tensor]) -> Any:
    model = SentenceTransformer(str(folder), device="cpu")
    modules = dict(model[0].auto_model.named_modules())
    for name, weight in weights.items():
        assert modules[name].weight.shape == weight.shape
        modules[name].weight.data = weight
    return model


def check(
    run: Run,
    reference: NDArray[Any],
    candidate: NDArray[Any],
    tolerance: float,
    names: Sequence[str] = DATASET.document_ids,
) -> None:
    """The evidence is that of two score matrices, whose columns have these names; NaN is of an item left out."""
    evidence, delta = run.evidence(), candidate - reference
    columns = np.array([list(names).index(name) for name in evidence.item_ids])
    np.testing.assert_allclose(evidence.delta_max, np.nanmax(delta, axis=1), atol=tolerance)
    np.testing.assert_allclose(evidence.delta_min, np.nanmin(delta, axis=1), atol=tolerance)
    assert (evidence.n_items == (~np.isnan(delta)).sum(axis=1)).all()
    for top, arm in ((evidence.reference_top, reference), (evidence.candidate_top, candidate)):
        for kept, scores in ((top.reference_scores, reference), (top.candidate_scores, candidate)):
            in_order = np.take_along_axis(scores, columns[top.items], axis=1)
            np.testing.assert_allclose(kept, np.where(top.items < 0, np.nan, in_order), rtol=1e-5, atol=tolerance)
        best = arm[np.arange(len(arm)), columns[top.items[:, 0]]]
        np.testing.assert_allclose(best, np.nanmax(arm, axis=1), atol=tolerance)

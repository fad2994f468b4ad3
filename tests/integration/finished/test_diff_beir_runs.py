"""A run folder that beir's search saved beside one of `quantdrift run` on the same texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("beir")

from beir.retrieval.evaluation import EvaluateRetrieval

from quantdrift import perturbation
from quantdrift.engine.inputs import Settings
from quantdrift.engine.run import run as run_pair
from quantdrift.engine.store import EmbeddingStore
from quantdrift.finished.diff import diff_runs
from quantdrift.finished.readers import read_finished
from quantdrift.progress import Silent
from quantdrift.spec import parse
from quantdrift_beir import QuantizedPair
from support.beir_samples import dataset_of, exact, model, qrels_of, save_encoder, texts

CORPUS, QUERIES = texts()
SCHEME = "W3-rtn"


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUANTDRIFT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_encoder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def own(folder: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_pair(
        parse(f"{folder}@{SCHEME}"),
        dataset_of(CORPUS, QUERIES),
        out=tmp_path_factory.mktemp("own") / "run",
        settings=Settings(k=len(CORPUS), batch_size=8, noise_floor=False),
        store=EmbeddingStore(None),
        progress=Silent(),
        device="cpu",
    ).path


def saved(folder: str, place: Path, corpus: dict[str, Any], queries: dict[str, str]) -> Path:
    prompted = model(folder, prompt_names={"query": "query", "passage": "document"})
    search = exact(QuantizedPair(prompted, SCHEME))
    results = EvaluateRetrieval(search, k_values=[1, 5]).retrieve(corpus, queries)
    path: Path = results.save(place, qrels=qrels_of(QUERIES)).path
    return path


def test_they_are_compared_by_their_ids(folder: str, own: Path, tmp_path: Path) -> None:
    found = diff_runs(read_finished(own), read_finished(saved(folder, tmp_path / "beir", CORPUS, QUERIES)))
    (part,) = found.parts
    assert part.evidence is not None
    assert part.evidence.exact
    assert part.evidence.n_inputs == len(QUERIES)
    assert part.evidence.judgements is not None
    np.testing.assert_allclose(perturbation.epsilon(part.evidence), 0, atol=1e-5)
    assert any("digests cannot be compared" in note for note in found.notes)

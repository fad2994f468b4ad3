"""Calibrated pairs and widths per layer inside mteb: on what, and that it is what counts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mteb
import pytest

from integration.quantdrift_mteb.mteb_samples import other_task, retrieval_task, save_encoder, scores, split_data, stock
from quantdrift.base.errors import UnsupportedError
from quantdrift.base.progress import Silent
from quantdrift.candidate.calibration.sample import Sample
from quantdrift.candidate.pair import QuantizedPair
from quantdrift.models.layers import modules_of
from quantdrift.runs.folder import read_run
from quantdrift.spec.grammar import parse_scheme
from support.candidate_samples import text
from support.rerank_samples import save_cross_encoder

SCHEME = "W3-g16-adaround+calib=20"
DATA = {"default": {"test": split_data(15, 40)}}
SHORTLISTS = {"default": {"test": split_data(15, 40, shortlist=8)}}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    folder = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUANTDRIFT_CACHE", "off")
        yield {"encoder": save_encoder(folder), "reranker": save_cross_encoder(folder / "reranker")}


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[Sample]:
    """The samples that pairs were calibrated on."""
    samples: list[Sample] = []
    prepare = QuantizedPair.prepare

    def noted(self: QuantizedPair, sample: Sample, **kwargs: Any) -> None:
        samples.append(sample)
        prepare(self, sample, **kwargs)

    monkeypatch.setattr(QuantizedPair, "prepare", noted)
    return samples


def test_a_search_is_calibrated_on_its_corpus(folders: dict[str, Path], prepared: list[Sample], tmp_path: Path) -> None:
    """Both arms equal stock runs; the candidate's weights are made by hand from its documents."""
    cache = mteb.ResultCache(tmp_path)
    pair = mteb.get_model(f"quantdrift:{folders['encoder']}@{SCHEME}")
    entry = scores(pair, retrieval_task("TinyCalibrated", DATA), cache=cache)["test"][0]
    record = read_run(next(tmp_path.rglob("run.json"))).record["quantization"]
    assert (record["calibration"]["n_inputs"], record["calibration"]["of"]) == (20, 40)
    assert record["fallbacks"] == {}

    model = stock(folders["encoder"])
    documents = {row["id"]: row["text"] for row in DATA["default"]["test"]["corpus"]}
    (sample,) = prepared
    texts = texts_of(pair.base, sample)
    assert len(texts) == 20
    assert set(texts) <= set(documents.values())
    by_hand = QuantizedPair(modules_of(model), parse_scheme(SCHEME))
    chunks = [texts[at : at + 8] for at in range(0, 20, 8)]
    works = [lambda chunk=chunk: model.model.encode(chunk, batch_size=8) for chunk in chunks]
    by_hand.prepare(Sample(batches=works, key=None, record={}), root=None, progress=Silent())
    with by_hand.candidate():
        wanted = scores(model, retrieval_task("TinyCalibrated", DATA))["test"][0]
    reference = scores(model, retrieval_task("TinyCalibrated", DATA))["test"][0]
    assert entry["ndcg_at_10"] == pytest.approx(wanted["ndcg_at_10"], abs=1e-5)
    assert entry["drift_reference_main_score"] == pytest.approx(reference["main_score"], abs=1e-5)
    assert entry["drift_flip_at_1"] > 0


def texts_of(model: Any, sample: Sample) -> list[str]:
    """Return the texts that a sentence-transformers model gets when a sample is run."""
    seen: list[str] = []
    encode = model.model.encode

    def watched(inputs: list[str], **kwargs: Any) -> Any:
        seen.extend(inputs)
        return encode(inputs, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.model, "encode", watched)
        for batch in sample.batches:
            batch()
    return seen


@pytest.mark.parametrize("kind", ["search", "reranker", "other"])
def test_a_file_is_calibrated_on(kind: str, folders: dict[str, Path], prepared: list[Sample], tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(text(seed) for seed in range(500, 512)))
    model = folders["reranker" if kind == "reranker" else "encoder"]
    pair = mteb.get_model(f"quantdrift:{model}@W4A8-g16+calib={file}")
    tasks = {
        "search": lambda: retrieval_task("TinyFile", DATA),
        "reranker": lambda: retrieval_task("TinyFile", SHORTLISTS, kind="Reranking"),
        "other": lambda: other_task("MockSTSTask"),
    }
    scores(pair, tasks[kind]())
    assert {(sample.record["source"], sample.record["n_inputs"]) for sample in prepared} == {(str(file), 12)}


@pytest.mark.usefixtures("cache")
def test_a_search_chooses_widths_and_leaves_out_what_it_chose_them_on(folders: dict[str, Path], tmp_path: Path) -> None:
    pair = mteb.get_model(f"quantdrift:{folders['encoder']}@W3.5-g16+gap")
    data = {"default": {"test": split_data(16, 30)}}
    entry = scores(pair, retrieval_task("TinyWidths", data), cache=mteb.ResultCache(tmp_path / "out"))["test"][0]
    assert entry["drift_n_inputs"] == 12
    record = read_run(next((tmp_path / "out").rglob("run.json"))).record
    assert (record["data"]["n_queries"], record["data"]["inputs_left_out"]) == (16, 4)
    allocation = record["quantization"]["allocation"]
    assert (allocation["dataset"], allocation["calibration_inputs"]) == ("TinyWidths", 4)
    assert set(allocation["widths"].values()) == {3, 4}
    for task, said in (
        (other_task("MockSTSTask"), r"MockSTSTask \(STS\) is none"),
        (retrieval_task("TinyShort", SHORTLISTS, kind="Reranking"), "TinyShort is no search over embeddings"),
    ):
        pair = mteb.get_model(f"quantdrift:{folders['encoder']}@W3.5-g16+gap")
        with pytest.raises(UnsupportedError, match=f"{said}.*Choose widths with quantdrift allocate"):
            scores(pair, task)

"""A pair on every kind of task: both arms score what stock mteb gives for them; and what it is calibrated on there."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pytest
import torch
from datasets import Dataset
from mteb.models import MultiVectorWrapper, SparseEncoderWrapper
from mteb.models.model_meta import ModelMeta
from sentence_transformers import SentenceTransformer
from torch import nn

from integration.quantdrift_mteb.mteb_samples import (
    OTHERS,
    QUIET,
    SCHEME,
    Model,
    other_task,
    retrieval_task,
    save_encoder,
    scores,
    split_data,
    stock,
)
from quantdrift.base.errors import UnsupportedError
from quantdrift.base.progress import Silent
from quantdrift.candidate.calibration.sample import Sample
from quantdrift.candidate.pair import QuantizedPair
from quantdrift.models.files.named import resolve
from quantdrift.models.layers import modules_of
from quantdrift.runs.folder import read_run
from quantdrift.spec.grammar import parse, parse_scheme
from quantdrift_mteb.pairs import make_pair
from support.candidate_samples import quantized, text
from support.rerank_samples import save_cross_encoder
from support.row_models import multi_vector, sparse

pytestmark = pytest.mark.usefixtures("cache")


def assert_same(entry: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """All of mteb's own figures agree; one that is not a number there is none here either."""
    stock_keys = {key for key in entry if not key.startswith("drift_")}
    assert stock_keys == set(expected)
    for key, value in expected.items():
        if isinstance(value, float):
            assert entry[key] == pytest.approx(value, abs=1e-5, nan_ok=True), key


def compare(model: Model, make: Callable[[], Any], **kwargs: Any) -> list[dict[str, Any]]:
    """Check both arms of a task against stock runs; the pair's scores, one entry per subset."""
    paired = scores(model.pair, make(), **kwargs)
    reference = scores(model.stock, make())
    with quantized(model.stock, SCHEME):
        candidate = scores(model.stock, make())
    assert paired.keys() == candidate.keys()
    entries = []
    for split, subsets in paired.items():
        for entry, full, low in zip(subsets, reference[split], candidate[split], strict=True):
            assert entry["hf_subset"] == low["hf_subset"]
            assert_same(entry, low)
            expected = full["main_score"]
            expected = None if np.isnan(expected) else pytest.approx(expected, abs=1e-5)
            assert entry["drift_reference_main_score"] == expected
            assert entry["drift_spec"].endswith("@W2-g128-rtn")
            entries.append(entry)
    return entries


LANGUAGES = {"eng": ["eng-Latn"], "fra": ["fra-Latn"]}
RETRIEVAL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Columns": ({"default": {"test": split_data(15, 40, title="ba be", instruction="du da")}}, {}),
    "Subsets": (
        {name: {"test": split_data(12, 30, seed=seed)} for seed, name in enumerate(LANGUAGES)},
        {"languages": LANGUAGES},
    ),
    "Splits": ({"default": {"dev": split_data(10, 30), "test": split_data(10, 30, seed=5)}}, {}),
    "Few": ({"default": {"test": split_data(3, 3)}}, {}),
    "Shortlists": ({"default": {"test": split_data(15, 40, shortlist=8)}}, {"kind": "Reranking"}),
}


@pytest.mark.parametrize("name", RETRIEVAL)
def test_both_arms_of_a_search_are_what_stock_mteb_finds(name: str, models: Mapping[str, Model]) -> None:
    data, options = RETRIEVAL[name]
    entries = compare(models["encoder"], lambda: retrieval_task(f"Tiny{name}", data, **options))
    assert len(entries) == sum(len(splits) for splits in data.values())
    for entry in entries:
        reference = entry["drift_reference_ndcg_at_10"]
        assert reference == pytest.approx(entry["drift_reference_main_score"], abs=1e-5)
        assert 0 <= entry["drift_flip_at_1"] <= 1
        assert entry["drift_epsilon_median"] > 0
        assert entry["drift_noise_floor"] == 0
    if name in {"Subsets", "Splits"}:
        assert entries[0]["drift_epsilon_median"] != entries[1]["drift_epsilon_median"]


@pytest.mark.parametrize(("make", "wrapper"), [(multi_vector, MultiVectorWrapper), (sparse, SparseEncoderWrapper)])
@pytest.mark.parametrize("name", ["Columns", "Shortlists"])
def test_several_rows_as_in_stock_mteb(make: Callable[[Path], Any], wrapper: Any, name: str, tmp_path: Path) -> None:
    make(tmp_path)
    folder, (data, options) = tmp_path / "model", RETRIEVAL[name]
    model = Model(pair=mteb.get_model(f"quantdrift:{folder}@{SCHEME}"), stock=wrapper(str(folder), device="cpu"))
    (entry,) = compare(model, lambda: retrieval_task(f"Tiny{name}", data, **options))
    assert entry["drift_flip_at_1"] > 0
    assert entry["drift_noise_floor"] == 0


class Hybrid:
    """A search of its own, around an encoder."""

    def __init__(self, folder: Path) -> None:
        self.encoder = SentenceTransformer(str(folder), device="cpu")
        self.mteb_model_meta = ModelMeta.create_empty({"name": "local/hybrid", "revision": "1"})

    def index(self, corpus: Any, **_: Any) -> None: ...

    def search(self, queries: Any, *, top_k: int, **_: Any) -> dict[str, dict[str, float]]:
        return {}


def test_a_search_of_its_own_is_refused(folder: Path) -> None:
    with pytest.raises(UnsupportedError, match="quantdrift diff A B"):
        make_pair(Hybrid(folder), parse("hybrid@W4"), resolve(str(folder)))


def test_a_cross_encoder_reranks_in_both_arms(models: Mapping[str, Model], tmp_path: Path) -> None:
    data, options = RETRIEVAL["Shortlists"]
    model = models["reranker"]
    entry = compare(
        model,
        lambda: retrieval_task("TinyCross", data, **options),
        cache=mteb.ResultCache(tmp_path),
        prediction_folder=tmp_path,
    )[0]
    assert (entry["drift_n_inputs"], entry["drift_noise_floor"]) == (15, 0)
    run = read_run(next(tmp_path.rglob("run.json")))
    evidence = run.evidence()
    assert (set(evidence.n_items.tolist()), run.record["data"]["n_documents"]) == ({8}, 40)
    assert run.record["settings"]["similarity"] == "the model's own search, before its sigmoid"
    assert run.record["model"]["layers_never_reached"] == []
    # mteb's predictions are probabilities as ever, the evidence is of raw scores
    assert type(model.pair.base.model.activation_fn) is nn.Sigmoid
    predicted = json.loads(next(tmp_path.rglob("*predictions.json")).read_text())["default"]["test"]
    for query, raw in zip(evidence.input_ids, evidence.candidate_top.candidate_scores, strict=True):
        through = torch.sigmoid(torch.from_numpy(np.sort(raw)))
        np.testing.assert_allclose(through, np.sort([*predicted[query].values()]), rtol=3e-7)


def test_a_cross_encoder_needs_a_shortlist(models: Mapping[str, Model]) -> None:
    task = retrieval_task("TinyFull", RETRIEVAL["Columns"][0])
    with pytest.raises(UnsupportedError, match="TinyFull has none"):
        scores(models["reranker"].pair, task)


def test_a_document_of_the_querys_own_id_does_not_count(models: Mapping[str, Model], tmp_path: Path) -> None:
    content, ids = split_data(12, 40), [f"d{number}" for number in range(12)]
    texts = content["corpus"]["text"][:12]  # each finds itself first
    content["queries"] = Dataset.from_dict({"id": ids, "text": texts})
    content["relevant_docs"] = {name: {f"d{number + 20}": 1} for number, name in enumerate(ids)}
    task = {"data": {"default": {"test": content}}, "ignore_identical_ids": True}
    compare(models["encoder"], lambda: retrieval_task("TinySelf", **task), cache=mteb.ResultCache(tmp_path))
    evidence = read_run(next(tmp_path.rglob("drift/TinySelf/test-default"))).evidence()
    assert not (evidence.item_ids[evidence.reference_top.items[:, 0]] == np.array(ids)).any()
    assert set(evidence.n_items.tolist()) == {39}


RANKED = {"MockPairClassificationTask", "MockClassificationTask"}
ORDERED = {"MockSTSTask", "MockPairClassificationTask"}


@pytest.mark.parametrize("name", OTHERS)
def test_both_arms_of_other_tasks_are_what_stock_mteb_finds(name: str, models: Mapping[str, Model]) -> None:
    entries = compare(models["encoder"], lambda: other_task(name))
    assert any(entry["main_score"] != entry["drift_reference_main_score"] for entry in entries)
    for entry in entries:
        assert ("drift_flip_at_1" in entry) == (name in RANKED)
        assert ("drift_order_flip" in entry) == (name in ORDERED)


@pytest.fixture
def query_only(models: Mapping[str, Model]) -> Any:
    folder = Path(models["encoder"].pair.source.location)
    return mteb.get_model(f"quantdrift:{folder}@{SCHEME}+query")


def test_query_only_leaves_the_index_at_full_precision(query_only: Any, models: Mapping[str, Model]) -> None:
    model, data = models["encoder"].stock, RETRIEVAL["Columns"][0]
    entry = scores(query_only, retrieval_task("TinyQuery", data))["test"][0]
    core, encode = QuantizedPair([model.model], parse_scheme(SCHEME)), model.encode

    def by_side(inputs: Any, *, prompt_type: Any, **kwargs: Any) -> Any:
        if prompt_type.value == "document":
            return encode(inputs, prompt_type=prompt_type, **kwargs)
        with core.candidate():
            return encode(inputs, prompt_type=prompt_type, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "encode", by_side)
        by_hand = scores(model, retrieval_task("TinyQuery", data))["test"][0]
    assert_same(entry, by_hand)
    # outside of an evaluation too
    task = retrieval_task("TinyQuery", data)
    alone = task.evaluate(query_only, "test", encode_kwargs=dict(QUIET))["default"]
    assert alone["ndcg_at_10"] == pytest.approx(by_hand["ndcg_at_10"], abs=1e-5)


@pytest.mark.parametrize("similarity", ["dot", "euclidean", "manhattan"])
def test_scores_are_made_by_the_similarity_that_the_model_has(similarity: str, tmp_path: Path) -> None:
    folder = save_encoder(tmp_path, similarity_fn_name=similarity)
    model = Model.of(folder)
    if similarity == "manhattan":
        with pytest.raises(UnsupportedError, match="embeddings"):
            scores(model.pair, retrieval_task("TinyOwn", RETRIEVAL["Few"][0]))
        return
    compare(model, lambda: retrieval_task("TinyOwn", RETRIEVAL["Few"][0]), cache=mteb.ResultCache(tmp_path))
    assert read_run(next(tmp_path.rglob("run.json"))).record["settings"]["similarity"] == similarity


# --- calibrated pairs and widths per layer: on what, and that it is what counts ----------------------


CALIBRATED = "W3-g16-adaround+calib=20"
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
    pair = mteb.get_model(f"quantdrift:{folders['encoder']}@{CALIBRATED}")
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
    by_hand = QuantizedPair(modules_of(model), parse_scheme(CALIBRATED))
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

"""Late-interaction and sparse models through `quantdrift run`, against their own libraries."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
from sentence_transformers import MultiVectorEncoder, SentenceTransformer, SparseEncoder

from quantdrift.api import drift
from quantdrift.base.errors import UnsupportedError
from quantdrift.data.retrieval import read_beir_folder
from quantdrift.runs.folder import Run as Finished
from quantdrift.runs.folder import read_run
from quantdrift.runs.words import weights_line
from support.row_models import multi_vector, round_by_hand, search_data, sparse, static_model
from support.tiny_command_line import Run, one_thread, place, quantdrift
from support.versus_samples import change, check

__all__ = ["one_thread", "place", "quantdrift"]


KINDS: dict[str, tuple[Callable[[Path], Any], Any]] = {
    "multi": (multi_vector, MultiVectorEncoder),
    "sparse": (sparse, SparseEncoder),
}


@pytest.fixture(scope="module", autouse=True)
def folders(place: Path) -> None:
    for name, (make, _) in KINDS.items():
        make(place / name)
    search_data(place / "rows")


def run(quantdrift: Run, model: str, scheme: str) -> tuple[Finished, str]:
    shown = quantdrift("run", f"ROOT/{model}/model@{scheme}", "--data", "ROOT/rows", "--out", "run")
    return read_run(Path("run")), shown


@pytest.mark.parametrize("name", KINDS)
def test_both_arms_score_as_their_library_does(name: str, place: Path, quantdrift: Run) -> None:
    finished, shown = run(quantdrift, name, "W4-rtn-g64")
    data = read_beir_folder(place / "rows")
    _, load = KINDS[name]
    scores = []
    for rounded in (False, True):
        model = load(str(place / name / "model"), device="cpu").eval()
        if rounded:
            round_by_hand(model, 4, 64)
        queries, documents = model.encode_query(list(data.queries)), model.encode_document(list(data.documents))
        made = model.similarity(queries, documents)
        scores.append((made.to_dense() if made.is_sparse else made).numpy())
    check(finished, *scores, 1e-5, data.document_ids)
    assert finished.record["settings"]["similarity"] == ("maxsim" if name == "multi" else "dot")
    assert finished.record["model"]["layers_never_reached"] == (["0.model.pooler.dense"] if name == "multi" else [])
    assert "noise alone changes" in shown


@pytest.mark.parametrize(
    ("name", "scheme", "record"),
    [
        ("multi", "fp+emb=int8", {"precision": "int8"}),
        ("multi", "fp+pool=2", {"precision": "float32", "pool": "2"}),
        ("sparse", "fp+emb=int8+terms=2", {"precision": "int8", "terms": 2, "rows_per_document": 2.0}),
    ],
)
def test_the_record_says_how_rows_are_kept(name: str, scheme: str, record: dict[str, Any], quantdrift: Run) -> None:
    finished, _ = run(quantdrift, name, scheme)
    kept = finished.record["deployment"]
    assert kept | record == kept
    row = 16 * 32 if kept["precision"] == "float32" else {"multi": 128, "sparse": 40}[name]
    assert kept["bytes_per_document"] == pytest.approx(kept["rows_per_document"] * row / 8, rel=1e-3)
    assert float(np.abs(finished.evidence().delta_max).max()) > 0


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("ROOT/multi/model@fp+index=Flat", "applies to vectors, and this model makes token vectors"),
        ("ROOT/multi/model@fp+terms=9", "applies to weights of terms, and this model makes token vectors"),
        ("ROOT/sparse/model@fp+pool=2", "applies to token vectors, and this model makes weights of terms"),
        ("TINY@fp+pool=2", "applies to token vectors, and this model makes vectors"),
        ("ROOT/sparse/model@fp+emb=binary", "keeps signs, and weights of terms have none; expected int8 or fp16"),
        ("ROOT/multi/model@fp+emb=int8+rescore=4", "applies to vectors, and this model makes token vectors"),
        ("ROOT/multi/model@fp+dim=8", r"\+dim= shortens one vector an input"),
        ("ROOT/multi/model@W3.5-rtn+gap", "compares by maxsim of several; expected one width for all layers"),
    ],
)
def test_what_has_no_meaning_for_a_kind_is_refused(spec: str, message: str, quantdrift: Run) -> None:
    told = quantdrift("run", spec, "--data", "ROOT/rows", "--out", "run", code=2)
    assert re.search(message, " ".join(told.split()))


@pytest.mark.parametrize("model", KINDS)
@pytest.mark.parametrize(
    "words",
    [
        ("allocate", "ROOT/{}/model@W3.5-rtn+gap", "--data", "ROOT/rows"),
        ("repair", "ROOT/{}/model@W4", "--data", "ROOT/rows"),
        ("canary", "save", "ROOT/{}/model", "--out", "canary.json"),
        ("run", "ROOT/{}/model@W4", "--data", "ROOT/rows", "--workers", "1"),
    ],
)
def test_what_is_done_by_one_vector_an_input_is_refused(words: tuple[str, ...], model: str, quantdrift: Run) -> None:
    told = quantdrift(*(word.format(model) for word in words), code=2, quiet=words[0] != "canary")
    assert "by one vector an input, and this model makes several rows of each" in " ".join(told.split())


def test_a_folder_of_pylate_is_measured_as_what_it_is(place: Path, tmp_path: Path, quantdrift: Run) -> None:
    folder = tmp_path / "pylate"
    copytree(place / "multi" / "model", folder)
    modules = json.loads((folder / "modules.json").read_text())[:2]  # masks and norms are the library's doing
    modules[0]["type"], modules[1]["type"] = "sentence_transformers.models.Transformer", "pylate.models.Dense.Dense"
    (folder / "modules.json").write_text(json.dumps(modules))
    dense = json.loads((folder / "1_Dense" / "config.json").read_text())
    kept = ("in_features", "out_features", "bias", "activation_function")
    (folder / "1_Dense" / "config.json").write_text(json.dumps({key: dense[key] for key in kept}))
    said = {"model_type": "ColBERT", "query_prefix": "wing ", "document_prefix": "heat ", "query_length": 8}
    said |= {
        "document_length": 32,
        "do_query_expansion": False,
        "skiplist_words": ["of"],
        "similarity_fn_name": "MaxSim",
    }
    (folder / "config_sentence_transformers.json").write_text(json.dumps(said))
    quantdrift("run", f"{folder}@W4", "--data", "ROOT/rows", "--out", "run")
    model, data = MultiVectorEncoder(str(folder), device="cpu"), read_beir_folder(place / "rows")
    expected = model.similarity(model.encode_query(list(data.queries)), model.encode_document(list(data.documents)))
    first = read_run(Path("run")).evidence().reference_top.reference_scores[:, 0]
    assert first == pytest.approx(expected.max(dim=1).values.numpy(), rel=1e-5)


def test_a_limit_of_terms_is_no_other_models_embedding(place: Path, tmp_path: Path, quantdrift: Run) -> None:
    run(quantdrift, "sparse", "W4")
    copytree(place / "sparse" / "model", tmp_path / "few")
    change(tmp_path / "few" / "config_sentence_transformers.json", max_active_dims=2)
    quantdrift("run", f"{tmp_path}/few@W4", "--data", "ROOT/rows", "--out", "few-run")
    runs = [read_run(Path(name)).evidence().reference_top.reference_scores[:, 0] for name in ("run", "few-run")]
    assert (runs[1] < runs[0]).any()


def test_a_model_of_another_class_is_not_converted(place: Path, tmp_path: Path, quantdrift: Run) -> None:
    folder = copytree(place / "multi" / "model", tmp_path / "odd")
    change(folder / "config_sentence_transformers.json", model_type="SparseEncoder")
    told = quantdrift("run", f"{folder}@W4", "--data", "ROOT/rows", "--out", "run", code=2)
    assert "MultiVectorMask" in told or "sparse" in told.lower()


def test_of_a_static_model_the_embedding_matrix_is_quantized(place: Path, quantdrift: Run) -> None:
    static_model(place)
    quantdrift("run", "ROOT/static@fp+table=4", "--data", "ROOT/rows", "--out", "run")
    finished = read_run(Path("run"))
    model = SentenceTransformer(str(place / "static"), device="cpu")
    data = read_beir_folder(place / "rows")
    queries, documents = list(data.queries), list(data.documents)
    full = model.similarity(model.encode(queries), model.encode(documents)).numpy()
    weight = model[0].embedding.weight.data
    scale = weight.abs().amax(1, keepdim=True) / 7
    weight.copy_((weight / scale).round() * scale)
    low = model.similarity(model.encode(queries), model.encode(documents)).numpy()
    check(finished, full, low, 1e-5, data.document_ids)
    bits = finished.record["bits_per_weight"]
    assert bits["all_parameters"] == pytest.approx(4 + 16 / weight.shape[1])
    assert weights_line(finished.record).startswith("bits per weight: 4.50 over all parameters")
    told = quantdrift("run", "ROOT/static@W4", "--data", "ROOT/rows", code=2)
    assert "fp+table=8" in told


@pytest.mark.parametrize("name", KINDS)
def test_a_model_in_memory_is_measured_as_its_folder_is(name: str, place: Path, quantdrift: Run) -> None:
    finished, _ = run(quantdrift, name, "W4-rtn-g64")
    model = KINDS[name][1](str(place / name / "model"), device="cpu")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    made = drift(model, "W4-rtn-g64", place / "rows")
    ours, theirs = made.evidence(), finished.evidence()
    assert (ours.candidate_top.items == theirs.candidate_top.items).all()
    assert ours.delta_max == pytest.approx(theirs.delta_max, abs=1e-5)
    assert made.record["settings"]["similarity"] == finished.record["settings"]["similarity"]
    assert all((before[key] == value).all() for key, value in model.state_dict().items())
    other = KINDS[name][1](str(place / name / "model"), device="cpu")
    with pytest.raises(UnsupportedError, match="own quantized self"):
        drift(model, other, place / "rows")
    with pytest.raises(UnsupportedError, match="own quantized self"):
        drift(str(place / "tiny"), other, place / "rows")


@pytest.mark.parametrize("kind", ["ColPali", "ColQwen2"])
def test_models_that_read_pages_are_refused(kind: str, place: Path, quantdrift: Run) -> None:
    copytree(place / "tiny", place / kind)
    config = place / kind / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "architectures": [f"{kind}ForRetrieval"]}))
    told = quantdrift("run", f"ROOT/{kind}@W4", "--data", "ROOT/rows", "--out", "run", code=2)
    assert f"is a {kind}ForRetrieval, and has no modules.json" in " ".join(told.split())

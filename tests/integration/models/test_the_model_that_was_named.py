"""What a library converts, drops or draws at random on loading is refused, or stands in the run's notes."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder, SentenceTransformer, SparseEncoder
from torch import Tensor
from transformers import AutoModel, BertForMaskedLM, modeling_utils

from quantdrift.api import drift
from quantdrift.asking.saving import make_candidate, save_candidate
from quantdrift.base.errors import UnknownNameError, UnsupportedError
from quantdrift.base.progress import Silent
from quantdrift.builtin.cross_encoder.work import load_cross_encoder
from quantdrift.builtin.sentence.work import load_encoder
from quantdrift.builtin.sparse.work import load_sparse
from quantdrift.candidate.pair import QuantizedPair
from quantdrift.evidence import perturbation
from quantdrift.models.files.named import resolve
from quantdrift.models.inputs import Settings
from quantdrift.models.loading import loading
from quantdrift.models.store import EmbeddingStore
from quantdrift.models.weights import weights_fingerprint
from quantdrift.runs.words import weights_line
from quantdrift.spec.grammar import parse
from support import row_models
from support.candidate_samples import HIDDEN, WIDTH, bert, save_backbone, tiny
from support.rerank_samples import save_cross_encoder
from support.versus_samples import DATASET, SETTINGS, change, run_any, run_two, run_w4

CPU = torch.device("cpu")


def compared(folder: Path) -> Any:
    tiny().save_pretrained(str(folder.parent / "reference"))
    return run_two(folder.parent / "reference", folder, folder.parent / "run")


def quantized(folder: Path) -> Any:
    how: Any = {"settings": Settings(batch_size=8), "store": EmbeddingStore(None), "progress": Silent()}
    return make_candidate(parse(f"{folder}@W4-rtn"), dataset=None, device="cpu", **how)


CONFIGURATIONS: dict[str, Callable[[Path], Any]] = {"MODEL@SCHEME": run_w4, "A vs B": compared, "quantize": quantized}


@pytest.fixture(params=list(CONFIGURATIONS))
def way(request: pytest.FixtureRequest) -> Callable[[Path], Any]:
    return CONFIGURATIONS[request.param]


def test_a_file_of_weights_is_not_in_memory_beside_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny().save_pretrained(str(tmp_path / "model"))
    opened, ways = modeling_utils.safe_open, []
    monkeypatch.setattr(modeling_utils, "safe_open", lambda *a, **how: ways.append(how["backend"]) or opened(*a, **how))
    load_encoder(resolve(str(tmp_path / "model")), device=CPU)
    AutoModel.from_pretrained(tmp_path / "model")
    assert ways == ["pread", "mmap"]


# --- weights that no file holds -------------------------------------------------------------------


def stored(folder: Path, change: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]) -> Path:
    """The tiny model in a folder, its weights changed; or what lies there."""
    if not folder.exists():
        tiny().save_pretrained(str(folder))
    weights = dict(change(load_file(folder / "model.safetensors")))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def without(*parts: str) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
    return lambda kept: {name: it for name, it in kept.items() if not any(part in name for part in parts)}


LOST = {
    "one attention weight": without("layer.0.attention.self.query.weight"),
    "the embeddings": without("word_embeddings"),
    "all but one": lambda kept: dict([next(iter(kept.items()))]),
    "under other names": lambda kept: {f"foo.{name}": it for name, it in kept.items()},
    "of another shape": lambda kept: {name: it[:1].clone() if it.dim() > 1 else it for name, it in kept.items()},
}


@pytest.mark.parametrize("lost", LOST)
def test_weights_that_would_be_random_are_refused(way: Callable[[Path], Any], tmp_path: Path, lost: str) -> None:
    folder = stored(tmp_path / "model", LOST[lost])
    with pytest.raises(UnsupportedError, match=r"has no weights for|of another shape.*\.|holds packed layers"):
        way(folder)


def test_a_reranker_without_its_head_is_refused(tmp_path: Path) -> None:
    folder = stored(save_cross_encoder(tmp_path / "reranker"), without("classifier"))
    with pytest.raises(UnsupportedError, match=r"classifier\.bias and 1"):
        load_cross_encoder(resolve(str(folder)), device=CPU)


def test_a_pooler_that_nothing_is_made_of_may_be_missing_and_is_the_same_each_time(tmp_path: Path) -> None:
    folder = stored(tmp_path / "model", without("pooler"))
    first, second = (load_encoder(resolve(str(folder)), device=CPU) for _ in range(2))
    assert weights_fingerprint([first.module]) == weights_fingerprint([second.module])
    assert "no weights for pooler.dense.bias, pooler.dense.weight, which no embedding is made of" in first.notes[0]
    assert run_w4(folder).record["data"]["warnings"][0] == first.notes[0]


def test_weights_that_are_left_out_are_told(tmp_path: Path) -> None:
    folder = stored(tmp_path / "model", lambda weights: {**weights, "extra.weight": torch.ones(2)})
    notes = run_w4(folder).record["data"]["warnings"]
    assert any("stores extra.weight, which BertModel has no use for: left out" in note for note in notes)


# --- kinds of models that a library would convert -------------------------------------------------


def late_interaction(folder: Path) -> None:
    save_backbone(folder.with_name("backbone"))
    MultiVectorEncoder(str(folder.with_name("backbone")), device="cpu").save_pretrained(str(folder))


def sparse(folder: Path) -> None:
    sizes = {"hidden_size": HIDDEN, "num_attention_heads": 4, "intermediate_size": WIDTH}
    save_backbone(folder.with_name("backbone"), BertForMaskedLM(bert(**sizes)))
    SparseEncoder(str(folder.with_name("backbone")), device="cpu").save_pretrained(str(folder))


@pytest.mark.parametrize(("make", "kind"), [(late_interaction, MultiVectorEncoder), (sparse, SparseEncoder)])
def test_models_of_several_rows_are_not_converted(tmp_path: Path, make: Callable[[Path], None], kind: Any) -> None:
    make(tmp_path / "model")
    with pytest.raises(UnsupportedError, match="own quantized self"):
        compared(tmp_path / "model")

    class Own(kind):  # type: ignore[misc]  # of a class that is a parameter
        """Another name for the same kind."""

    own = Own(str(tmp_path / "model"), device="cpu")
    assert drift(own, "W4-rtn", DATASET).record["settings"]["similarity"] in {"maxsim", "dot"}
    if kind is MultiVectorEncoder:  # sentence-transformers would draw a projection at random
        (tmp_path / "model" / "modules.json").unlink()
        with pytest.raises(UnsupportedError, match=r"no modules\.json"):
            run_w4(tmp_path / "model")


# --- how tokens become an embedding ---------------------------------------------------------------


def test_a_folder_without_modules_json_is_told_to_be_averaged(tmp_path: Path) -> None:
    save_backbone(tmp_path / "model")
    run = run_w4(tmp_path / "model")
    assert "has no modules.json" in run.record["data"]["warnings"][0]
    assert "sentence-transformers takes their mean by itself" in run.record["data"]["warnings"][0]


def test_a_masked_language_model_without_modules_json_is_read_as_its_user_says(tmp_path: Path) -> None:
    saved = row_models.sparse(tmp_path)  # which lies in `model`, made of `backbone`
    folder = tmp_path / "backbone"
    with pytest.raises(UnsupportedError, match=rf"BertForMaskedLM, .* mean:{folder} .* sparse:{folder} "):
        run_w4(folder)
    averaged, weighted = (run_any(parse(f"{way}:{folder}@W4-rtn"), tmp_path / way) for way in ("mean", "sparse"))
    save_backbone(tmp_path / "body", BertForMaskedLM.from_pretrained(folder).bert)
    assert averaged.record["model"]["fingerprint"] == run_w4(tmp_path / "body").record["model"]["fingerprint"]
    assert averaged.record["settings"]["similarity"] == "cosine"
    again = run_any(parse(f"{tmp_path / 'model'}@W4-rtn"), tmp_path / "again")
    assert weighted.record["model"]["fingerprint"] == again.record["model"]["fingerprint"]
    assert weighted.record["metrics"] == again.record["metrics"]
    assert weights_fingerprint([saved]) == weights_fingerprint(
        [load_sparse(resolve(f"sparse:{folder}"), device=CPU).module]
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mean:tiny", "has a modules.json, which says how it is read; leave mean: out"),
        ("sparse:tiny", "a SparseEncoder made of it would be another model"),
        ("sparse:body", "has no head that gives terms weights"),
    ],
)
def test_a_model_that_says_how_it_is_read_is_not_read_otherwise(name: str, said: str, tmp_path: Path) -> None:
    tiny().save_pretrained(str(tmp_path / "tiny"))
    save_backbone(tmp_path / "body")
    way, _, folder = name.partition(":")
    with pytest.raises(UnsupportedError, match=said):
        run_any(parse(f"{way}:{tmp_path / folder}@W4-rtn"), tmp_path / "run")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"architectures": ["HF_ColBERT"]}, "is a HF_ColBERT"),
        ({"architectures": ["BertForQuestionAnswering"]}, "is a BertForQuestionAnswering"),
        ({"pooling_mode": "cls"}, "pooling_mode cls"),
    ],
)
def test_without_modules_json_the_config_decides(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    save_backbone(tmp_path / "model")
    change(tmp_path / "model" / "config.json", **settings)
    with pytest.raises(UnsupportedError, match=said):
        run_w4(tmp_path / "model")


def test_a_folder_that_lost_its_modules_json_is_refused(tmp_path: Path) -> None:
    tiny().save_pretrained(str(tmp_path / "model"))
    (tmp_path / "model" / "modules.json").unlink()
    with pytest.raises(UnsupportedError, match=r"no modules\.json.* config_sentence_transformers\.json"):
        run_w4(tmp_path / "model")


# --- prompts --------------------------------------------------------------------------------------

INSTRUCTIONS = {"s2p_query": "wing flow ", "s2s_query": "drag "}


def test_prompts_of_other_names_are_told_and_chosen_by_name(tmp_path: Path) -> None:
    tiny().save_pretrained(str(tmp_path / "model"))
    usual = run_w4(tmp_path / "model")  # its own prompt for queries is "wing flow "
    assert not any("has the prompts" in note for note in usual.record["data"]["warnings"])
    change(tmp_path / "model" / "config_sentence_transformers.json", prompts=INSTRUCTIONS)
    bare = run_w4(tmp_path / "model")
    assert any("prompts s2p_query, s2s_query, none of them named" in note for note in bare.record["data"]["warnings"])
    spec = parse(f"{tmp_path / 'model'}@W4-rtn")
    chosen = run_any(spec, tmp_path / "chosen", settings=replace(SETTINGS, query_prompt="s2p_query"))
    assert not any("has the prompts" in note for note in chosen.record["data"]["warnings"])
    assert chosen.record["settings"]["query_prompt"] == "s2p_query"
    assert "query_prompt" not in bare.record["settings"]
    assert (
        chosen.record["metrics"]["epsilon"] == usual.record["metrics"]["epsilon"] != bare.record["metrics"]["epsilon"]
    )
    with pytest.raises(UnknownNameError, match="mean s2p_query"):
        run_any(spec, tmp_path / "run", settings=replace(SETTINGS, document_prompt="s2p_qery"))


# --- what libraries say ---------------------------------------------------------------------------


def test_a_warning_of_a_library_is_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "model"
    tiny().save_pretrained(str(folder))
    change(folder / "config_sentence_transformers.json", __version__={"sentence_transformers": "99.0"})
    before = logging.getLogger("sentence_transformers").handlers
    notes = run_w4(folder).record["data"]["warnings"]
    assert any(note.startswith("sentence-transformers warns: ") and "99.0" in note for note in notes)
    assert "version 99.0" not in capsys.readouterr().err
    assert logging.getLogger("sentence_transformers").handlers == before


def test_adapters_beside_weights_are_no_layers(tmp_path: Path) -> None:
    class Lora(torch.nn.Linear):
        def __init__(self) -> None:
            super().__init__(8, 8)
            self.lora_A = torch.nn.Linear(8, 2)

    with pytest.raises(UnsupportedError, match=r"adapter .*\(0\).*merge_and_unload"):
        QuantizedPair(torch.nn.Sequential(Lora()), "W4-rtn")


# --- the number type ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is stored in bfloat16, as most new embedding models are."""
    folder = tmp_path_factory.mktemp("half") / "model"
    stored(folder, lambda weights: {name: weight.bfloat16() for name, weight in weights.items()})
    change(folder / "config.json", dtype="bfloat16")
    return folder


def run_as(half: Path, scheme: str, out: Path, dtype: str = "float32") -> Any:
    return run_any(parse(f"{half}@{scheme}"), out, settings=replace(SETTINGS, dtype=dtype))


def test_full_precision_is_float32_whatever_type_the_files_have(half: Path, tmp_path: Path) -> None:
    run = run_as(half, "fp+dtype=bf16", tmp_path / "run")
    assert run.record["settings"]["dtype"] == "torch.float32"
    assert "reference computed in float32, candidate in bfloat16" in weights_line(run.record)
    assert perturbation.epsilon(run.evidence()).min() > 0  # it was compared with itself before


def test_another_number_type_is_asked_for_and_told(half: Path, tmp_path: Path) -> None:
    run = run_as(half, "W8", tmp_path / "run", dtype="bfloat16")
    assert run.record["settings"]["dtype"] == "torch.bfloat16"
    assert "both computed in bfloat16" in weights_line(run.record)
    assert run.record["data"]["warnings"][0].startswith("full precision is bfloat16 here")
    with pytest.raises(UnsupportedError, match=r"bfloat16 .*\+dtype=bf16"):
        run_as(half, "fp+dtype=bf16", tmp_path / "run", dtype="bfloat16")


@pytest.mark.parametrize("load", [load_encoder, load_cross_encoder])
def test_loaders_take_float32(load: Any, half: Path, tmp_path: Path) -> None:
    crossing = load is load_cross_encoder
    folder = save_cross_encoder(tmp_path / "reranker", dtype=torch.bfloat16) if crossing else half
    for dtype in ("float32", "bfloat16"):
        types = {it.dtype for it in load(resolve(str(folder)), device=CPU, dtype=dtype).module.parameters()}
        assert getattr(torch, dtype) in types
        assert types <= {getattr(torch, dtype), torch.float32}


def test_what_a_harness_loads_is_float32_where_it_says_nothing(half: Path) -> None:
    with loading(resolve(str(half))):
        model = SentenceTransformer(str(half), device="cpu")
        asked = SentenceTransformer(str(half), device="cpu", model_kwargs={"torch_dtype": torch.bfloat16})
    assert (model.dtype, asked.dtype) == (torch.float32, torch.bfloat16)


def test_a_checkpoint_keeps_its_own_type(half: Path, tmp_path: Path) -> None:
    tiny().save_pretrained(str(tmp_path / "reference"))
    run = run_two(tmp_path / "reference", half, tmp_path / "run")
    assert "reference computed in float32, candidate in bfloat16" in weights_line(run.record)


def test_a_folder_that_was_written_is_the_candidate_that_was_measured(tmp_path: Path) -> None:
    """One set of weights has one fingerprint, so that a check made on the run is taken for the folder."""
    tiny().save_pretrained(str(tmp_path / "model"))
    spec = parse(f"{tmp_path / 'model'}@W4-rtn")
    run = run_w4(tmp_path / "model")
    record = save_candidate(spec, quantized(tmp_path / "model"), tmp_path / "w4", progress=Silent())
    other = run_two(tmp_path / "model", tmp_path / "w4", tmp_path / "versus")
    fingerprint = run.record["model"]["candidate_fingerprint"]
    assert record["weights"]
    assert other.record["model"]["candidate_fingerprint"] == fingerprint
    assert other.record["model"]["candidate"]["fingerprint"] == fingerprint
    assert np.array_equal(
        run.evidence().candidate_top.candidate_scores, other.evidence().candidate_top.candidate_scores
    )

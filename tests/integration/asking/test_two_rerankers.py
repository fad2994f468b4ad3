"""`quantdrift run "A vs B" --shortlist RUN`: two rerankers, of sentence-transformers, transformers and onnxruntime."""

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from torch import nn
from transformers import BertForSequenceClassification

from integration.models import onnx_samples as samples
from quantdrift.data.retrieval import read_beir_folder
from quantdrift.runs.folder import read_run
from support.beir_folder import numbered, write_beir_folder
from support.candidate_samples import save_backbone, text, tokenizer
from support.command_line import cli
from support.finished_samples import write_trec
from support.rerank_samples import PairScores, save_cross_encoder, save_generative, score_lists
from support.versus_samples import change, check

onnxruntime = pytest.importorskip("onnxruntime")

NAMES = ("input_ids", "attention_mask", "token_type_ids")
N_QUERIES, N_DOCS, DEPTH = 8, 12, 5
LISTS = {f"q{row}": [f"c{(row + step) % N_DOCS}" for step in range(DEPTH)] for row in range(N_QUERIES)}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, lists of five documents a query, the rerankers `cross` and `generative`, and candidates of both."""
    place = tmp_path_factory.mktemp("rerankers")
    queries, documents = [text(row, 4) for row in range(N_QUERIES)], [text(100 + row, 9) for row in range(N_DOCS)]
    write_beir_folder(
        place / "data",
        numbered("q", queries),
        numbered("c", documents),
        {f"q{row}": [f"c{row}"] for row in range(N_QUERIES)},
    )
    write_trec(place / "bm25.trec", {query: dict.fromkeys(names, 0.0) for query, names in LISTS.items()})
    save_cross_encoder(place / "cross")
    change(place / "cross" / "tokenizer_config.json", model_input_names=NAMES)  # as BERT's: which text a token is of
    cross = CrossEncoder(str(place / "cross"), device="cpu")
    generative = CrossEncoder(str(save_generative(place / "generative")), device="cpu")
    graph = samples.exported(cross[0].auto_model, place / "graph" / "model.onnx", NAMES, "logits")
    (place / "onnx").mkdir()  # as optimum exports: settings, tokenizer and a graph
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(place / "cross" / file, place / "onnx")
    shutil.copy(graph, place / "onnx")
    shutil.copytree(place / "cross", place / "int8")  # the model's own folder, with a graph beside the weights
    samples.quantized(graph, "dynamic", place / "int8" / "onnx" / "model_quantized.onnx")
    for name, model in (("half", cross), ("bfloat16", generative)):
        model.to(torch.float16 if name == "half" else torch.bfloat16).save_pretrained(str(place / name))
    # as the hub has a decoder: without modules.json
    shutil.copytree(place / "bfloat16", place / "bare")
    for name in ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json", "1_LogitScore"):
        (shutil.rmtree if (place / "bare" / name).is_dir() else Path.unlink)(place / "bare" / name)
    save_backbone(place / "embedding")
    save_cross_encoder(place / "three", n_scores=3)
    return place


def save_torchao(place: Path) -> None:
    """The weights of `cross` in 8 bits, in a folder that says what follows them."""
    from torchao.quantization import Int8WeightOnlyConfig  # noqa: PLC0415 -- an optional extra
    from transformers import TorchAoConfig  # noqa: PLC0415 -- likewise

    how = TorchAoConfig(Int8WeightOnlyConfig(), modules_to_not_convert=["classifier"])
    body = BertForSequenceClassification.from_pretrained(place / "cross", quantization_config=how, dtype="float32")
    shutil.copytree(place / "cross", place / "torchao")
    body.save_pretrained(place / "torchao")


@cache
def predicted(folder: Path) -> PairScores:
    """The scores that sentence-transformers gives, in the number type of the files."""
    model = CrossEncoder(str(folder), device="cpu", activation_fn=nn.Identity(), model_kwargs={"dtype": "auto"})
    return lambda pairs: [float(model.predict([pair])[0]) for pair in pairs]


@cache
def computed(file: Path) -> PairScores:
    """The logits that onnxruntime gives of one pair at a time."""
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])

    def score(pair: tuple[str, str]) -> float:
        given = tokenizer()([pair[0]], [pair[1]], return_tensors="np", return_token_type_ids=True)
        return float(session.run(["logits"], dict(given))[0][0, 0])

    return lambda pairs: [*map(score, pairs)]


CANDIDATES: dict[str, tuple[str, Callable[[Path], PairScores], float]] = {
    "half": ("cross", lambda place: predicted(place / "half"), 1e-3),
    "onnx": ("cross", lambda place: computed(place / "graph" / "model.onnx"), 1e-5),
    "int8/onnx/model_quantized.onnx": ("cross", lambda place: computed(place / "int8/onnx/model_quantized.onnx"), 1e-5),
    "torchao": ("cross", lambda place: predicted(place / "torchao"), 1e-5),
    "bfloat16": ("generative", lambda place: predicted(place / "bfloat16"), 1e-5),
    "bare": ("generative", lambda place: predicted(place / "bfloat16"), 1e-5),
}


def run(place: Path, pair: str, out: Path, *more: str) -> tuple[int, str, str]:
    spec = " vs ".join(str(place / name) for name in pair.split(" vs "))
    data = ("--data", place / "data", "--shortlist", place / "bm25.trec", "--out", out)
    return cli("run", spec, *data, "--batch-size", "1", "--no-cache", *more, "--quiet")


@pytest.mark.parametrize("candidate", CANDIDATES)
def test_both_arms_score_the_lists_as_their_own_libraries_do(candidate: str, place: Path, tmp_path: Path) -> None:
    if candidate == "torchao":
        pytest.importorskip("torchao", reason="the extra 'torchao' is not installed")
        save_torchao(place)
    reference, oracle, tolerance = CANDIDATES[candidate]
    code, _, said = run(place, f"{reference} vs {candidate}", tmp_path / "run")
    assert code == 0, said
    finished, data = read_run(tmp_path / "run"), read_beir_folder(place / "data")
    arms = [score_lists(score, data, LISTS) for score in (predicted(place / reference), oracle(place))]
    check(finished, *arms, tolerance, data.document_ids)
    evidence, record = finished.evidence(), finished.record
    assert record["settings"]["reading"] == "reranking"
    widths = {"int8/onnx/model_quantized.onnx": 8, "torchao": 8, "half": 16, "onnx": 32}
    bits = record["bits_per_weight"]["linear"]
    assert bits == widths.get(candidate, 16)
    epsilon = np.maximum(-evidence.delta_min, evidence.delta_max)
    assert bool(epsilon.max() < 1e-5) is (candidate == "onnx")  # full precision, by another runtime


def test_what_is_lent_is_told_and_what_does_not_fit_is_one_line(place: Path, tmp_path: Path) -> None:
    def said(pair: str, *more: str) -> str:
        code, _, errors = run(place, pair, tmp_path / "run", *more)
        assert (code, errors.count("\n")) == (2, 1)
        return errors

    assert run(place, "generative vs bare", tmp_path / "lent")[0] == 0
    notes = read_run(tmp_path / "lent").record["data"]["warnings"]
    taken = "bare says nothing of tokenizer, prompts, length limit and what makes a score of its logits"
    assert any(taken in note for note in notes)
    dynamic = "cross vs int8/onnx/model_quantized.onnx"  # said, unless it is measured so
    told = [str(run(place, dynamic, tmp_path / size, "--batch-size", size)) for size in ("1", "2")]
    assert ["quantizes its activations by the range" in shown for shown in told] == [False, True]
    assert "does not say what follows its transformer" in said("cross vs bare")
    assert "is a Qwen3ForCausalLM, a language model" in said("bare vs generative")
    assert "is an embedding model" in said("cross vs embedding")
    assert "is an embedding model" in said("embedding vs cross")
    assert "gives a pair 3 scores" in said("cross vs three")
    served = f"{place / 'cross'} vs openai:http://localhost:1/v1#m"
    lists = ("--data", place / "data", "--shortlist", place / "bm25.trec")
    assert "takes two rerankers by name" in cli("run", served, *lists)[2]


def test_either_arm_is_written_as_a_trec_run(place: Path, tmp_path: Path) -> None:
    assert run(place, "cross vs half", tmp_path / "run")[0] == 0
    evidence = read_run(tmp_path / "run").evidence()
    for arm, top in (("reference", evidence.reference_top), ("candidate", evidence.candidate_top)):
        file = tmp_path / f"{arm}.trec"
        assert cli("show", tmp_path / "run", "--arm", arm, "-o", file)[0] == 0
        lines = [line.split() for line in file.read_text().splitlines()]
        assert [line[2] for line in lines] == evidence.item_ids[top.items].ravel().tolist()
        assert [int(line[3]) for line in lines] == [*range(1, DEPTH + 1)] * N_QUERIES
        written = np.array([line[4] for line in lines], dtype=np.float32).reshape(N_QUERIES, DEPTH)
        assert (written == (top.reference_scores if arm == "reference" else top.candidate_scores)).all()
    found = json.loads(cli("diff", tmp_path / "reference.trec", tmp_path / "candidate.trec", "--complete", "--json")[1])
    assert found["parts"][0]["metrics"]["flip@1"] == read_run(tmp_path / "run").record["metrics"]["flip@1"]
    for wrong in (["-o", "x.csv", "--arm", "reference"], ["-o", "x.trec", "-n", "3"], ["--arm", "candidate"]):
        assert cli("show", tmp_path / "run", *wrong)[0] == 2

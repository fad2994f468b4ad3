"""Two classifiers on labelled data: transformers against ONNX, and against another of transformers."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertForSequenceClassification

from integration.models import onnx_samples as samples
from quantdrift.runs.folder import read_run
from quantdrift.runs.words import candidate_lines, weights_line
from support.candidate_samples import TEXTS, bert, tokenizer
from support.command_line import cli
from support.versus_samples import check

onnx = samples.onnx
LABELS = ("sport", "law", "art")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("two") / "bert"
    torch.manual_seed(0)
    sizes = {"hidden_size": samples.HIDDEN, "intermediate_size": 48, "num_attention_heads": 2}
    config = bert(**sizes, initializer_range=0.5, id2label=dict(enumerate(LABELS)))
    BertForSequenceClassification(config).save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("labelled")
    lines = [json.dumps({"text": text, "label": LABELS[i % 3]}) for i, text in enumerate(TEXTS)]
    (path / "test.jsonl").write_text("\n".join(lines))
    return path


def run(reference: Path, candidate: Path, data: Path, out: Path) -> str:
    code, said, errors = cli("run", f"{reference} vs {candidate}", "--data", data, "--out", out, "--quiet")
    assert (code, errors) == (0, "")
    return said


def by_hand(folder: Path) -> NDArray[Any]:
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    given = AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        return np.asarray(model(**given).logits)


def test_logits_of_a_graph_are_those_of_onnxruntime(reference: Path, data: Path, tmp_path: Path) -> None:
    folder = samples.classifier(tmp_path / "some", ["Sport", "law", "art"])
    file = folder / "onnx" / "model_quantized.onnx"
    samples.quantized(folder / "onnx" / "model.onnx", "QDQ", file)
    (folder / "onnx" / "model.onnx").unlink()
    run(reference, folder, data, tmp_path / "run")
    record = read_run(tmp_path / "run").record
    assert "3 layers static QDQ" in " ".join([weights_line(record), *candidate_lines(record)])
    assert (record["model"]["layers_quantized"], record["bits_per_weight"]["linear"]) == (3, 8)
    assert record["quantization"]["provider"] == "CPUExecutionProvider"
    check(read_run(tmp_path / "run"), by_hand(reference), samples.states(file, TEXTS)[0], 1e-4, LABELS)


def test_two_of_transformers(reference: Path, data: Path, tmp_path: Path) -> None:
    other = shutil.copytree(reference, tmp_path / "other")
    model = AutoModelForSequenceClassification.from_pretrained(other)
    torch.nn.init.normal_(model.classifier.weight)
    model.save_pretrained(other)
    run(reference, other, data, tmp_path / "run")
    check(read_run(tmp_path / "run"), by_hand(reference), by_hand(other), 1e-4, LABELS)
    assert read_run(tmp_path / "run").record["bits_per_weight"]["linear"] == 32


def test_what_cannot_be_compared_is_one_line(reference: Path, data: Path, tmp_path: Path) -> None:
    def said(first: Path, second: Path) -> str:
        code, _, errors = cli("run", f"{first} vs {second}", "--data", data, "--out", tmp_path / "no")
        assert code == 2
        assert not (tmp_path / "no").exists()
        return " ".join(errors.split())

    other = samples.classifier(tmp_path / "other", ["law", "sport", "art"])
    assert "(law, sport, art) are not those of" in said(reference, other)
    encoder = samples.folder(tmp_path / "encoder", model=samples.graph())
    assert "is an embedding model" in said(reference, encoder)
    (other / "onnx" / "model.onnx").unlink()
    onnx.save(samples.graph(), other / "onnx" / "model.onnx")
    assert "expected logits" in said(reference, other)
    assert "candidate only" in said(other, reference)

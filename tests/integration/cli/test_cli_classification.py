"""`quantdrift run` on classification data, and studies that read them both ways, as a user types them."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

import torch
from transformers import ViTForImageClassification, ViTImageProcessorPil

from quantdrift.builtin.sentence.work import load_encoder
from quantdrift.evidence.probe import LinearProbe
from quantdrift.models.files.named import resolve
from quantdrift.runs.folder import read_run
from support import classifier_samples
from support.candidate_samples import WORDS
from support.tiny_command_line import Run, corpora, one_thread, place, quantdrift

READER = ViTImageProcessorPil(size={"height": classifier_samples.IMAGE, "width": classifier_samples.IMAGE})

__all__ = ["corpora", "one_thread", "place", "quantdrift"]

N_TRAIN, N_TEST = 60, 40
KINDS = ("air", "heat", "rest")


def lines(n: int, seed: int) -> list[dict[str, Any]]:
    """Texts whose label says which third of the vocabulary they are mostly drawn from."""
    rng = random.Random(seed)
    made = []
    for number in range(n):
        kind = number % 3
        words = [*rng.choices(WORDS[3 * kind : 3 * kind + 3], k=4), *rng.choices(WORDS, k=5)]
        made.append({"text": " ".join(words), "label": KINDS[kind]})
    return made


def write(folder: Path, **parts: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True)
    for part, content in parts.items():
        (folder / f"{part}.jsonl").write_text("\n".join(map(json.dumps, content)))
    return folder


@pytest.fixture(scope="module", autouse=True)
def _data(place: Path) -> None:
    """ROOT/kinds, texts of three classes; ROOT/images.npz; two classifiers."""
    write(place / "kinds", train=lines(N_TRAIN, 1), test=lines(N_TEST, 2))
    write(place / "bare", test=lines(N_TEST, 2))
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, size=(20, 32, 32, 3), dtype=np.uint8)
    np.savez(place / "images.npz", x_test=pictures[:12], y_test=np.arange(12) % 3, x_train=pictures[12:])
    for name, models, reader in (
        ("vit", classifier_samples.IMAGE_MODELS, READER),
        ("bert", classifier_samples.TEXT_MODELS, classifier_samples.tokenizer()),
        ("roberta", classifier_samples.TEXT_MODELS, classifier_samples.tokenizer()),
    ):
        classifier_samples.saved(place / name, models[name][0], reader)


def embeddings(place: Path, part: str) -> np.ndarray[Any, Any]:
    """What the model itself gives, without any of our own measuring."""
    encoder = load_encoder(resolve(str(place / "tiny")), device=torch.device("cpu"))
    content = (place / "kinds" / f"{part}.jsonl").read_text().splitlines()
    texts = [json.loads(line)["text"] for line in content]
    return np.asarray(encoder.model.encode_document(texts, show_progress_bar=False))


def test_an_embedding_model_is_read_by_a_probe(quantdrift: Run, place: Path) -> None:
    linear = pytest.importorskip("sklearn.linear_model", reason="scikit-learn is not installed")
    record = json.loads(quantdrift("run", "TINY@W3", "--data", "ROOT/kinds", "--json"))
    train = [line["label"] for line in lines(N_TRAIN, 1)]
    model = linear.LogisticRegression(max_iter=1000).fit(embeddings(place, "train"), train)
    labels = [line["label"] for line in lines(N_TEST, 2)]
    tests = embeddings(place, "test")
    assert record["metrics"]["reference.accuracy"]["value"] == model.score(tests, labels)
    evidence = read_run(Path(record["path"])).evidence()
    first = [evidence.item_ids[item] for item in evidence.reference_top.items[:, 0]]
    assert first == model.predict(tests).tolist()
    probe = LinearProbe.load(Path(record["path"]) / "probe.npz")
    assert probe.digest == record["settings"]["probe"]["digest"]
    np.testing.assert_allclose(probe.logits(tests), model.decision_function(tests), atol=1e-4)
    np.testing.assert_allclose(
        evidence.reference_top.reference_scores[:, 0], model.decision_function(tests).max(axis=1), atol=1e-4
    )
    sizes = {"kind": "classification", "inputs": "texts", "n_inputs": N_TEST, "n_classes": 3, "n_train": N_TRAIN}
    assert sizes.items() <= record["data"].items()
    assert (record["settings"]["reading"], record["settings"]["probe"]["converged"]) == ("linear probe", True)
    assert record["metrics"]["noise_floor"]["value"] == 0


def test_a_classifier_is_read_by_its_own_logits(quantdrift: Run, place: Path) -> None:
    out = json.loads(quantdrift("run", "ROOT/vit@W2-channel", "--data", "ROOT/images.npz", "--json"))
    assert out["settings"]["reading"] == "logits"
    assert (out["data"]["n_inputs"], out["data"]["n_classes"]) == (12, 3)
    assert out["data"]["inputs"] == "images"
    classifier = classifier_samples.load_classifier(resolve(str(place / "vit")), device=torch.device("cpu"))
    with np.load(place / "images.npz") as arrays:
        logits = classifier.encode(list(arrays["x_test"]), "input", 12)
    evidence = read_run(Path(out["path"])).evidence()
    first = [evidence.item_ids[item] for item in evidence.reference_top.items[:, 0]]
    assert first == [classifier.classes[best] for best in logits.argmax(axis=1)]
    # y_test counts classes by position
    right = np.mean(logits.argmax(axis=1) == np.arange(12) % 3)
    assert out["metrics"]["reference.accuracy"]["value"] == pytest.approx(right)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("run TINY@W4+query --data ROOT/kinds", "and classification has none"),
        ("run TINY@W4 --data ROOT/images.npz", "takes texts, and the data are images"),
        ("run ROOT/vit@W4 --data ROOT/kinds", "takes images, and the data are texts"),
        ("run ROOT/bert@W4 --data ROOT/data", "is a classifier"),
    ],
)
def test_what_does_not_fit_is_refused(quantdrift: Run, arguments: str, message: str) -> None:
    assert message in quantdrift(*arguments.split(), code=2)


def test_an_image_classifier_is_searched_by_its_pooled_representation(quantdrift: Run, place: Path) -> None:
    """As transformers gives it: the normed first token, which is what the head sees."""
    entries = [{"folder": str(place / "images.npz"), **more} for more in ({}, {"neighbours": True})]
    study = {"models": [{"model": str(place / "vit"), "name": "vit"}], "schemes": ["W3-channel"], "data": entries}
    Path("study.yaml").write_text(json.dumps(study))
    quantdrift("study", "run", "study.yaml", "--out", "both")
    plain = json.loads(quantdrift("run", "ROOT/vit@W3-channel", "--data", "ROOT/images.npz", "--json"))
    searched, classes = sorted(
        (read_run(file.parent) for file in Path("both").rglob("run.json")),
        key=lambda run: run.record["settings"]["reading"],
        reverse=True,
    )
    for name in ("flip@1", "accuracy"):
        assert classes.record["metrics"][name] == plain["metrics"][name]
    with np.load(place / "images.npz") as arrays:
        batch = READER(list(arrays["x_test"]), return_tensors="pt")
    with torch.no_grad():
        model = ViTForImageClassification.from_pretrained(place / "vit").eval()
        vectors = torch.nn.functional.normalize(model.vit(**batch).last_hidden_state[:, 0]).double()
    cosine = (vectors @ vectors.T).fill_diagonal_(-1).numpy()
    evidence = searched.evidence()
    assert [evidence.item_ids[item] for item in evidence.reference_top.items[:, 0]] == [
        evidence.input_ids[best] for best in cosine.argmax(axis=1)
    ]
    np.testing.assert_allclose(evidence.reference_top.reference_scores[:, 0], cosine.max(axis=1), atol=1e-5)


@pytest.mark.slow
def test_repair_tries_ways_on_the_train_part_and_counts_on_the_test_part(quantdrift: Run) -> None:
    asked = ("repair", "TINY@W2", "--data", "ROOT/kinds", "--quantizers", "rtn", "--out", "out", "--json")
    result = json.loads(quantdrift(*asked))
    assert {trial["flip@1"]["n"] for trial in result["deployments"]} == {N_TEST - N_TEST // 2}
    assert result["confirmed"]["n"] == N_TEST // 2
    assert {trial["n"] for trial in result["tried"] if trial["shift"] is not None} == {32, N_TRAIN}
    assert not any("+query" in trial["scheme"] or "+emb" in trial["scheme"] for trial in result["deployments"])
    assert len([trial for trial in result["deployments"] if trial["scheme"] == "W2-g128-rtn"]) == 1

"""The script that trains a small ViT: what it learns from, and what transformers then loads."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")
pytest.importorskip("PIL", reason="the extra 'images' is not installed")

import torch
import transformers

from quantdrift_paper import train_vit

N, SIDE = 40, 8


def arrays(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise, redder in one class and bluer in the other: no shift or mirror hides it."""
    rng = np.random.default_rng(seed)
    images, labels = rng.integers(0, 100, size=(N, SIDE, SIDE, 3)), np.arange(N) % 2
    images[labels == 0, :, :, 0] += 150
    images[labels == 1, :, :, 2] += 150
    return images.astype(np.uint8), labels


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (x_train, y_train), (x_test, y_test) = arrays(0), arrays(1)
    np.savez(tmp_path / "colours.npz", x_train=x_train, y_train=y_train + 7, x_test=x_test, y_test=y_test + 7)
    return tmp_path / "colours.npz"


def test_the_model_tells_classes_apart(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "vit"
    state = torch.get_rng_state()
    train_vit.main(["--data", str(data), "--out", str(out), "--epochs", "12"])
    assert torch.equal(torch.get_rng_state(), state)
    share = float(capsys.readouterr().out.partition("; ")[2].partition("%")[0]) / 100
    assert share >= 0.9
    images, labels = arrays(1)
    from PIL import Image  # noqa: PLC0415 -- an optional package

    classify = transformers.pipeline("image-classification", model=str(out), device="cpu")
    answers = classify([Image.fromarray(image) for image in images], top_k=1)
    right = np.mean([answer[0]["label"] == str(label + 7) for answer, label in zip(answers, labels, strict=True)])
    assert right == pytest.approx(share, abs=5e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_train": np.zeros((4, 9, 9, 3), np.uint8)}, "multiple of 4 pixels; got 9x9"),
        ({"y_train": np.zeros(N, int)}, "labels of two classes or more"),
        ({"x_train": None}, "has no train images"),
    ],
)
def test_what_cannot_be_learned_from_is_refused(
    change: dict[str, np.ndarray | None], message: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with np.load(data) as whole:
        content = {**whole, **change}
    if "x_train" in change and content["x_train"] is not None:
        content["y_train"] = np.arange(4)
    if content["x_train"] is None:
        del content["y_train"]
    np.savez(data, **{name: value for name, value in content.items() if value is not None})
    with pytest.raises(SystemExit) as stopped:
        train_vit.main(["--data", str(data), "--out", str(tmp_path / "vit")])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "vit").exists()

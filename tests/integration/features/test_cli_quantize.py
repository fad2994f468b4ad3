"""`quantdrift quantize` as a user sees it, on a tiny model in a folder."""

from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer

from quantdrift.models.files import saved as folders
from quantdrift.models.files.saved import read_record
from support.candidate_samples import embed, save_backbone
from support.command_line import cli


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_backbone(tmp_path / "tiny")


def quantize(spec: str = "./tiny@W3-g64", *words: str, out: str = "out") -> tuple[int, str, str]:
    return cli("quantize", spec, "-o", out, "--device", "cpu", "--no-cache", "-q", *words)


def test_it_says_where_the_model_is_and_how_to_use_it() -> None:
    _, shown, _ = quantize()
    assert "./tiny@W3-g64-rtn saved as safetensors" in shown
    assert "3 bits per weight of 13 linear layers, stored as float32" in shown
    assert f"{sum(read_record(Path('out'))['files'].values()) / 1e6:.1f} MB on disk" in shown
    assert "quantdrift run './tiny vs out' --data FOLDER" in shown
    # the lines that it shows are Python that works
    start = shown.index("from sentence_transformers")
    lines = [line.strip() for line in shown[start:].splitlines()[:3]]
    names: dict[str, object] = {}
    exec("\n".join(lines), names)
    loaded = names["model"]
    assert isinstance(loaded, SentenceTransformer)
    assert names["embeddings"].shape == (1, 192)  # type: ignore[attr-defined]  # an array, says exec
    assert not torch.equal(embed(loaded), embed(SentenceTransformer("tiny", device="cpu")))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("./tiny@W4A8",), "Leave A8 out"),
        (("./tiny@W4+query",), "Leave +query out"),
        (("./tiny@W3", "-o", "tiny"), "not a saved candidate: config.json"),
        (("./tiny@W3", "--data", "a", "--task", "b"), "got both"),
    ],
)
def test_what_is_wrong_is_said_early(words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantdrift.asking.saving.load_searching", lambda *_, **__: pytest.fail("loaded"))
    code, _, err = quantize(*words)
    assert code == 2
    assert said in err


def test_ctrl_c_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(folders, "files_of", pressed)
    code, _, err = quantize()
    assert code == 130
    assert "out was not written" in err
    assert [entry.name for entry in Path().iterdir()] == ["tiny"]

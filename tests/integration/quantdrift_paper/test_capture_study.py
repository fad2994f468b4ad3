"""A capture study of a tiny model: what is measured once, what criteria see, and what the results say."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

from quantdrift.runs.folder import Run as Finished
from quantdrift.runs.folder import read_run
from quantdrift.sensitivity import criteria, gaps
from support.tiny_command_line import N_QUERIES, Run, corpora, one_thread, place, quantdrift, text

__all__ = ["corpora", "one_thread", "place", "quantdrift"]

BLOCK: dict[str, Any] = {"criteria": ["gap", "reconstruction"], "budgets": [3.25, 3.5], "quantizers": ["rtn", "hqq"]}


def write(place: Path, *data: str, exclude: tuple[str, ...] = (), **block: Any) -> None:
    study = {
        "models": [{"model": str(place / "tiny"), "name": "tiny"}],
        "data": [str(place / name) for name in data],
        "capture": {**BLOCK, **block},
        "settings": {"k": 10, "noise_floor": False},
        "exclude": [{"scheme": scheme} for scheme in exclude],
    }
    Path("study.yaml").write_text(json.dumps(study))


def finished() -> dict[str, Finished]:
    return {path.name: read_run(path) for path in Path("quantdrift-runs/study/cells").iterdir()}


def flips(run: Finished) -> dict[str, bool]:
    """Straight from the file, without any metric."""
    rows = pq.read_table(run.path / "evidence.parquet").to_pylist()
    return {row["input_id"]: row["reference_items"][0] != row["candidate_items"][0] for row in rows}


@pytest.mark.slow
def test_a_study_of_capture(place: Path, quantdrift: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path / "own"))
    times = Counter[str]()
    for module, name in ((gaps, "_contributions"), (criteria, "_rounding_losses")):
        whole = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given, n=name, f=whole: (times.update([n]), f(*given))[1])
    write(place, "a", seeds=[0, 1], sizes=[4])
    quantdrift("study", "run", "study.yaml")
    runs = finished()
    assert len(runs) == 2 * (2 + 2 * (2 + 1))  # by either quantizer: uniform, and two budgets of two draws and of none
    assert times == {"_contributions": 2, "_rounding_losses": 1}

    result = json.loads(quantdrift("capture", "quantdrift-runs/study", "--table", "c.parquet", "--json", quiet=False))
    point = {"quantizer": "hqq", "budget": 3.5, "activations": 16}
    hqq = next(
        row for row in result["captures"] if (row["metric"], row["criterion"], row["of"]) == ("flip@1", "gap", point)
    )
    draws = ["+queries=4", "+queries=4+seed=1"]
    low, high = (np.mean(list(flips(runs[f"tiny@W{bits}-g128-hqq_on_a"]).values())) for bits in (3, 4))
    here = [np.mean(list(flips(runs[f"tiny@W3.5-g128-hqq+gap{draw}_on_a"]).values())) for draw in draws]
    assert (hqq["low"], hqq["high"], hqq["value"]) == pytest.approx((low, high, np.mean(here)))
    if low > high:
        assert hqq["ratio"]["value"] == pytest.approx((2 * low - sum(here)) / (2 * low - 2 * high))
    rows = pq.read_table("c.parquet").to_pylist()
    wanted = {"metric": "flip@1", "criterion": "gap", "quantizer": "hqq", "budget": 3.5, "against": None}
    (row,) = [row for row in rows if wanted.items() <= row.items()]
    assert (row["capture"], row["points"]) == (hqq["ratio"].get("value"), 2)

    held = {tuple(run.evidence().input_ids) for run in runs.values()}
    assert len(held) == 1  # all cells are judged on the same queries
    for run in runs.values():
        asked = {"share": 0.75, "seed": 0, "n_queries": 30, "of": N_QUERIES}
        assert asked.items() <= run.record["settings"]["held_out"].items()

    before = {name: (run.path / "run.json").stat().st_mtime_ns for name, run in runs.items()}
    write(place, "a", seeds=[0, 1], sizes=[4], budgets=[3.25, 3.5, 3.75])  # a larger grid measures what is new
    quantdrift("study", "run", "study.yaml")
    after = {name: (run.path / "run.json").stat().st_mtime_ns for name, run in finished().items()}
    assert ({name: after[name] for name in before}, len(after)) == (before, len(before) + 2 * 3)
    assert times == {"_contributions": 2, "_rounding_losses": 1}


def test_activations_leave_the_choice_of_widths_as_it_is(place: Path, quantdrift: Run) -> None:
    """The paper evaluates stored allocations again: what is chosen for weights alone is what A8 gets."""
    block: dict[str, Any] = {"criteria": ["gap"], "budgets": [3.5], "quantizers": ["rtn"], "sizes": [4]}
    write(place, "a", exclude=("W3-*", "W4-*", "W3A8-*", "W4A8-*"), activations=[16, 8], **block)
    quantdrift("study", "run", "study.yaml")
    runs = finished()
    alone, both = (runs[f"tiny@W3.5{a}-g128-rtn+gap+queries=4_on_a"] for a in ("", "A8"))
    assert both.record["quantization"]["allocation"] == alone.record["quantization"]["allocation"]
    assert both.record["files"] != alone.record["files"]


def changed(place: Path, name: str, rows: set[int]) -> None:
    """The corpus a, with other words in these queries."""
    (place / name).mkdir()
    (place / name / "corpus.jsonl").write_bytes((place / "a" / "corpus.jsonl").read_bytes())
    lines = [json.loads(line) for line in (place / "a" / "queries.jsonl").read_text().splitlines()]
    for row in rows:
        lines[row]["text"] = " ".join(random.Random(row).sample(text(9000 + row, 7).split(), 7))
    (place / name / "queries.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_no_criterion_sees_a_query_that_it_is_judged_on(place: Path, quantdrift: Run) -> None:
    """Whatever stands in the held-out queries, layers lose the same; of the others every single word counts."""
    asked: dict[str, Any] = {"criteria": ["gap", "activation_error"], "budgets": [3.5], "quantizers": ["rtn"]}
    asked |= {"sizes": [5], "exclude": ("W3-*", "W4-*")}
    write(place, "a", **asked)
    quantdrift("study", "run", "study.yaml")
    name = "tiny@W3.5-g128-rtn+{}+queries=5_on_{}"
    held = {int(query[1:]) for query in finished()[name.format("gap", "a")].evidence().input_ids}
    assert len(held) == 30
    changed(place, "others", held)
    changed(place, "own", set(range(N_QUERIES)) - held)
    write(place, "a", "others", "own", **asked)
    quantdrift("study", "run", "study.yaml")
    runs = finished()
    for criterion in ("gap", "activation_error"):
        losses, others, seen = (
            np.array(list(runs[name.format(criterion, data)].record["quantization"]["allocation"]["losses"].values()))
            for data in ("a", "others", "own")
        )
        assert others == pytest.approx(losses, rel=1e-3)
        assert seen != pytest.approx(losses, rel=5e-3)
        assert flips(runs[name.format(criterion, "others")]) != flips(runs[name.format(criterion, "a")])

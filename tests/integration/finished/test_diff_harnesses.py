"""`diff` of what beir and mteb themselves write, judged by pytrec_eval and by the paired run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pytest
import pytrec_eval
from beir import util

from quantdrift.datasets.retrieval import read_qrels
from quantdrift.finished.diff import PartDiff, diff_runs, estimate_of
from quantdrift.finished.readers import read_finished
from quantdrift.metrics import parse_metric
from support.mteb_samples import (
    one_thread,  # noqa: F401 -- used by being here
    other_task,
    quantized,
    retrieval_task,
    save_encoder,
    split_data,
    stock,
)

pytestmark = pytest.mark.slow  # the real harness runs

Results = dict[str, dict[str, float]]


@pytest.fixture(scope="module")
def arms() -> tuple[Results, Results, dict[str, dict[str, int]]]:
    """Rankings of 40 queries as beir's search returns them, and graded labels."""
    rng = np.random.default_rng(3)
    reference = rng.normal(size=(40, 80))
    both = []
    for scores in (reference, reference + 0.3 * rng.normal(size=reference.shape)):
        both.append(
            {
                f"q{row}": {f"d{item}": float(own[item]) for item in rng.permutation(80)[:50]}
                for row, own in enumerate(scores)
            }
        )
    qrels = {
        f"q{row}": {f"d{item}": int(grade) for item, grade in zip(items, (2, 1, 1, 0), strict=True)}
        for row, items in enumerate(rng.permuted(np.tile(np.arange(80), (40, 1)), axis=1)[:, :4])
    }
    return both[0], both[1], qrels


def values(part: PartDiff, *names: str) -> list[float | None]:
    return [estimate_of(parse_metric(name), part).value for name in names]


def test_qualities_of_both_arms_are_those_of_pytrec_eval(arms: Any, tmp_path: Path) -> None:
    reference, candidate, qrels = arms
    util.save_runfile(str(tmp_path / "a.trec"), reference)  # beir writes 0 for every rank
    (tmp_path / "b.json").write_text(json.dumps(candidate))
    util.write_to_tsv(str(tmp_path / "test.tsv"), qrels)
    labels = read_qrels(tmp_path / "test.tsv")
    assert labels == qrels
    runs = read_finished(tmp_path / "a.trec"), read_finished(tmp_path / "b.json")
    (part,) = diff_runs(*runs, qrels=labels).parts
    measures = {"ndcg_cut.10", "recall.10", "recip_rank"}
    for prefix, results in (("reference.", reference), ("", candidate)):
        judged = pytrec_eval.RelevanceEvaluator(qrels, measures).evaluate(results)
        means = [float(np.mean([own[name] for own in judged.values()])) for name in ("ndcg_cut_10", "recall_10")]
        ours = values(part, f"{prefix}ndcg@10", f"{prefix}recall@10")
        assert ours == pytest.approx(means, abs=1e-12)
    tops = [
        {query: max(own, key=own.__getitem__) for query, own in results.items()} for results in (reference, candidate)
    ]
    flips = np.mean([tops[0][query] != tops[1][query] for query in reference])
    assert values(part, "flip@1") == [pytest.approx(flips)]


def predictions(model: Any, task: Any, folder: Path) -> Path:
    mteb.evaluate(
        model,
        task,
        cache=None,
        co2_tracker=False,
        show_progress_bar=False,
        prediction_folder=folder,
        encode_kwargs={"batch_size": 8, "show_progress_bar": False},
    )
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """What mteb writes of a full-precision encoder, and of the same one quantized by hand."""
    root = tmp_path_factory.mktemp("predictions")
    model = stock(save_encoder(root / "model"))
    data: Mapping[str, Mapping[str, Any]] = {"en": {"test": split_data(20, 30), "dev": split_data(15, 25, seed=1)}}
    languages = {"en": ["eng-Latn"]}

    def tasks() -> list[Any]:
        searches = retrieval_task("Searches", data, languages=languages)
        return [searches, other_task("MockClassificationTask")]

    for task in tasks():
        predictions(model, task, root / "reference")
    with quantized(model, "W2-rtn"):
        for task in tasks():
            predictions(model, task, root / "candidate")
    return root / "reference", root / "candidate"


def test_predictions_of_mteb_are_compared_by_task_subset_and_split(folders: tuple[Path, Path]) -> None:
    found = diff_runs(*(read_finished(folder) for folder in folders))
    names = [part.name for part in found.parts]
    searches = [name for name in names if name.startswith("Searches")]
    assert sorted(searches) == ["Searches/en/dev", "Searches/en/test"]
    assert len([name for name in names if "Classification" in name]) == 2  # experiments
    raw = [json.loads((folder / "Searches_predictions.json").read_text()) for folder in folders]
    for part in found.parts:
        assert part.evidence is not None
        if part.name not in searches:
            assert part.evidence.deltas == "none"
            continue
        split = part.name.rpartition("/")[2]
        tops = [[max(own, key=own.__getitem__) for own in arm["en"][split].values()] for arm in raw]
        flips = np.mean([one != other for one, other in zip(*tops, strict=True)])
        assert 0 < flips < 1
        assert values(part, "flip@1") == [pytest.approx(flips)]

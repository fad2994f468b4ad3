"""`diff` of what beir and mteb themselves write, judged by pytrec_eval and by the paired run."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pytest
import pytrec_eval
from beir import util

from integration.quantdrift_mteb.mteb_samples import (
    one_thread,  # noqa: F401 -- used by being here
    retrieval_task,
    save_encoder,
    split_data,
    stock,
)
from quantdrift.data.retrieval import read_qrels
from quantdrift.finished.diff import PartDiff, diff_runs, estimate_of
from quantdrift.finished.formats import read_finished
from quantdrift.metrics import parse_metric
from support.candidate_samples import quantized

pytestmark = pytest.mark.slow  # the real harness runs


def values(part: PartDiff, *names: str) -> list[float | None]:
    return [estimate_of(parse_metric(name), part).value for name in names]


def test_qualities_of_both_arms_are_those_of_pytrec_eval(tmp_path: Path) -> None:
    """Rankings of 40 queries as beir's search returns them, and graded labels."""
    rng = np.random.default_rng(3)
    scores = rng.normal(size=(40, 80))
    reference, candidate = (
        {
            f"q{row}": {f"d{n}": float(row_scores[n]) for n in rng.permutation(80)[:50]}
            for row, row_scores in enumerate(arm)
        }
        for arm in (scores, scores + 0.3 * rng.normal(size=scores.shape))
    )
    qrels = {
        f"q{row}": {f"d{item}": grade for item, grade in zip(rng.permutation(80)[:4], (2, 1, 1, 0), strict=True)}
        for row in range(40)
    }
    util.save_runfile(str(tmp_path / "a.trec"), reference)  # beir writes 0 for every rank
    (tmp_path / "b.json").write_text(json.dumps(candidate))
    util.write_to_tsv(str(tmp_path / "test.tsv"), qrels)
    labels = read_qrels(tmp_path / "test.tsv")
    assert labels == qrels
    (part,) = diff_runs(read_finished(tmp_path / "a.trec"), read_finished(tmp_path / "b.json"), qrels=labels).parts
    for prefix, results in (("reference.", reference), ("", candidate)):
        judged = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", "recall.10"}).evaluate(results)
        means = [
            float(np.mean([row_scores[name] for row_scores in judged.values()]))
            for name in ("ndcg_cut_10", "recall_10")
        ]
        assert values(part, f"{prefix}ndcg@10", f"{prefix}recall@10") == pytest.approx(means, abs=1e-12)


def predict(model: Any, folder: Path) -> None:
    """What mteb writes of a search over two splits."""
    data: Mapping[str, Mapping[str, Any]] = {"en": {"test": split_data(20, 30), "dev": split_data(15, 25, seed=1)}}
    mteb.evaluate(
        model,
        retrieval_task("Searches", data, languages={"en": ["eng-Latn"]}),
        cache=None,
        co2_tracker=False,
        show_progress_bar=False,
        prediction_folder=folder,
        encode_kwargs={"batch_size": 8, "show_progress_bar": False},
    )


def test_predictions_of_mteb_are_compared_by_task_subset_and_split(tmp_path: Path) -> None:
    model, folders = stock(save_encoder(tmp_path / "model")), (tmp_path / "a", tmp_path / "b")
    predict(model, folders[0])
    with quantized(model, "W2-rtn"):  # the same one, by hand
        predict(model, folders[1])
    parts = {part.name: part for part in diff_runs(*map(read_finished, folders)).parts}
    raw = [json.loads((folder / "Searches_predictions.json").read_text()) for folder in folders]
    for split in ("dev", "test"):
        tops = [[max(ranking, key=ranking.__getitem__) for ranking in arm["en"][split].values()] for arm in raw]
        flips = np.mean([before != after for before, after in zip(*tops, strict=True)])
        assert 0 < flips < 1
        assert values(parts[f"Searches/en/{split}"], "flip@1") == [pytest.approx(flips)]

"""`diff` of what mteb itself writes, beside the rankings in its files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from integration.quantdrift_mteb.mteb_samples import (
    one_thread,  # noqa: F401 -- used by being here
    retrieval_task,
    save_encoder,
    scores,
    split_data,
    stock,
)
from quantdrift.finished.diff import PartDiff, diff_runs, estimate_of
from quantdrift.finished.formats import read_finished
from quantdrift.metrics import parse_metric
from support.candidate_samples import quantized

pytestmark = pytest.mark.slow  # the real harness runs


def values(part: PartDiff, *names: str) -> list[float | None]:
    return [estimate_of(parse_metric(name), part).value for name in names]


def predict(model: Any, folder: Path) -> None:
    """What mteb writes of a search over two splits."""
    data: Mapping[str, Mapping[str, Any]] = {"en": {"test": split_data(20, 30), "dev": split_data(15, 25, seed=1)}}
    scores(model, retrieval_task("Searches", data, languages={"en": ["eng-Latn"]}), prediction_folder=folder)


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

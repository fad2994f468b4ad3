"""Widths per layer inside mteb: chosen where there is a search, stored elsewhere, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mteb
import pytest
from mteb.mocks.mock_tasks import MockSTSTask

from quantdrift.errors import UnsupportedError
from support.mteb_samples import retrieval_task, scores, split_data

pytestmark = pytest.mark.usefixtures("cache")


def search(seed: int = 0, *, shortlist: int | None = None) -> Any:
    content = split_data(16, 30, seed=seed, shortlist=shortlist)
    kind = "Reranking" if shortlist else "Retrieval"
    return retrieval_task(f"Tiny{seed}", {"default": {"test": content}}, kind=kind)


def figures(model: Any, task: Any, **options: Any) -> dict[str, Any]:
    return scores(model, task, **options)["test"][0]


def pair_of(folder: Path, scheme: str) -> Any:
    return mteb.get_model(f"quantdrift:{folder}@{scheme}")


def test_a_search_chooses_widths_and_leaves_out_what_it_chose_them_on(folder: Path, tmp_path: Path) -> None:
    pair = pair_of(folder, "W3.5-g16+gap")
    found = figures(pair, search(), cache=mteb.ResultCache(tmp_path / "out"))
    assert found["drift_n_inputs"] == 12
    (file,) = (tmp_path / "out").rglob("run.json")
    record = json.loads(file.read_text())
    assert (record["data"]["n_queries"], record["data"]["inputs_left_out"]) == (16, 4)
    told = record["quantization"]["allocation"]
    assert (told["dataset"], told["calibration_inputs"]) == ("Tiny0", 4)
    assert set(told["widths"].values()) == {3, 4}


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (MockSTSTask, r"MockSTSTask \(STS\) is none"),
        (lambda: search(shortlist=5), "Tiny0 is no search over embeddings of this model"),
    ],
)
def test_without_a_search_over_embeddings_it_says_what_to_do(task: Any, said: str, folder: Path) -> None:
    with pytest.raises(UnsupportedError, match=f"{said}. Choose widths with quantdrift allocate"):
        scores(pair_of(folder, "W3.5-g16+gap"), task())

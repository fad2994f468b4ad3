"""What a pair does to a process: weights, caches, files, interruptions, names."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mteb")

import mteb
from mteb._create_dataloaders import _create_dataloader_from_texts
from mteb.mocks.mock_tasks import MockSTSTask

from quantdrift import harness
from support.mteb_samples import (
    QUIET,
    one_thread,  # noqa: F401 -- used by being here
    quantized,
    retrieval_task,
    save_cross_encoder,
    save_encoder,
    scores,
    split_data,
    stock,
    text,
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("model"), prompts={"query": "ba: ", "document": ""})


@pytest.fixture
def pair(folder: Path) -> Any:
    return mteb.get_model(f"quantdrift:{folder}@W3-rtn")


def small(*, seed: int = 0, **attributes: Any) -> Any:
    data = {"default": {"test": split_data(10, 30, seed=seed)}}
    return retrieval_task("TinyState", data, **attributes)


def embed(model: Any) -> Any:
    loader = _create_dataloader_from_texts([text(1), text(2)])
    asked = {"hf_split": "test", "hf_subset": "default", "batch_size": 2}
    return model.encode(loader, task_metadata=small().metadata, show_progress_bar=False, **asked)


def figures(model: Any, task: Any, **kwargs: Any) -> dict[str, Any]:
    """The scores of the only split and subset."""
    return scores(model, task, **kwargs)["test"][0]


def test_alone_the_pair_is_its_candidate_and_an_evaluation_restores_the_weights(pair: Any, folder: Path) -> None:
    plain = stock(folder)
    full = embed(plain)
    with quantized(plain, "W3-rtn"):
        low = embed(plain)
    before = pair.pair.fingerprint
    for task in (small(), MockSTSTask(), small()):
        np.testing.assert_array_equal(embed(pair), low)
        np.testing.assert_array_equal(embed(pair), low)
        scores(pair, task)
        assert pair.pair.fingerprint == before
        np.testing.assert_array_equal(embed(pair.base), full)


def test_two_schemes_in_one_process_do_not_meet(folder: Path) -> None:
    ones = {spec: mteb.get_model(f"quantdrift:{folder}@{spec}") for spec in ("W2", "W8")}
    apart = {spec: figures(model, small()) for spec, model in ones.items()}
    embed(ones["W2"])
    again = {spec: figures(model, small()) for spec, model in reversed(ones.items())}
    assert apart == again
    assert apart["W2"]["drift_epsilon_median"] > 10 * apart["W8"]["drift_epsilon_median"]
    assert apart["W2"]["drift_reference_main_score"] == apart["W8"]["drift_reference_main_score"]


def test_tasks_of_one_name_with_other_data_do_not_meet(pair: Any, folder: Path) -> None:
    other = split_data(10, 30)
    letters = str.maketrans("bdfg", "klmn")  # other words of the same lengths
    for side in ("corpus", "queries"):
        texts = [one.translate(letters) for one in other[side]["text"]]
        other[side] = other[side].remove_columns("text").add_column("text", texts)
    for content in (split_data(10, 30), other, split_data(10, 30, seed=1)):
        data = {"default": {"test": content}}
        expected = figures(stock(folder), retrieval_task("TinyState", data))["main_score"]
        found = figures(pair, retrieval_task("TinyState", data))
        assert found["drift_reference_main_score"] == expected


@pytest.mark.parametrize(
    ("make", "call", "fatal"),
    [
        (small, 1, KeyboardInterrupt),
        (small, 6, KeyboardInterrupt),
        (small, 7, RuntimeError),
        (MockSTSTask, 1, RuntimeError),
        (MockSTSTask, 4, KeyboardInterrupt),
    ],
)
def test_what_is_interrupted_leaves_weights_and_nothing_half_written(
    make: Any, call: int, fatal: type[BaseException], pair: Any, tmp_path: Path
) -> None:
    before, calls, encode = pair.pair.fingerprint, [], pair.base.encode

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == call:
            raise fatal("enough")
        return encode(*args, **kwargs)

    pair.base.encode = interrupted
    with pytest.raises(fatal, match="enough"):
        scores(pair, make(), cache=mteb.ResultCache(tmp_path / "out"))
    assert pair.pair.fingerprint == before
    assert not list((tmp_path / "out").rglob("*.*"))
    # what had been found before is not taken for what comes now
    other = small(seed=3)
    del pair.base.encode
    expected = figures(pair.base, small(seed=3))["main_score"]
    assert figures(pair, other)["drift_reference_main_score"] == expected


def test_an_error_of_ours_is_recorded_as_mteb_records_errors(tmp_path: Path) -> None:
    model = mteb.get_model(f"quantdrift:{save_cross_encoder(tmp_path)}@W4")
    options = {"cache": None, "encode_kwargs": dict(QUIET), "raise_error": False}
    result = mteb.evaluate(model, small(), **options)
    assert result.task_results == []
    assert "is a cross-encoder" in result.exceptions[0].exception


def test_emission_tracking_measures_once(
    pair: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Tracker:
        final_emissions = 0.25

        def __init__(self, **_: Any) -> None: ...

        def __enter__(self) -> Tracker:
            return self

        def __exit__(self, *_: object) -> None: ...

    module = types.ModuleType("codecarbon")
    module.EmissionsTracker = Tracker  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "codecarbon", module)
    searches = []
    measure = harness.measure
    monkeypatch.setattr(harness, "measure", lambda *a, **k: (searches.append(1), measure(*a, **k))[1])
    task, kept = small(), mteb.ResultCache(tmp_path / "out")
    options = {"cache": kept, "encode_kwargs": dict(QUIET), "co2_tracker": True}
    result = mteb.evaluate(pair, task, show_progress_bar=False, **options).task_results[0]
    assert searches == [1]
    assert result.kg_co2_emissions == 0.25
    assert "drift_flip_at_1" in result.scores["test"][0]
    assert "evaluate" not in vars(task)
    phases = [phase["name"] for phase in result.evaluation_phases]
    assert len(phases) == len(set(phases))


def test_saved_predictions_are_the_candidates(pair: Any, folder: Path, tmp_path: Path) -> None:
    scores(pair, small(), prediction_folder=tmp_path / "pair")
    plain = stock(folder)
    with quantized(plain, "W3-rtn"):
        scores(plain, small(), prediction_folder=tmp_path / "stock")
    saved, expected = (
        json.loads((tmp_path / name / "TinyState_predictions.json").read_text()) for name in ("pair", "stock")
    )
    assert saved["mteb_model_meta"]["model_name"] == "quantdrift/local__encoder@W3-g128-rtn"
    for query, found in expected["default"]["test"].items():
        assert saved["default"]["test"][query] == pytest.approx(found, abs=1e-6)


def test_results_are_as_deep_as_mteb_asks(pair: Any, tmp_path: Path) -> None:
    task = small(k_values=(1, 5, 10))
    scores(pair, task, prediction_folder=tmp_path)
    saved = json.loads((tmp_path / "TinyState_predictions.json").read_text())["default"]["test"]
    assert {len(found) for found in saved.values()} == {10}


def test_outside_of_an_evaluation_a_search_is_the_candidates(pair: Any, folder: Path) -> None:
    alone = small().evaluate(pair, "test", encode_kwargs=dict(QUIET))["default"]
    plain = stock(folder)
    with quantized(plain, "W3-rtn"):
        expected = small().evaluate(plain, "test", encode_kwargs=dict(QUIET))["default"]
    assert alone == pytest.approx(expected, abs=1e-5, nan_ok=True)
    with pytest.raises(ValueError, match="must be indexed"):
        pair.search([], task_metadata=None, hf_split="", hf_subset="", top_k=1, encode_kwargs={})


Change = Callable[[Any], dict[str, Any]]


def _prompts(model: Any) -> dict[str, Any]:
    model.base.model_prompts = {"query": "du: ", "document": "da: "}
    return {}


def _length(model: Any) -> dict[str, Any]:
    model.base.model.max_seq_length = 4
    return {}


CHANGES: Mapping[str, Change] = {
    "prompts": _prompts,
    "length": _length,
    "encode_kwargs": lambda _: {"encode_kwargs": {**QUIET, "truncate_dim": 8}},
}


@pytest.mark.parametrize("name", CHANGES)
def test_kept_embeddings_are_not_taken_for_others(name: str, folder: Path, pair: Any) -> None:
    first = figures(pair, small())
    options = CHANGES[name](pair)
    changed = figures(pair, small(), **options)
    fresh = mteb.get_model(f"quantdrift:{folder}@W3-rtn")
    options = CHANGES[name](fresh)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUANTDRIFT_CACHE", "off")
        expected = figures(fresh, small(), **options)
    assert changed == expected
    assert changed["drift_epsilon_median"] != first["drift_epsilon_median"]


def test_the_reference_is_embedded_once_for_all_schemes(folder: Path, cache: Path) -> None:
    for scheme, files in (("W3", 6), ("W4", 8), ("W3", 8)):
        scores(mteb.get_model(f"quantdrift:{folder}@{scheme}"), small())
        assert len(list(cache.rglob("*.npy"))) == files

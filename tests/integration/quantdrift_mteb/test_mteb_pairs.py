"""The effects of a pair on a process: weights, caches, files, interruptions, names."""

from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pytest
from mteb._create_dataloaders import _create_dataloader_from_texts
from mteb.mocks.mock_tasks import MockSTSTask

from integration.quantdrift_mteb.mteb_samples import QUIET, retrieval_task, save_encoder, scores, split_data, stock
from support.candidate_samples import quantized, text

pytestmark = pytest.mark.usefixtures("cache")


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
    for task in (small(), MockSTSTask()):
        np.testing.assert_array_equal(embed(pair), low)
        scores(pair, task)
        assert pair.pair.fingerprint == before
        np.testing.assert_array_equal(embed(pair.base), full)


@pytest.mark.parametrize(("make", "call", "fatal"), [(small, 6, KeyboardInterrupt), (MockSTSTask, 4, RuntimeError)])
def test_nothing_is_half_written(make: Any, call: int, fatal: type[BaseException], pair: Any, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("truncate", [True, False])
def test_kept_embeddings_are_not_taken_for_others(truncate: bool, folder: Path, pair: Any) -> None:
    first, fresh = figures(pair, small()), mteb.get_model(f"quantdrift:{folder}@W3-rtn")
    options = {"encode_kwargs": {**QUIET, "truncate_dim": 8}} if truncate else {}
    if not truncate:
        pair.base.model_prompts = fresh.base.model_prompts = {"query": "du: ", "document": "da: "}
    changed = figures(pair, small(), **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUANTDRIFT_CACHE", "off")
        assert changed == figures(fresh, small(), **options)
    assert changed["drift_epsilon_median"] != first["drift_epsilon_median"]

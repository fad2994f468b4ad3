"""The task as mteb sees it: its metadata, the structure it fills, and no network."""

from __future__ import annotations

import socket

import pytest

pytest.importorskip("mteb")

from mteb.results import TaskResult

from quantdrift_tasks import python_docs
from quantdrift_tasks.mteb_tasks import PythonDocsRetrieval


@pytest.fixture(scope="module")
def loaded() -> PythonDocsRetrieval:
    task = PythonDocsRetrieval()
    with pytest.MonkeyPatch.context() as patch:

        def refuse(*_: object) -> None:
            raise AssertionError("loading the data opened a connection")

        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(socket, "getaddrinfo", refuse)
        task.load_data(num_proc=1)
    return task


def test_the_metadata_is_complete_and_valid() -> None:
    metadata = PythonDocsRetrieval.metadata
    metadata._validate_metadata()
    assert metadata.is_filled()
    assert metadata.name == PythonDocsRetrieval.__name__
    assert metadata.main_score == "ndcg_at_10"
    assert metadata.eval_splits == ["test"]
    assert not metadata.is_multilingual


@pytest.mark.slow
def test_the_data_have_the_form_that_mteb_evaluates(loaded: PythonDocsRetrieval) -> None:
    assert loaded.data_loaded
    assert list(loaded.dataset) == ["default"]
    assert list(loaded.dataset["default"]) == ["test"]
    split = loaded.dataset["default"]["test"]
    data = python_docs.load()
    assert split["corpus"].to_dict() == {"id": list(data.document_ids), "text": list(data.documents)}
    assert split["queries"].to_dict() == {"id": list(data.query_ids), "text": list(data.queries)}
    assert split["relevant_docs"] == data.qrels
    assert split["top_ranked"] is None


def test_results_of_another_python_are_not_reused() -> None:
    task = PythonDocsRetrieval()
    scores = {"test": {"default": {"main_score": 0.5, "hf_subset": "default"}}}
    result = TaskResult.from_task_results(task, scores, evaluation_time=1.0)
    assert result.dataset_revision == python_docs.REVISION
    assert result.is_mergeable(task)
    other = result.model_copy(update={"dataset_revision": "cpython-3.9.0-rules1"})
    assert not other.is_mergeable(task)

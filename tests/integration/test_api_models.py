"""`quantdrift.drift` of models, and the page on Python as it stands."""

import copy
import doctest
from pathlib import Path

import pytest

from quantdrift import Embeddings, QuantizedPair, RetrievalDataset, Run, drift
from quantdrift.data.retrieval import read_beir_folder
from support.places import ROOT
from support.small_evidence import assert_same
from support.tiny_command_line import one_thread, place

__all__ = ["one_thread", "place"]


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def data(place: Path) -> RetrievalDataset:
    return read_beir_folder(place / "data")


@pytest.fixture(scope="module")
def named(place: Path) -> Run:
    return drift(str(place / "tiny"), "W2-rtn", place / "data", cache=False, batch_size=16)


def test_models_in_memory_give_what_names_give(place: Path, data: RetrievalDataset, named: Run, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 -- takes seconds

    model = SentenceTransformer(str(place / "tiny"), device="cpu")
    model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    by_scheme = drift(model, "W2-rtn", data, batch_size=16)
    assert_same(by_scheme.evidence(), named.evidence())
    assert model.training
    assert all((model.state_dict()[name] == tensor).all() for name, tensor in before.items())
    assert not list(tmp_path.glob("cache/embeddings/*"))  # what code it runs is not known
    other = copy.deepcopy(model)
    with QuantizedPair(other, "W2-rtn").candidate():
        by_model = drift(model, other, data, batch_size=16)
        by_name = drift(str(place / "tiny"), other, data, batch_size=16)
        queries, documents = (
            [getattr(encoder, f"encode_{role}")(list(texts)) for encoder in (model.eval(), other.eval())]
            for role, texts in (("query", data.queries), ("document", data.documents))
        )
    assert_same(by_model.evidence(), named.evidence())
    assert_same(by_name.evidence(), named.evidence())
    assert by_model.record["bits_per_weight"] is None
    by_arrays = drift(Embeddings(queries[0], documents[0]), Embeddings(queries[1], documents[1]), data)
    flips = [[query.input_id for query in run.changed()] for run in (by_arrays, named)]
    assert sorted(flips[0]) == sorted(flips[1])


@pytest.mark.slow
def test_the_page_on_python_is_right() -> None:
    examples = doctest.testfile(
        str(ROOT / "docs" / "reference" / "python.md"),
        module_relative=False,
        optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL,
    )
    assert examples.attempted > 30
    assert examples.failed == 0


@pytest.mark.parametrize("name", ["api", "candidate.pair", "data.retrieval"])
def test_examples_in_docstrings_are_right(name: str) -> None:
    from importlib import import_module  # noqa: PLC0415 -- as below

    module = import_module(f"quantdrift.{name}")
    from torch import nn  # noqa: PLC0415 -- of the example

    examples = doctest.testmod(module, extraglobs={"nn": nn})
    assert examples.attempted
    assert examples.failed == 0

"""Embeddings of both arms in files: encode, then search with faiss."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("beir")
pytest.importorskip("faiss")

from beir.retrieval.evaluation import EvaluateRetrieval
from beir.retrieval.search.dense import DenseRetrievalExactSearch
from beir.retrieval.search.dense.util import pickle_load
from beir_samples import (
    assert_same_evidence,
    assert_same_results,
    exact,
    model,
    qrels_of,
    quantized,
    save_encoder,
    text,
    texts,
)

from quantdrift.errors import DataError, RunError
from quantdrift.evidence import Evidence
from quantdrift_beir import PairedSearch, QuantizedPair

CORPUS, QUERIES = texts()
KS = [1, 5]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_encoder(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path / "cache"))


def evaluator(one: Any, **options: Any) -> EvaluateRetrieval:
    return EvaluateRetrieval(exact(one, corpus_chunk_size=12, **options), k_values=KS)


def found_in(place: Path, one: Any, **options: Any) -> Any:
    made = evaluator(one)
    return made.encode_and_retrieve(CORPUS, QUERIES, encode_output_path=str(place), **options)


def without_noise(evidence: Evidence) -> Evidence:
    """Of files there is no noise floor."""
    return replace(evidence, noise=None)


def test_both_arms_are_searched_as_stock_beir_searches_them(folder: str, tmp_path: Path) -> None:
    found = found_in(tmp_path / "pair", QuantizedPair(model(folder), "W3"))
    plain = model(folder)
    assert_same_results(found.reference, found_in(tmp_path / "full", plain))
    with quantized(plain, "W3"):
        assert_same_results(found, found_in(tmp_path / "low", plain))
    stock = EvaluateRetrieval.evaluate(qrels_of(QUERIES), found, KS)
    assert set(stock[0]) == {"NDCG@1", "NDCG@5"}


def test_evidence_is_that_of_a_search_by_dot_product(folder: str, tmp_path: Path) -> None:
    pair = QuantizedPair(model(folder), "W3")
    found = found_in(tmp_path / "pair", pair)
    direct = exact(pair).search(CORPUS, QUERIES, 5, "dot").evidence
    assert found.evidence.noise is None
    assert_same_evidence(found.evidence, without_noise(direct))


def test_each_arm_has_files_of_its_own(folder: str, tmp_path: Path) -> None:
    found_in(tmp_path, QuantizedPair(model(folder), "W3"))
    names = ["corpus.0.pkl", "corpus.1.pkl", "corpus.2.pkl", "queries.pkl"]
    for name in names:
        (own, ids), (reference, same) = (
            pickle_load(str(tmp_path / below / name)) for below in ("", "reference")
        )
        assert list(ids) == list(same)
        assert own.dtype == reference.dtype == np.float32
        assert np.abs(own - reference).max() > 1e-4
    assert {file.name for file in tmp_path.glob("*.*")} == {*names, "quantdrift.json"}


def test_with_query_in_the_scheme_the_index_is_the_references(folder: str, tmp_path: Path) -> None:
    found_in(tmp_path, QuantizedPair(model(folder), "W3+query"))
    for name, same in (("corpus.0.pkl", True), ("queries.pkl", False)):
        own, reference = (pickle_load(str(tmp_path / b / name))[0] for b in ("", "reference"))
        assert np.array_equal(own, reference) == same


def test_files_of_another_scheme_are_refused_unless_they_are_to_be_overwritten(
    folder: str, tmp_path: Path
) -> None:
    eight = QuantizedPair(model(folder), "W8", name="tiny")
    two = QuantizedPair(model(folder), "W2", name="tiny")
    found_in(tmp_path, eight)
    with pytest.raises(RunError, match=r"holds other embeddings \(of tiny@W8-g128-rtn\)"):
        found_in(tmp_path, two)
    assert found_in(tmp_path, eight).drift["epsilon"].value < 0.1 * (
        found_in(tmp_path, two, overwrite=True).drift["epsilon"].value
    )


def test_files_of_a_stock_run_or_of_other_texts_are_refused(folder: str, tmp_path: Path) -> None:
    found_in(tmp_path / "stock", model(folder))
    pair = QuantizedPair(model(folder), "W4")
    with pytest.raises(RunError, match=r"no quantdrift\.json"):
        found_in(tmp_path / "stock", pair)
    found_in(tmp_path / "pair", pair)
    fewer = dict(list(CORPUS.items())[:15])
    with pytest.raises(RunError, match="for these texts"):
        evaluator(pair).encode_and_retrieve(
            fewer, QUERIES, encode_output_path=str(tmp_path / "pair")
        )
    found = evaluator(pair).encode_and_retrieve(
        fewer, QUERIES, encode_output_path=str(tmp_path / "pair"), overwrite=True
    )
    assert set(found.evidence.n_items.tolist()) == {15}  # no part of the larger corpus is left


def test_one_changed_text_is_another_corpus(folder: str, tmp_path: Path) -> None:
    pair = QuantizedPair(model(folder), "W4")
    found_in(tmp_path, pair)
    other = {**CORPUS, "d3": {"title": "", "text": "heat"}}
    with pytest.raises(RunError, match="for these texts"):
        evaluator(pair).encode_and_retrieve(other, QUERIES, encode_output_path=str(tmp_path))


def test_ties_break_by_the_order_of_the_corpus_whatever_order_files_are_listed_in(
    folder: str, tmp_path: Path
) -> None:
    pair = QuantizedPair(model(folder), "W3")
    twice = {**CORPUS, **{f"again-{name}": one for name, one in CORPUS.items()}}
    search = exact(pair, corpus_chunk_size=12)
    search.encode(twice, QUERIES, str(tmp_path))
    files = [str(tmp_path / f"corpus.{number}.pkl") for number in (4, 2, 0, 3, 1)]
    found = search.search_from_files(str(tmp_path / "queries.pkl"), files, 5)
    direct = exact(pair).search(twice, QUERIES, 5, "dot").evidence
    assert found.drift["tied"].value == 1
    assert_same_evidence(found.evidence, without_noise(direct))


def test_what_is_there_already_is_not_embedded_again(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = found_in(tmp_path / "pair", QuantizedPair(model(folder), "W3-gptq+calib=20"))
    monkeypatch.setenv("QUANTDRIFT_CACHE", "off")
    again = QuantizedPair(model(folder), "W3-gptq+calib=20")
    again.base.q_model.encode = None  # it would fail
    assert_same_evidence(found_in(tmp_path / "pair", again).evidence, found.evidence)


def test_half_written_files_are_not_taken_for_whole_ones(folder: str, tmp_path: Path) -> None:
    pair = QuantizedPair(model(folder), "W3")
    found_in(tmp_path, pair)
    (tmp_path / "reference" / "corpus.1.pkl").unlink()
    with pytest.raises(RunError, match="overwrite=True"):
        found_in(tmp_path, pair)


def test_searching_files_of_another_pair_is_refused(folder: str, tmp_path: Path) -> None:
    pair = QuantizedPair(model(folder), "W3", name="tiny")
    found_in(tmp_path, pair)
    files = [str(tmp_path / f"corpus.{number}.pkl") for number in (2, 0, 1)]
    asked = {"query_embeddings_file": str(tmp_path / "queries.pkl"), "top_k": 5}
    exact(pair).search_from_files(corpus_embeddings_files=files, **asked)  # in whatever order
    other = QuantizedPair(model(folder), "W4", name="tiny")
    with pytest.raises(DataError, match="holds embeddings of tiny@W3-g128-rtn; expected tiny@W4"):
        exact(other).search_from_files(corpus_embeddings_files=files, **asked)
    with pytest.raises(DataError, match=r"expected the files corpus\.0\.pkl"):
        exact(pair).search_from_files(corpus_embeddings_files=files[:2], **asked)
    shutil.rmtree(tmp_path / "reference")
    (tmp_path / "quantdrift.json").unlink()
    with pytest.raises(DataError, match="no embeddings of a pair"):
        exact(pair).search_from_files(corpus_embeddings_files=files, **asked)


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"whose": {"spec": "tiny@W3"}}', '{"whose": null}']
)
def test_a_marker_that_was_not_written_here_makes_the_embeddings_unknown(
    folder: str, tmp_path: Path, content: str
) -> None:
    pair = QuantizedPair(model(folder), "W3", name="tiny")
    found = found_in(tmp_path, pair)
    (tmp_path / "quantdrift.json").write_text(content)
    with pytest.raises(RunError, match=r"\(its quantdrift\.json cannot be read, .*overwrite=True"):
        found_in(tmp_path, pair)
    files = [str(tmp_path / f"corpus.{number}.pkl") for number in range(3)]
    with pytest.raises(DataError, match=r"\(its quantdrift\.json cannot be read, .*expected those"):
        exact(pair).search_from_files(str(tmp_path / "queries.pkl"), files, 5)
    again = found_in(tmp_path, pair, overwrite=True)
    assert_same_evidence(again.evidence, found.evidence)


def test_files_of_an_arm_that_are_missing_are_named(folder: str, tmp_path: Path) -> None:
    pair = QuantizedPair(model(folder), "W3")
    found_in(tmp_path, pair)
    files = [str(tmp_path / f"corpus.{number}.pkl") for number in range(3)]
    (tmp_path / "reference" / "corpus.1.pkl").unlink()
    with pytest.raises(DataError, match=r"reference.corpus\.1\.pkl is missing.*overwrite=True"):
        exact(pair).search_from_files(str(tmp_path / "queries.pkl"), files, 5)
    with pytest.raises(DataError, match=r"expected the files corpus\.0\.pkl, .*; got none"):
        exact(pair).search_from_files(str(tmp_path / "queries.pkl"), [], 5)


def test_a_file_that_the_scheme_names_counts_by_what_it_holds(folder: str, tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"

    def pair_of(seed: int) -> QuantizedPair:
        file.write_text("\n".join(text(seed + number) for number in range(20)))
        return QuantizedPair(model(folder), f"W3-g64-gptq+calib={file}", name="tiny")

    first = found_in(tmp_path / "files", pair_of(0))
    other = pair_of(1000)
    with pytest.raises(RunError, match="holds other embeddings"):
        found_in(tmp_path / "files", other)
    files = [str(tmp_path / "files" / f"corpus.{number}.pkl") for number in range(3)]
    with pytest.raises(DataError, match="where the scheme names a file, the same content"):
        exact(other).search_from_files(str(tmp_path / "files" / "queries.pkl"), files, 5)
    again = found_in(tmp_path / "files", other, overwrite=True)
    assert again.drift["epsilon"].value != first.drift["epsilon"].value
    assert_same_evidence(found_in(tmp_path / "files", pair_of(1000)).evidence, again.evidence)


def test_widths_are_chosen_on_the_search_that_the_files_are_for(
    folder: str, tmp_path: Path
) -> None:
    pair = QuantizedPair(model(folder), "W3.5+gap")
    found = found_in(tmp_path, pair)
    direct = exact(pair).search(CORPUS, QUERIES, 5, "dot").evidence
    assert 0 < found.evidence.n_inputs < len(QUERIES)
    assert_same_evidence(found.evidence, without_noise(direct))
    assert_same_evidence(found_in(tmp_path, pair).evidence, found.evidence)


def test_a_search_class_that_goes_through_files_gives_either_arms_results(
    folder: str, tmp_path: Path
) -> None:
    class Filed(DenseRetrievalExactSearch):  # type: ignore[misc]  # its type is not known
        def search(self, corpus: Any, queries: Any, top_k: int, *_: Any, **__: Any) -> Any:
            self.model.encode_queries(["drag"])  # an arm's weights are in place from here on
            self.encode(corpus, queries, str(tmp_path))
            self.model.encode_queries(["drag"])
            files = [str(tmp_path / "corpus.0.pkl")]
            return self.search_from_files(str(tmp_path / "queries.pkl"), files, top_k)

    pair = QuantizedPair(model(folder), "W3")
    search = Filed(pair, batch_size=8, show_progress_bar=False)
    found = EvaluateRetrieval(search, k_values=KS).retrieve(CORPUS, QUERIES)
    direct = exact(pair).search(CORPUS, QUERIES, 5, "dot")
    assert_same_results(found, direct)
    assert_same_results(found.reference, direct.reference)
    assert_same_evidence(found.evidence, without_noise(direct.evidence))


def test_a_file_name_for_several_parts_needs_a_star(folder: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"expected a name with a \*"):
        found_in(tmp_path, QuantizedPair(model(folder), "W3"), corpus_filename="corpus.pkl")


def test_a_run_folder_is_written_without_the_model(folder: str, tmp_path: Path) -> None:
    found = found_in(tmp_path / "files", QuantizedPair(model(folder), "W3", name="tiny"))
    record = found.save(tmp_path / "run", qrels=qrels_of(QUERIES)).record
    assert record["spec"] == "tiny@W3-g128-rtn"
    assert record["settings"]["search"] == "from files"
    assert record["settings"]["noise_floor"] is False
    assert record["metrics"]["gold_lost@1"]["value"] is not None


def test_two_searches_keep_their_files_apart(folder: str, tmp_path: Path) -> None:
    low = model(folder)
    with quantized(low, "W3"):
        pair = PairedSearch(*(exact(one, corpus_chunk_size=12) for one in (model(folder), low)))
        found = EvaluateRetrieval(pair, k_values=KS).encode_and_retrieve(
            CORPUS, QUERIES, encode_output_path=str(tmp_path / "two")
        )
    expected = found_in(tmp_path / "pair", QuantizedPair(model(folder), "W3"))
    assert_same_results(found, expected)
    assert_same_results(found.reference, expected.reference)
    assert found.drift["flip@1"] == expected.drift["flip@1"]

"""Reading finished runs: every format by its content, and what is wrong with a file."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from quantdrift.base.errors import DataError
from quantdrift.finished.contents import Part
from quantdrift.finished.formats import read_finished
from support.finished_samples import A, B, question, write_json, write_mteb, write_samples, write_trec


def test_every_format_is_told_by_its_content_and_not_by_its_name(tmp_path: Path) -> None:
    samples = write_samples(tmp_path / "lm", "t", [question(0, [-1.0, -2.0])])
    (tmp_path / "predictions").mkdir()
    write_mteb(tmp_path / "predictions" / "T_predictions.json", A)
    made = {
        write_trec(tmp_path / "one.json", A): "trec",
        write_json(tmp_path / "two.trec", A): "json",
        write_mteb(tmp_path / "three.txt", A): "mteb",
        tmp_path / "predictions": "mteb",
        samples: "lm-eval",
        next(samples.glob("*.jsonl")): "lm-eval",
    }
    assert {path: read_finished(path).format for path in made} == made


def test_the_score_decides_and_a_gzipped_copy_is_the_same(tmp_path: Path) -> None:
    plain = write_trec(tmp_path / "a.trec", A, zero_ranks=True)
    packed = tmp_path / "a.run"  # not called .gz
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    run, copy = read_finished(plain), read_finished(packed)
    assert run.parts == copy.parts == {"": Part(kind="rankings", content=A)}
    assert run.digest == copy.digest


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("q1 Q0 d1 1 0.5\n", "line 1: expected a TREC run file"),
        ("q1 Q0 d1 1 0.5 t\nq1 Q0 d2 2 high t\n", "line 2: expected 6 columns"),
        ("q1 Q0 d1 1 0.5 t\nq1 Q0 d1 2 0.4 t\n", "line 2: query 'q1' has document 'd1' twice"),
        ({"ndcg": {"NDCG@1": 0.5}, "map": {}, "recall": {}, "precision": {}}, "save_results"),
        ({"results": {"arc": {}}, "configs": {"arc": {"task": "arc"}}}, "expected document to score"),
        ({"q1": {"d1": 0.5}, "q2": {"d1": "high"}}, r"for query 'q2'; got \('d1', 'high'\)"),
        ({"q1": {"d1": 0.5}, "q2": 3}, "for query 'q2'; got 3"),
    ],
)
def test_what_holds_no_rankings_is_refused_with_its_place(content: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.run"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(DataError, match=message):
        read_finished(path)


def test_predictions_of_mteb_are_read_by_subset_and_split(tmp_path: Path) -> None:
    write_mteb(tmp_path / "One_predictions.json", A)
    write_mteb(tmp_path / "Two_predictions.json", B)
    single = read_finished(tmp_path / "One_predictions.json")
    assert (single.name, single.data, list(single.parts)) == ("some/model", "One", ["default/test"])
    both = read_finished(tmp_path)
    assert list(both.parts) == ["One/default/test", "Two/default/test"]


def test_the_latest_samples_of_a_task_count(tmp_path: Path) -> None:
    folder = write_samples(tmp_path / "m", "t", [question(0, [-1.0, -2.0])])
    write_samples(folder, "t", [question(0, [-3.0, -2.0])], date="2026-02-01T00-00-00.000001")
    assert read_finished(folder).parts["t"].content[0][0]["filtered_resps"][0][0] == "-3.0"


@pytest.mark.parametrize("predictions", [[["x", "y"], ["x", "x"]], {"pair": [0.5, 0.2]}, [0.5], {}])
def test_predictions_of_what_is_no_search_are_refused(predictions: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected rankings of documents"):
        read_finished(write_mteb(tmp_path / "a", predictions))


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("text", [f'{{"q": {DEEP}}}', f'{{"q": {{"d": {"7" * 5_000}}}}}'])
@pytest.mark.parametrize("name", ["a.json", "samples_t_2026-01-02T03-04-05.jsonl"])
def test_json_that_no_harness_writes_is_told(tmp_path: Path, text: str, name: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=r"nested|Exceeds"):
        read_finished(tmp_path / name)

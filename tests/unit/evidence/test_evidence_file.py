"""Evidence on disk: nothing is lost, other tools read it as it is, damage is told."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quantdrift.base.errors import RunError
from quantdrift.evidence.file import read_evidence, write_evidence
from quantdrift.evidence.record import Evidence, Noise
from quantdrift.measuring.flow import assemble
from quantdrift.scoring.streamed import score_ragged
from support.small_evidence import assert_same

QUERIES = ["q1", "what is it, Zoë?", "問い"]
ITEMS = ["d1", "ähnlich", "🐍", "d 4", "unused"]


def shortlist(positions: list[int], *scores: list[float]) -> Any:
    return (np.array(positions), *(np.array(part, dtype=np.float32) for part in scores))


def evidence(*, judged: bool = True, noisy: bool = True) -> Evidence:
    """Three inputs with 3, 1 and 2 items of which two are kept."""
    state = score_ragged(
        [
            shortlist([0, 1, 2], [0.1, 0.7, 0.5], [0.1, 0.4, 0.6]),
            shortlist([3], [1], [1]),
            shortlist([0, 2], [-2, -3], [-2, -3]),
        ],
        k=2,
    )
    qrels = {"q1": {"🐍": 2, "not in the corpus": 1}, "問い": {"d1": 0, "d 4": -1}}
    noise = Noise(flips=np.array([True, False, False]), epsilon=np.array([1e-7, 0, 2e-7], np.float32))
    return assemble(
        state, input_ids=QUERIES, item_ids=ITEMS, qrels=qrels if judged else None, noise=noise if noisy else None
    )


def written(content: Evidence, tmp_path: Path) -> Path:
    path = tmp_path / "evidence.parquet"
    write_evidence(content, path)
    return path


@pytest.mark.parametrize(("judged", "noisy"), [(True, True), (False, False)])
def test_what_is_written_is_read_back(tmp_path: Path, judged: bool, noisy: bool) -> None:
    before = evidence(judged=judged, noisy=noisy)
    assert_same(read_evidence(written(before, tmp_path)), before)


def test_a_file_of_several_row_groups_and_of_plain_strings_is_the_same(tmp_path: Path) -> None:
    """Each group lists its names anew, or not at all where there are too many."""
    before = evidence()
    table = pq.read_table(written(before, tmp_path))
    path = tmp_path / "again.parquet"
    for how in ({"row_group_size": 1}, {"use_dictionary": False}, {"row_group_size": 2, "data_page_version": "2.0"}):
        pq.write_table(table, path, **how)
        assert_same(read_evidence(path), before)


def test_other_tools_read_names_and_figures(tmp_path: Path) -> None:
    table = pq.read_table(written(evidence(), tmp_path)).to_pydict()
    assert table["input_id"] == QUERIES
    assert table["reference_items"] == [["ähnlich", "🐍"], ["d 4"], ["d1", "🐍"]]
    assert table["candidate_items"] == [["🐍", "ähnlich"], ["d 4"], ["d1", "🐍"]]
    for name, wanted in {
        "reference_items_reference_scores": [[0.7, 0.5], [1], [-2, -3]],
        "reference_items_candidate_scores": [[0.4, 0.6], [1], [-2, -3]],
        "candidate_items_reference_scores": [[0.5, 0.7], [1], [-2, -3]],
        "candidate_items_candidate_scores": [[0.6, 0.4], [1], [-2, -3]],
    }.items():
        assert table[name] == [pytest.approx(row) for row in wanted]
    assert (table["flip"], table["n_items"]) == ([True, False, False], [3, 1, 2])
    assert table["gap"] == [pytest.approx(0.2), None, 1]  # one item has no gap
    assert table["candidate_gap"] == [pytest.approx(0.2), None, 1]
    assert table["epsilon"] == [pytest.approx(0.3), 0, 0]
    assert table["separation"] == [pytest.approx(0.2 / 0.6), None, float("inf")]
    assert table["S"] == [pytest.approx(0.1 + 0.3), 0, 0]
    assert table["delta_min"] == [pytest.approx(-0.3), 0, 0]
    assert table["judged_items"] == [["🐍", "not in the corpus"], [], ["d1", "d 4"]]
    assert (table["judged_grades"], table["noise_flip"]) == ([[2, 1], [], [0, -1]], [True, False, False])


# --- files that cannot be read ---------------------------------------------------------------


def floats(rows: list[Any]) -> pa.Array:
    return pa.array(rows, pa.list_(pa.float32()))


BAD: dict[str, tuple[str, pa.Array]] = {
    "a null in a list": ("reference_items", pa.array([["a", None], ["b"], ["c", "d"]])),
    "NaN for a score": ("candidate_items_reference_scores", floats([[1, np.nan], [1], [1, 0]])),
    "extremes that are swapped": ("delta_min", pa.array([9, 0, 0], pa.float32())),
    "an id twice": ("input_id", pa.array(["a", "b", "b"])),
    "numbers for ids": ("input_id", pa.array([1, 2, 3])),
    "no items, and two listed": ("n_items", pa.array([0, 1, 2])),
    "grades of fewer items": ("judged_grades", pa.array([[2], [], [0, -1]])),
    "a number for a flip": ("noise_flip", pa.array([1, 0, 0])),
    "a null in the noise": ("noise_epsilon", pa.array([None, 0, 0], pa.float32())),
}


@pytest.mark.parametrize(("name", "values"), BAD.values(), ids=BAD)
def test_a_foreign_column_is_refused(tmp_path: Path, name: str, values: pa.Array) -> None:
    path = written(evidence(), tmp_path)
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.column_names.index(name), name, values), path)
    with pytest.raises(RunError, match="does not hold evidence"):
        read_evidence(path)


def test_a_few_bytes_that_unfold_to_millions_of_rows(tmp_path: Path) -> None:
    path = written(evidence(), tmp_path)
    key, held = b"quantdrift_evidence_version", pq.read_schema(path).metadata
    table = pa.table({"noise_flip": pa.array(np.zeros(5_000_000, dtype=bool))})
    pq.write_table(table.replace_schema_metadata({key: held[key]}), path)
    assert path.stat().st_size < 50_000
    with pytest.raises(RunError, match="5,000,000 inputs"):
        read_evidence(path)


def test_a_few_bytes_that_unfold_to_a_long_name_many_times(tmp_path: Path) -> None:
    state = score_ragged([shortlist([0], [1], [1])] * 1000, k=1)
    path = written(assemble(state, input_ids=list(map(str, range(1000))), item_ids=["d" * 100_000]), tmp_path)
    assert path.stat().st_size < 50_000
    before = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(before)
    pa.set_memory_pool(counted)
    try:
        read_evidence(path)
    finally:
        pa.set_memory_pool(before)
    assert counted.max_memory() < 10_000_000


def test_a_page_that_is_damaged(tmp_path: Path) -> None:
    """Also without the digest of the whole file, which run.json has."""
    path = written(evidence(), tmp_path)
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    content = bytearray(path.read_bytes())
    content[column.dictionary_page_offset + column.total_compressed_size - 1] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"checksum|CRC"):
        read_evidence(path)

"""Corpus sizes in a study by hand: the cells of `sizes`, both ends compared over queries, and the paper's table."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from quantdrift.metrics import parse_metric
from quantdrift.study.folder import StudyFolder
from quantdrift.study.plan import Cell, cells_of, read_study
from quantdrift.study.results import pooled, results_of
from quantdrift_paper.tables import Source
from support.comparison_samples import N, evidence_of, flipped
from support.study_samples import planned

DOCUMENTS = {"5": 5, "8": 8, "all": 12}


def study_of(
    folder: Path, flips: Mapping[str, Mapping[str, range]], *schemes: str, images: bool = False
) -> StudyFolder:
    """A study of parts of 5, 8 and all 12 documents; those queries flip that are named by corpus and size.

    Where a query flips, first and second change places: the gap is epsilon, and the separation a half; elsewhere it has
    no end.
    """

    def finished(cell: Cell) -> Any:
        size = str(cell.data.sizes[0])
        n, rows = DOCUMENTS[size], flips[cell.data.corpus].get(size)
        if rows is None:
            return None
        reference = np.random.default_rng(0).permuted(np.tile(np.linspace(0, 1, n), (N, 1)), axis=1)
        data = {"fingerprint": cell.data.called, "corpus_size": {"n": n, "of": 12}}
        kind = {"modalities": "text to image"} if images else {}
        return evidence_of(reference, flipped(reference, rows)), {"data": {**data, **kind}}

    data = [{"task": name, "sizes": [5, 8, "all"]} for name in flips]
    return planned(folder, {"models": ["m_1"], "schemes": [*schemes], "data": data}, finished)


def test_each_size_is_a_cell_and_the_noise_floor_is_of_the_largest(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(
        "models: [minilm]\nschemes: [W4]\nsettings: {noise_floor: true}\n"
        "data: [{folder: ./fiqa, sizes: [250, 1000, all]}, {task: T, name: x, sizes: [9, 10]}, Whole]\n"
    )
    cells = cells_of(read_study(tmp_path / "study.yaml"))
    names = ["fiqa-250", "fiqa-1000", "fiqa-all", "x-9", "x-10", "Whole"]
    assert [cell.name.split("_on_")[1] for cell in cells] == names
    assert [cell.settings.noise_floor for cell in cells] == [False, False, True, False, True, True]
    assert {cell.data.corpus for cell in cells} == {"fiqa", "x", "Whole"}
    assert len({cell.data.whole for cell in cells}) == 3  # each corpus is read once


FLIPS = {
    # of the smallest part 6 queries flip alone, of the largest 12: p = 0.24
    "a_corpus": {"5": range(36), "8": range(60), "all": range(6, 48)},
    # 31 and none: p < 0.0001
    "b": {"5": range(31), "all": range(0)},
    "open": {"5": range(60)},
}


def test_the_table_has_both_ends_of_every_corpus(tmp_path: Path) -> None:
    tables, left_out = Source(folders=[study_of(tmp_path, FLIPS, "W4")]).tables()
    table = tables["corpus"]
    assert table.rows == [
        [r"m\_1", r"a\_corpus", "5", "12", r"60.0\%", r"70.0\%", "0.500", "0.500"],
        [r"m\_1", "b", "5", "12", r"51.7\%", r"0.0\%$^{*}$", "0.500", "--"],
    ]
    assert table.about.startswith("Of W4-g128-rtn, ")
    assert "text-to-image" in left_out["clip_corpus"]
    both = Source(folders=[study_of(tmp_path / "two", FLIPS, "W4", "W3")]).tables()[0]["corpus"]
    assert both.rows == table.rows  # of W4 alone, as in the paper


def test_searches_of_images_have_a_table_of_their_own(tmp_path: Path) -> None:
    tables, left_out = Source(folders=[study_of(tmp_path, FLIPS, "W4", images=True)]).tables()
    assert "no search" in left_out["corpus"]
    assert (tables["clip_corpus"].labels, len(tables["clip_corpus"].rows)) == (["Encoder", "Dataset"], 2)


def test_a_part_is_no_further_corpus(tmp_path: Path) -> None:
    """Means over corpora and schemes compared over them are of the whole ones alone."""
    flips = {"a": {"5": range(60), "8": range(60), "all": range(30)}}
    study = study_of(tmp_path, flips, "W4", "W3")
    (row,) = [row for row in Source(folders=[study]).tables()[0]["arch"].rows if row]
    assert row[3] == r"50.0\%"
    (test,) = pooled(results_of(study)[0], parse_metric("flip@1"))
    assert (test.n_corpora, test.mean) == (1, 0.5)

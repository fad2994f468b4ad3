"""Suites: every one that is there can be planned, as it is, offline, and with other models and data."""

from pathlib import Path

import pytest

from quantdrift.base.errors import StudyError, UnknownNameError
from quantdrift.study.plan import cells_of
from quantdrift.study.suites import load_suite, suite_names
from quantdrift_paper.tables import FIGURES, PLANS


@pytest.mark.parametrize("name", suite_names())
def test_every_suite_can_be_planned(name: str) -> None:
    suite = load_suite(name)
    assert suite.about
    cells = cells_of(suite.study())
    assert all(cell.data.mteb for cell in cells)  # the paper's
    assert {*suite.shows} <= {*PLANS, *FIGURES}
    if suite.offline is not None:
        offline = cells_of(suite.study(offline=True))
        assert {cell.model for cell in offline} <= {"minilm", "python-docs-reranker", "small-clip", "vit"}
        assert all(cell.data.task or cell.data.folder for cell in offline)
        small, whole = (
            {(it.spec.scheme.quantizer, it.spec.scheme.criterion) for it in plan} for plan in (offline, cells)
        )
        assert small <= whole


def test_models_and_data_of_yours_take_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").mkdir()
    cells = cells_of(load_suite("query").study(models=["minilm"], data=["./corpus"]))
    assert {cell.data.folder for cell in cells} == {str(tmp_path / "corpus")}
    assert {str(cell.spec.scheme) for cell in cells} == {
        "W4-g128-rtn",
        "W4-g128-rtn+query",
        "W3-g128-rtn",
        "W3-g128-rtn+query",
    }


def test_the_paper_s_image_tasks_have_a_model_each() -> None:
    cells = cells_of(load_suite("images").study())
    assert len(cells) == 2 * (21 + 5) * 54  # neighbours of five tasks, as in the paper
    place = str(Path.cwd() / "vit-b-16" / "CIFAR100")
    assert {cell.data.called for cell in cells if cell.spec.model == place} == {"CIFAR100", "CIFAR100-self"}
    assert {cell.model for cell in cells} == {"ViT-B/16", "ViT-L/16"}


@pytest.mark.parametrize("name", ["clip", "clip-sizes", "clip-allocation"])
def test_clip_has_the_paper_s_matrices(name: str) -> None:
    assert {cell.spec.scheme.option("layers") for cell in cells_of(load_suite(name).study())} == {"linear"}


def test_what_is_to_be_made_first_is_told_with_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    suite = load_suite("reranking")
    with pytest.raises(StudyError, match=r"python -m quantdrift_paper\.train_reranker"):
        suite.refuse_missing(suite.study(offline=True))
    suite.refuse_missing(suite.study(offline=True, models=["./mine"]))
    (tmp_path / "python-docs-reranker").mkdir()
    suite.refuse_missing(suite.study(offline=True))
    images = load_suite("images")
    with pytest.raises(StudyError, match=r"vit-b-16/.data. is not there"):
        images.refuse_missing(images.study())


def test_data_of_yours_are_read_in_every_way_of_the_suite() -> None:
    cells = cells_of(load_suite("images").study(offline=True, models=["./mine"], data=["pictures.npz"]))
    assert {cell.data.folder for cell in cells} == {str(Path.cwd() / "pictures.npz")}
    assert {cell.data.called: cell.data.neighbours for cell in cells} == {
        "pictures.npz": False,
        "pictures.npz-self": True,
    }


def test_what_is_not_there_is_told() -> None:
    with pytest.raises(UnknownNameError, match="did you mean text"):
        load_suite("txt")
    with pytest.raises(StudyError, match="no offline variant"):
        load_suite("classes").model_copy(update={"offline": None}).study(offline=True)
    with pytest.raises(StudyError, match=r"text\.yaml: .* a"):
        load_suite("text").study(data=["a", "a"])

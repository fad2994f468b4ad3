"""study.yaml: what it comes to, and what is said of a mistake in it."""

from pathlib import Path

import pytest

from quantdrift.base.errors import StudyError
from quantdrift.study.plan import Cell, cells_of, read_study

WHOLE = "models: [minilm]\nschemes: [W4, W3-gptq]\ndata: [Docs, ./corpus]\n"


def cells(folder: Path, text: str) -> tuple[Cell, ...]:
    (folder / "study.yaml").write_text(text, encoding="utf-8")
    return cells_of(read_study(folder / "study.yaml"))


def test_every_combination_is_a_cell_and_those_of_one_corpus_stand_together(tmp_path: Path) -> None:
    found = cells(tmp_path, WHOLE)
    assert [cell.name for cell in found] == [
        "minilm@W4-g128-rtn_on_Docs",
        "minilm@W3-g128-gptq_on_Docs",
        "minilm@W4-g128-rtn_on_corpus",
        "minilm@W3-g128-gptq_on_corpus",
    ]
    assert [cell.data.task for cell in found[1:3]] == ["Docs", None]
    assert found[2].data.folder == str(tmp_path / "corpus")  # relative to the file


@pytest.mark.parametrize(
    ("more", "schemes"),
    [
        ("seeds: [0, 2]", ["W4", "W3-gptq", "W3-gptq+seed=2"]),  # nothing is drawn for rounding to nearest
        ("exclude: [{scheme: W4}]", ["W3-gptq"]),
        ("exclude: [{scheme: 'W3*', data: Docs}]", ["W4"]),
        ("exclude: [{model: 'mini*', scheme: W3-g128-gptq}]", ["W4"]),
        ("include: [{scheme: W2, data: Docs}]", ["W4", "W3-gptq", "W2"]),
        ("include: [{scheme: W4, data: Docs}]", ["W4", "W3-gptq"]),  # it is there already
    ],
)
def test_seeds_and_exceptions(tmp_path: Path, more: str, schemes: list[str]) -> None:
    found = [cell for cell in cells(tmp_path, WHOLE + more) if cell.data.called == "Docs"]
    assert [str(cell.spec.scheme) for cell in found] == [
        scheme.replace("W4", "W4-g128-rtn").replace("W3-gptq", "W3-g128-gptq").replace("W2", "W2-g128-rtn")
        for scheme in schemes
    ]


def test_settings_of_data_come_before_those_of_models_and_those_of_all(tmp_path: Path) -> None:
    text = """
models: [{model: minilm, settings: {k: 3, batch_size: 4}}]
schemes: [W4]
data: [{task: Docs, settings: {k: 7}}, {task: Docs, name: again}]
settings: {k: 1, noise_floor: false}
"""
    one, other = cells(tmp_path, text)
    assert one.settings.said() == {"k": 7, "batch_size": 4, "noise_floor": False}
    assert other.settings.said() == {"k": 3, "batch_size": 4, "noise_floor": False}


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        (WHOLE + "sceds: [1]", 4, "unknown key 'sceds'; did you mean seeds?"),
        (WHOLE + "seed: [1]", 4, "did you mean seeds?"),
        (WHOLE + "exclude:\n  - scheme: W4\n  - {modell: minilm}", 6, "did you mean model?"),
        (WHOLE + "exclude:\n  - {data: Dosc}", 5, "no data is called 'Dosc'; did you mean Docs?"),
        (WHOLE + "include: [{data: Docs}]", 4, "expected a scheme"),
        (WHOLE + "seeds: [1, 1]", 4, "each once"),
        (WHOLE + "settings:\n  k: 0", 5, "greater than or equal to 1; got 0"),
        (WHOLE.replace("W4,", "W4-gtpq,"), 2, "did you mean gptq?"),
        (WHOLE.replace("[W4, W3-gptq]", "W4"), 2, "valid list"),
        (WHOLE.replace("Docs,", "{task: a, folder: b},"), 3, "expected one of folder, task and mteb"),
        (WHOLE.replace("./corpus", "Docs"), 3, "two data entries are called Docs"),
        (WHOLE + "models: [other]", 4, "'models' stands there twice"),
        ("models: [minilm]\nschemes: [W4]\n", 1, "data is missing"),
        ("- a", 1, "expected models, schemes and data"),
        ("models: &a [minilm]\nschemes: *a\n", 2, "expected no alias"),
        ("models: [minilm\nschemes: [W4]", 2, "this is not YAML"),
        ("models: [!!python/object/apply:os.system [echo]]\n", 1, "this is not YAML"),
    ],
)
def test_a_mistake_is_told_with_its_line(tmp_path: Path, text: str, line: int, told: str) -> None:
    with pytest.raises(StudyError) as caught:
        cells(tmp_path, text)
    message = str(caught.value)
    assert f"study.yaml, line {line}: " in message
    assert told in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"\xff\xfe\x00", "in UTF-8"), (b"a" * (1 << 20 | 1), "is larger than"), (b"[" * 100_000, "this is not YAML")],
)
def test_what_is_no_study_is_refused_in_one_line(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "study.yaml").write_bytes(content)
    with pytest.raises(StudyError, match=told):
        read_study(tmp_path / "study.yaml")
    with pytest.raises(StudyError, match="cannot be read"):
        read_study(tmp_path / "none.yaml")


def test_a_study_without_cells_and_one_of_too_many(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="everything is excluded"):
        cells(tmp_path, WHOLE + "exclude: [{scheme: 'W*'}]")
    with pytest.raises(StudyError, match="expected at most"):
        cells(tmp_path, WHOLE + f"seeds: {list(range(30_000))}")

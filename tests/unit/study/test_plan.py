"""study.yaml, its block `capture`, and suites: the cells that they come to, and what is said of a mistake."""

from pathlib import Path

import pytest

from quantdrift.base.errors import StudyError, UnknownNameError
from quantdrift.study.plan import Cell, cells_of, read_study
from quantdrift.study.suites import load_suite, suite_names
from quantdrift_paper.tables import FIGURES, PLANS

WHOLE = "models: [minilm]\nschemes: [W4, W3-gptq]\ndata: [Docs, ./corpus]\n"


def cells(folder: Path, text: str) -> tuple[Cell, ...]:
    (folder / "study.yaml").write_text(text, encoding="utf-8")
    return cells_of(read_study(folder / "study.yaml"))


def test_every_combination_is_a_cell_and_those_of_one_corpus_stand_together(tmp_path: Path) -> None:
    planned = cells(tmp_path, WHOLE)
    pairs = ("minilm@W4-g128-rtn", "minilm@W3-g128-gptq")
    assert [cell.name for cell in planned] == [f"{pair}_on_{data}" for data in ("Docs", "corpus") for pair in pairs]
    assert [cell.data.task for cell in planned[1:3]] == ["Docs", None]
    assert planned[2].data.folder == str(tmp_path / "corpus")  # relative to the file


def test_a_name_is_the_folder_beside_the_file_where_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "Docs").mkdir()
    planned = cells(tmp_path, WHOLE.replace("[Docs, ./corpus]", "[Docs, Other, {task: Docs, name: built in}]"))
    assert [cell.data.folder for cell in planned[::2]] == [str(tmp_path / "Docs"), None, None]
    assert [cell.data.task for cell in planned[::2]] == [None, "Other", "Docs"]


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
    planned = [cell for cell in cells(tmp_path, WHOLE + more) if cell.data.called == "Docs"]
    assert [str(cell.spec.scheme) for cell in planned] == [
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
    first, other = cells(tmp_path, text)
    assert first.settings.said() == {"k": 7, "batch_size": 4, "noise_floor": False}
    assert other.settings.said() == {"k": 3, "batch_size": 4, "noise_floor": False}


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (WHOLE + "sceds: [1]", ": unknown key 'sceds'; did you mean seeds or schemes?"),
        (WHOLE + "exclude:\n  - scheme: W4\n  - {modell: minilm}", ": exclude.1: unknown key 'modell'"),
        (WHOLE + "exclude:\n  - {data: Dosc}", "unknown data 'Dosc'; did you mean Docs?"),
        (WHOLE + "include: [{data: Docs}]", ": include.0.scheme is missing"),
        (WHOLE + "seeds: [1, 1]", ": seeds: expected whole numbers of 0 or more, each once"),
        (WHOLE + "settings:\n  k: 0", ": settings.k: input should be greater than or equal to 1; got 0"),
        (WHOLE.replace("W4,", "W4-gtpq,"), ": schemes.0: W4-gtpq: unknown part 'gtpq'"),
        (WHOLE.replace("[W4, W3-gptq]", "W4"), ": schemes: input should be a valid list; got 'W4'"),
        (WHOLE.replace("[W4, W3-gptq]", "[]"), ": schemes: expected at least one"),
        (WHOLE.replace("Docs,", "{task: a, folder: b},"), ": data.0: expected one of folder, task and mteb"),
        (WHOLE.replace("./corpus", "Docs"), "two data entries are called Docs"),
        *(
            (WHOLE.replace("Docs,", f"{{task: T, sizes: {sizes}}},"), ": data.0: expected sizes that rise")
            for sizes in ("[1000, 250]", "[all, 250]", "[0, all]", "[half]")
        ),
        (WHOLE.replace("Docs,", "{task: T, sizes: [5, all], retriever: minilm},"), ": data.0: sizes are of a"),
        (WHOLE.replace("Docs,", "{task: T, sizes: [5, all]},") + "capture: {}", "capture is measured on whole corpora"),
        (WHOLE + "models: [other]", ", line 4: this is not YAML of a study: 'models' occurs twice"),
        ("models: [minilm]\nschemes: [W4]\n", ": data is missing"),
        ("- a", ": expected models, schemes and data"),
        ("models: &a [minilm]\nschemes: *a\n", ", line 2: this is not YAML of a study: expected no alias (*a)"),
        ("models: [minilm\nschemes: [W4]", ", line 2: this is not YAML"),
        ("models: [!!bool x, !!timestamp y]\n", ": expected a study.yaml, in UTF-8; 'x'"),
        ("models: [!!python/object/apply:os.system [echo]]\n", ", line 1: this is not YAML"),
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path: Path, text: str, place: str) -> None:
    with pytest.raises(StudyError) as caught:
        cells(tmp_path, text)
    message = str(caught.value)
    assert f"study.yaml{place}" in message or f"study.yaml: {place}" in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\xff\xfe\x00", "in UTF-8"), (b"a" * (1 << 20 | 1), "is larger than"), (b"[" * 100_000, "this is not YAML")],
)
def test_what_is_no_study_is_refused_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "study.yaml").write_bytes(content)
    with pytest.raises(StudyError, match=message):
        read_study(tmp_path / "study.yaml")
    with pytest.raises(StudyError, match="cannot be read"):
        read_study(tmp_path / "none.yaml")


def test_a_study_without_cells_and_one_of_too_many(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="everything is excluded"):
        cells(tmp_path, WHOLE + "exclude: [{scheme: 'W*'}]")
    with pytest.raises(StudyError, match="expected at most"):
        cells(tmp_path, WHOLE + f"seeds: {list(range(30_000))}")


# --- the block `capture` -----------------------------------------------------------------------------


def schemes(folder: Path, block: str, more: str = "") -> list[str]:
    (folder / "study.yaml").write_text(f"models: [minilm]\ndata: [Docs]\ncapture: {{{block}}}\n{more}")
    return [str(cell.spec.scheme).replace("-g128", "") for cell in cells_of(read_study(folder / "study.yaml"))]


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("", "W3-rtn W4-rtn W3.5-rtn+gap W3.5-rtn+reconstruction W3.5-rtn+random"),
        (
            "criteria: [gap, sqnr], budgets: [3.25, 4.5], quantizers: [hqq]",
            "W3-hqq W4-hqq W5-hqq W3.25-hqq+gap W3.25-hqq+sqnr W4.5-hqq+gap W4.5-hqq+sqnr",
        ),
        (  # what seed and size do not change is measured once
            "criteria: [gap, random, depth], seeds: [0, 2], sizes: [16, 128]",
            "W3-rtn W4-rtn W3.5-rtn+depth W3.5-rtn+random W3.5-rtn+random+seed=2 W3.5-rtn+gap W3.5-rtn+gap+seed=2 "
            "W3.5-rtn+gap+queries=16 W3.5-rtn+gap+queries=16+seed=2",
        ),
        (
            "criteria: [depth], quantizers: [gptq], seeds: [0, 1], documents: 64",
            "W3-gptq+calib=64 W4-gptq+calib=64 W3-gptq+calib=64+seed=1 W4-gptq+calib=64+seed=1 "
            "W3.5-gptq+depth+calib=64 W3.5-gptq+depth+calib=64+seed=1",
        ),
        (
            "criteria: [depth], widths: [2, 8, 4], budgets: [3, 3.5]",
            "W2-rtn W4-rtn W3-rtn+depth+widths=2,4,8 W3.5-rtn+depth+widths=2,4,8",
        ),
        (
            "criteria: [gap, depth], activations: [16, 8], sizes: [8]",
            "W3-rtn W4-rtn W3A8-rtn W4A8-rtn W3.5-rtn+gap+queries=8 W3.5-rtn+depth W3.5A8-rtn+gap+queries=8 "
            "W3.5A8-rtn+depth",
        ),
        (
            "criteria: [depth], widths: [4, 3], granularity: channel",
            "W3-channel-rtn W4-channel-rtn W3.5-channel-rtn+depth",
        ),
    ],
)
def test_every_allocation_stands_between_uniform_cells(tmp_path: Path, block: str, expected: str) -> None:
    assert sorted(schemes(tmp_path, block)) == sorted(expected.split())  # each once


def test_seeds_of_the_study_are_those_of_the_block_and_cells_may_be_left_out(tmp_path: Path) -> None:
    seeded = schemes(tmp_path, "criteria: [random]", "seeds: [0, 7]\n")
    assert seeded == ["W3-rtn", "W4-rtn", "W3.5-rtn+random", "W3.5-rtn+random+seed=7"]
    left = schemes(tmp_path, "criteria: [depth]", "schemes: [W8]\nexclude: [{scheme: W4*}]\n")
    assert left == ["W8-rtn", "W3-rtn", "W3.5-rtn+depth"]


def test_queries_are_held_out_whatever_is_said(tmp_path: Path) -> None:
    schemes(tmp_path, "criteria: [depth]", "settings: {k: 5}\n")
    asked = {cell.settings.model_dump_json(exclude_none=True) for cell in cells_of(read_study(tmp_path / "study.yaml"))}
    assert asked == {'{"k":5,"held_out":{"share":0.75,"seed":0}}'}
    schemes(tmp_path, "criteria: [depth]", "settings: {held_out: {share: 0.5}}\n")
    (cell, *_) = cells_of(read_study(tmp_path / "study.yaml"))
    assert cell.settings.held_out.share == 0.5


@pytest.mark.parametrize(
    ("block", "more", "message"),
    [
        ("criteria: [gap, gapp]", "", "capture: unknown criterion 'gapp'; did you mean gap"),
        ("quantizers: [gtpq]", "", "did you mean gptq"),
        ("budget: [3.5]", "", "capture: unknown key 'budget'; did you mean budgets?"),
        ("budgets: [4]", "", "expected one no whole number, such as 3.5; got 4"),
        ("budgets: [3.5], widths: [4, 8]", "", "between two of the widths [4, 8]"),
        ("budgets: [9.5]", "", "W9"),
        ("sizes: [8, 8]", "", "sizes: expected each once"),
        ("sizes: [0]", "", "capture.sizes.0: input should be greater than or equal to 1"),
        ("granularity: g0", "", "a granularity"),
        ("activations: [9]", "", "A and 4 to 8"),
        ("", "settings: {held_out: {share: 1.5}}\n", "settings.held_out.share: input should be less than 1"),
    ],
)
def test_a_mistake_is_told(tmp_path: Path, block: str, more: str, message: str) -> None:
    with pytest.raises(StudyError) as caught:
        schemes(tmp_path, block, more)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


# --- suites ------------------------------------------------------------------------------------------


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
    schemes = {f"W{bits}-g128-rtn{side}" for bits in (4, 3) for side in ("", "+query")}
    assert {str(cell.spec.scheme) for cell in cells} == schemes


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
    read = {cell.data.called: cell.data.neighbours for cell in cells}
    assert read == {"pictures.npz": False, "pictures.npz-self": True}


def test_what_is_not_there_is_told() -> None:
    with pytest.raises(UnknownNameError, match="did you mean text"):
        load_suite("txt")
    with pytest.raises(StudyError, match="no offline variant"):
        load_suite("classes").model_copy(update={"offline": None}).study(offline=True)
    with pytest.raises(StudyError, match=r"text\.yaml: .* a"):
        load_suite("text").study(data=["a", "a"])

"""Reading classification data: texts, image folders, array files, and how each may be broken."""

import gzip
import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantdrift.base.errors import DataError
from quantdrift.data.labelled import ClassificationDataset, Labelled, read_classification_folder, read_folder

Lines = Sequence[dict[str, Any]]
TEST: Lines = ({"text": "a bird", "label": "animal"}, {"text": "a boat", "label": "thing", "id": "boat"})


def write(folder: Path, **parts: Lines) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in parts.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder


def test_texts_are_named_by_their_line_unless_they_have_an_id(tmp_path: Path) -> None:
    read = read_classification_folder(write(tmp_path / "things", test=TEST))
    assert (read.name, read.kind, read.split) == ("things", "text", "test")
    assert read.test.ids == ("test-1", "boat")
    assert tuple(read.test.inputs) == ("a bird", "a boat")
    assert read.test.labels == ("animal", "thing")
    assert read.train is None
    assert read.warnings == ()
    assert read_folder(tmp_path / "things") == read
    (tmp_path / "things" / "corpus.jsonl").touch()
    with pytest.raises(DataError, match=r"corpus\.jsonl is empty"):  # it decides
        read_folder(tmp_path / "things")


def test_gzipped_files_other_splits_and_whole_number_labels(tmp_path: Path) -> None:
    folder = write(tmp_path, train=[{"text": "x", "label": 10}, {"text": "y", "label": 9}])
    with gzip.open(folder / "dev.jsonl.gz", "wt") as file:
        file.write('\n{"text": "z", "label": 9, "_id": 4}\n')
    read = read_classification_folder(folder, "dev")
    assert (read.test.ids, read.test.labels) == (("4",), ("9",))
    assert read.train is not None
    assert read.train.labels == ("10", "9")


def test_what_is_tolerated_is_told(tmp_path: Path) -> None:
    texts = [{"text": "a"}, {"text": " "}, {"text": "a"}, {"text": "b"}]
    read = read_classification_folder(write(tmp_path, test=texts, train=[{"text": "b"}]))
    assert read.test.labels is None
    assert read.warnings == (
        "empty inputs: 1 (test-2)",
        "test inputs that repeat an earlier one: 1 (test-3)",
        "test inputs that are also in train: 1 (test-4)",
        "no labels: changed classes are measured, accuracy is not",
    )


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('{"text": "a", "label": "x"}\n{"text": "b"}', "line 2: expected a label on every line"),
        ('{"text": "a"}\n{"label": "x"}', 'line 2: "text" is missing; the keys are label'),
        ('{"text": "a", "label": true}', "must be a string; got bool"),
        ('{"text": "a", "label": ""}', '"label" is empty'),
        ('{"text": "a", "id": "q"}\n{"text": "b", "id": "q"}', "'q' is already on line 1"),
        ('{"text": "a"', "line 1, column 13: expected a JSON object"),
    ],
)
def test_an_error_names_file_and_line(tmp_path: Path, lines: str, message: str) -> None:
    (tmp_path / "test.jsonl").write_text(lines)
    with pytest.raises(DataError, match=r"test\.jsonl") as refused:
        read_classification_folder(tmp_path)
    assert message in str(refused.value)


def image(value: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.full((2, 3, 3), value, dtype=np.uint8)


def test_image_folders_give_one_class_a_folder(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    for part, label, value in (("test", "cat", 1), ("test", "dog", 2), ("train", "cat", 3)):
        (tmp_path / part / label).mkdir(parents=True)
        pillow.fromarray(image(value)).save(tmp_path / part / label / "one.png")
    (tmp_path / "test" / "cat" / "note.txt").touch()
    read = read_classification_folder(tmp_path)
    assert (read.kind, read.test.ids) == ("image", ("cat/one.png", "dog/one.png"))
    assert read.test.labels == ("cat", "dog")
    assert np.array_equal(read.test.inputs[1], image(2))
    assert read.train is not None
    assert np.array_equal(read.train.inputs[0], image(3))
    (tmp_path / "test" / "dog" / "one.png").write_bytes(b"no image")
    broken = read_classification_folder(tmp_path)  # nothing is decoded before it is needed
    assert np.array_equal(broken.test.inputs[0], image(1))
    with pytest.raises(DataError, match=r"one\.png cannot be decoded"):
        broken.test.inputs[1]


def test_an_array_file(tmp_path: Path) -> None:
    colour = np.arange(2 * 2 * 3 * 3, dtype=np.uint8).reshape(2, 2, 3, 3)
    np.savez(tmp_path / "few.npz", x_test=colour, y_test=[[1], [0]], x_train=colour[:1], y_train=[1])
    read = read_folder(tmp_path / "few.npz")
    assert isinstance(read, ClassificationDataset)
    assert (read.name, read.test.ids, read.test.labels) == ("few", ("test-0", "test-1"), ("1", "0"))
    assert np.array_equal(read.test.inputs[1], colour[1])
    assert read.warnings == ("test inputs that are also in train: 1 (test-0)",)


def test_grey_images_get_three_equal_channels(tmp_path: Path) -> None:
    grey = np.arange(6, dtype=np.uint8).reshape(1, 2, 3)
    np.savez(tmp_path / "grey.npz", x_test=grey)
    read = read_classification_folder(tmp_path / "grey.npz")
    assert read.test.labels is None
    assert read.test.inputs[0].shape == (2, 3, 3)
    assert all(np.array_equal(read.test.inputs[0][..., c], grey[0]) for c in range(3))


def test_damaged_arrays_and_those_of_petabytes_end_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "x.npz"
    np.savez_compressed(file, x_test=np.arange(3 * 64 * 64, dtype=np.uint8).reshape(1, 64, 64, 3))
    content = bytearray(file.read_bytes())
    content[100:110] = bytes(10)
    file.write_bytes(content)
    with pytest.raises(DataError, match="array file"):
        read_classification_folder(file)
    header = io.BytesIO()
    says = {"descr": "|u1", "fortran_order": False, "shape": (1 << 50, 2, 2, 3)}
    np.lib.format.write_array_header_1_0(header, says)
    with zipfile.ZipFile(file, "w") as parts:
        parts.writestr("x_test.npy", header.getvalue())
    with pytest.raises(DataError, match="array file"):
        read_classification_folder(file)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x_test": np.zeros((1, 2, 2, 3))}, "expected uint8"),
        ({"x_test": np.zeros((1, 2, 2, 4), dtype=np.uint8)}, "expected uint8"),
        ({"x_test": np.zeros((0, 2, 2, 3), dtype=np.uint8)}, "at least one"),
        ({"x_test": np.zeros((2, 2, 2, 3), dtype=np.uint8), "y_test": np.array([1])}, "one label an image"),
        ({"a": np.zeros(1), "x_dev": np.zeros(1)}, r"has no part 'test'; it has dev\. Choose another with --split"),
    ],
)
def test_array_files_of_another_shape_are_refused(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=message):
        read_classification_folder(tmp_path / "a.npz")


def made(**changes: Any) -> ClassificationDataset:
    parts: dict[str, Any] = {"ids": ("a", "b"), "inputs": ("x", "y"), "labels": ("0", "1")}
    test = Labelled(**(parts | changes))
    return ClassificationDataset(name="two", kind="text", split="test", test=test)


def test_the_fingerprint_changes_with_ids_contents_labels_and_train_alone() -> None:
    same = made().fingerprint
    assert made(inputs=["x", "y"]).fingerprint == same
    others = [
        made(ids=("a", "c")),
        made(inputs=("x", "z")),
        made(labels=("1", "0")),
        made(labels=None),
        made(inputs=(image(1), image(2))),
        made(inputs=(image(1), image(3))),
        ClassificationDataset(name="two", kind="text", split="test", test=made().test, train=made().test),
    ]
    assert len({same, *(other.fingerprint for other in others)}) == 1 + len(others)

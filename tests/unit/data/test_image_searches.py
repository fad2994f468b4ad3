"""Searches among images: the folder, what is refused, and what tells two of them apart."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from quantdrift.base.errors import DataError
from quantdrift.data.images import Images
from quantdrift.data.labelled import sampled
from quantdrift.data.retrieval import RetrievalDataset, read_beir_folder
from support.small_clip import image_search


def test_documents_are_images_and_queries_texts(tmp_path: Path) -> None:
    data = read_beir_folder(image_search(tmp_path / "data", n_images=3, n_queries=5))
    assert data.kinds == ("text", "image")
    assert data.document_ids == ("i0", "i1", "i2")
    with Image.open(tmp_path / "data" / "images" / "1.png") as image:
        assert np.array_equal(data.documents[1], np.asarray(image))
    assert data.warnings == ()


def test_another_picture_is_other_data(tmp_path: Path) -> None:
    folder = image_search(tmp_path / "data", n_images=3, n_queries=3)
    before = read_beir_folder(folder).fingerprint
    assert read_beir_folder(folder).fingerprint == before
    Image.fromarray(np.zeros((16, 16, 3), dtype=np.uint8)).save(folder / "images" / "2.png")
    assert read_beir_folder(folder).fingerprint != before


def test_an_image_is_decoded_when_it_is_asked_for() -> None:
    read = []

    def one(row: int) -> np.ndarray:
        read.append(row)
        return np.full((2, 2, 3), row, dtype=np.uint8)

    data = RetrievalDataset(
        name="d",
        query_ids=("q0", "q1"),
        queries=("a", "b"),
        document_ids=("x", "y", "z"),
        documents=Images(one, ["0", "1", "2"]),
        qrels={"q1": {"z": 1}},
        split="test",
    )
    assert sampled(data, 1, 0).kinds == ("text", "image")
    assert data.fingerprint
    assert read == []
    assert (data.documents[2].max(), read) == (2, [2])


def test_queries_can_be_images(tmp_path: Path) -> None:
    folder = image_search(tmp_path / "data", n_images=4, n_queries=2)
    lines = [{"_id": "q0", "image": "images/3.png"}, {"_id": "q1", "image": "images/0.png"}]
    (folder / "queries.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = read_beir_folder(folder)
    assert data.kinds == ("image", "image")
    assert np.array_equal(data.queries[0], data.documents[3])
    assert np.array_equal(sampled(data, 2, 0).queries[1], data.documents[0])


@pytest.mark.parametrize(
    ("image", "shown"),
    [
        ("../outside.png", "below"),
        ("/etc/passwd", "below"),
        ("images/none.png", "below"),
        ("images/0.png\0", "below"),
        ("x" * 5000 + ".png", "below"),
        ("corpus.jsonl", "below"),
        (7, "must be a string"),
    ],
)
def test_a_path_that_is_no_image_of_the_folder_is_refused(tmp_path: Path, image: object, shown: str) -> None:
    folder = image_search(tmp_path / "data", n_images=2, n_queries=2)
    Image.fromarray(np.zeros((2, 2, 3), dtype=np.uint8)).save(tmp_path / "outside.png")
    with (folder / "corpus.jsonl").open("a") as file:
        file.write(json.dumps({"_id": "x", "image": image}) + "\n")
    with pytest.raises(DataError, match=shown) as caught:
        read_beir_folder(folder)
    assert len(str(caught.value)) < 500


def test_a_link_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = image_search(tmp_path / "data", n_images=2, n_queries=2)
    Image.fromarray(np.zeros((2, 2, 3), dtype=np.uint8)).save(tmp_path / "outside.png")
    (folder / "images" / "0.png").unlink()
    (folder / "images" / "0.png").symlink_to(tmp_path / "outside.png")
    with pytest.raises(DataError, match="below"):
        read_beir_folder(folder)


def test_texts_and_images_are_not_mixed(tmp_path: Path) -> None:
    folder = image_search(tmp_path / "data", n_images=2, n_queries=2)
    with (folder / "corpus.jsonl").open("a") as file:
        file.write(json.dumps({"_id": "x", "text": "a text"}) + "\n")
    with pytest.raises(DataError, match="line 3: "):
        read_beir_folder(folder)

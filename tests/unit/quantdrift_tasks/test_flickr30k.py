"""The cut of Flickr30k that stands for the paper's, from rows made by hand."""

import random
from typing import Any

import pytest

pytest.importorskip("mteb")  # first: it imports the tasks itself
mteb_tasks = pytest.importorskip("quantdrift_tasks.mteb_tasks", reason="the extra 'mteb' is not installed")


def test_the_first_images_by_name_and_the_first_caption_of_half_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{number:05}.jpg" for number in range(4010)]
    random.Random(0).shuffle(names)
    rows = {"filename": names, "image": names, "caption": [[f"first of {name}", "second"] for name in names]}

    def load_dataset(path: str, **how: Any) -> Any:
        assert (path, how["split"]) == ("lmms-lab/flickr30k", "test")
        return mteb_tasks.Dataset.from_dict(rows)

    monkeypatch.setattr(mteb_tasks, "load_dataset", load_dataset)
    part = mteb_tasks.Flickr30k4000().generated()["default"]["test"]
    assert list(part["corpus"]["id"]) == list(part["corpus"]["image"]) == [f"{n:05}.jpg" for n in range(4000)]
    assert list(part["queries"]["text"]) == [f"first of {n:05}.jpg" for n in range(2000)]
    assert part["relevant_docs"] == {f"{n:05}.jpg#0": {f"{n:05}.jpg": 1} for n in range(2000)}
    assert list(part["queries"]["id"]) == list(part["relevant_docs"])

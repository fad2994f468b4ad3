"""A candidate's folder: all of it or nothing."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from quantdrift.base.errors import RunError
from quantdrift.models.files.saved import (
    check_place,
    check_weights,
    digests_of,
    model_format,
    read_record,
    write_folder,
)


def write(text: str) -> Any:
    def fill(folder: Path) -> dict[str, Any]:
        (folder / "part").mkdir()
        (folder / "part" / "weights").write_text(text)
        return {"spec": text, "model_format": "safetensors", "bits_per_weight": {"linear": 4.0}}

    return fill


def test_an_earlier_candidate_is_replaced_as_a_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_folder(out, write("one"))

    def other(folder: Path) -> dict[str, Any]:
        (folder / "other").write_text("two")
        return {"spec": "two", "model_format": "onnx", "bits_per_weight": {}}

    write_folder(out, other)
    assert sorted(entry.name for entry in out.iterdir()) == ["other", "scheme.json"]
    assert (read_record(out)["files"], model_format(out)) == ({"other": 3}, "onnx")
    assert list(tmp_path.iterdir()) == [out]  # nothing is left beside it


def test_a_place_with_other_things_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    write_folder(tmp_path / "own", write("one"))
    (tmp_path / "own" / "notes.txt").write_text("mine")
    for name, named in (("file", "file"), ("model", "config.json"), ("own", "notes.txt")):
        with pytest.raises(RunError, match=rf"not a saved candidate: {named};"):
            check_place(tmp_path / name)
    (tmp_path / "own" / "notes.txt").unlink()
    (tmp_path / "own" / "data").symlink_to(tmp_path / "model")  # the link would be lost
    with pytest.raises(RunError, match=": data;"):
        write_folder(tmp_path / "own", write("two"))
    (tmp_path / "empty").mkdir()
    check_place(tmp_path / "empty")
    check_place(tmp_path / "new")


@pytest.mark.parametrize(
    "changed",
    [{"bits_per_weight": {"linear": "four"}}, {"base_model": ["minilm"]}, {"layers": [{"name": 5}]}, {"spec": None}],
    ids=str,
)
def test_a_record_with_entries_of_other_kinds_is_damaged(changed: dict[str, Any], tmp_path: Path) -> None:
    write_folder(tmp_path / "w4", write("one"))
    record = {**json.loads((tmp_path / "w4" / "scheme.json").read_text()), **changed}
    del record["digest"]  # as whoever edits it does
    (tmp_path / "w4" / "scheme.json").write_text(json.dumps(record))
    with pytest.raises(RunError, match=r"scheme\.json is damaged"):
        read_record(tmp_path / "w4")
    with suppress(RunError):  # a place to write to is looked at all the same
        check_place(tmp_path / "w4")


def test_weights_and_settings_that_are_not_those_that_were_written_are_refused(tmp_path: Path) -> None:
    def fill(folder: Path) -> dict[str, Any]:
        record = write("one")(folder)
        for name in ("model.safetensors", "2_Dense/model.safetensors", "config.json", "README.md", "onnx/x.bin"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(name)
        return {**record, "weights": digests_of(folder)}

    record = write_folder(tmp_path, fill)
    assert sorted(record["weights"]) == ["2_Dense/model.safetensors", "config.json", "model.safetensors"]
    (tmp_path / "README.md").write_text("mine")
    (tmp_path / "added.json").write_text("{}")
    check_weights(tmp_path, record)
    check_weights(tmp_path, {})  # older ones do not say
    for name in record["weights"]:
        (tmp_path / name).write_text(name.replace("o", "n", 1))  # as long as it was
        with pytest.raises(RunError, match=f"{name} is not what scheme.json was written for"):
            check_weights(tmp_path, record)
        (tmp_path / name).write_text(name)
    for change in (Path.touch, Path.unlink):
        file = tmp_path / ("model-2.safetensors" if change is Path.touch else "model.safetensors")
        change(file)
        with pytest.raises(RunError, match=f"{file} is not what"):
            check_weights(tmp_path, record)
        (tmp_path / "model-2.safetensors").unlink(missing_ok=True)
    scheme = tmp_path / "scheme.json"
    scheme.write_text(scheme.read_text().replace("4.0", "5.0"))
    with pytest.raises(RunError, match="it was changed since"):
        read_record(tmp_path)

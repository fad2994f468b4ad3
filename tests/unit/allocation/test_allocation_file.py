"""allocation.json: what is written is read back, and what is wrong with a file is said plainly."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quantdrift.allocation.record import read_allocation, write_allocation
from quantdrift.errors import DataError, RunError
from quantdrift.records import sealed
from support.allocation_samples import ALLOCATION, LAYERS


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "new" / "allocation.json"
    write_allocation(path, ALLOCATION)
    return path


def change(path: Path, edit: Callable[[dict[str, Any]], object], *, seal: bool = False) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    edit(content)
    path.write_text(json.dumps(sealed(content) if seal else content), encoding="utf-8")


# --- writing -------------------------------------------------------------------------------------


def test_what_is_written_is_read_back_one_layer_a_line(file: Path) -> None:
    assert read_allocation(file) == ALLOCATION
    lines = file.read_text(encoding="utf-8").splitlines()
    assert [[layer.name for layer in LAYERS if f'"{layer.name}"' in line] for line in lines if '"shape"' in line] == [
        ["l.0.query"],
        ["l.0.key"],
        ["l.0.dense"],
        ["head"],
    ]
    assert '    "name": "modèle",' in lines
    assert os.listdir(file.parent) == ["allocation.json"]
    write_allocation(file, dataclasses.replace(ALLOCATION, seed=4))
    assert read_allocation(file).seed == 4


def test_an_allocation_without_inputs_or_layers_to_allocate_is_one_too(tmp_path: Path) -> None:
    least = dataclasses.replace(
        ALLOCATION,
        layers=LAYERS[3:],
        group_size=None,
        quantizer=None,
        dataset=None,
        data_digest=None,
        input_ids=(),
        settings={},
        bound=None,
    )
    write_allocation(tmp_path / "a.json", least)
    assert read_allocation(tmp_path / "a.json") == least
    assert least.bits_per_weight is least.gap is None


@pytest.mark.parametrize("content", ["{}", "[1]", '{"format": "quantdrift-run"}', "notes"])
def test_other_files_are_not_overwritten(tmp_path: Path, content: str) -> None:
    path = tmp_path / "file"
    path.write_text(content)
    with pytest.raises(RunError, match="not an allocation"):
        write_allocation(path, ALLOCATION)
    assert path.read_text() == content
    with pytest.raises(RunError, match="not an allocation"):
        write_allocation(tmp_path, ALLOCATION)


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_what_is_interrupted_leaves_the_earlier_one_whole(
    file: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises((RunError, KeyboardInterrupt)) as caught:
        write_allocation(file, dataclasses.replace(ALLOCATION, seed=4))
    if isinstance(failure, OSError):
        assert "no space left" in str(caught.value)
    assert os.listdir(file.parent) == ["allocation.json"]
    assert read_allocation(file) == ALLOCATION


# --- widths changed by hand ----------------------------------------------------------------------


def test_a_width_changed_by_hand_is_noticed(file: Path) -> None:
    change(file, lambda c: c["layers"][2].update(width=4))
    with pytest.raises(DataError, match=r'was changed since. If .* set "edited" to true'):
        read_allocation(file)


def test_a_file_that_says_it_was_edited_is_computed_anew(file: Path) -> None:
    change(file, lambda c: c.update(edited=True))
    change(file, lambda c: c["layers"][2].update(width=4))
    change(file, lambda c: c["layers"][3].update(width=8))
    edited = read_allocation(file)
    assert edited.edited
    assert edited.bits_per_weight == 4.0  # over the budget, as its owner wants it
    assert edited.linear_bits == (24 * 4 + 4 * 8) / 28
    assert edited.loss == 0.0
    assert edited.bound is edited.gap is None
    write_allocation(file, edited)
    assert read_allocation(file) == edited


def test_an_edited_width_that_was_not_offered_asks_for_a_layer_left_out(file: Path) -> None:
    change(file, lambda c: c.update(edited=True))
    change(file, lambda c: c["layers"][2].update(width=8))
    with pytest.raises(DataError, match="give the layer a loss and a unit of null"):
        read_allocation(file)
    change(file, lambda c: c["layers"][2].update(loss=None, unit=None))
    assert read_allocation(file).width_of["l.0.dense"] == 8


# --- files that are wrong ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda c: c.update(format="other"), 'expected "format": "quantdrift-allocation"'),
        (lambda c: c.update(version=1), "version 1; this quantdrift reads version 2"),
        (lambda c: c.pop("budget"), "budget is missing; expected a number"),
        (lambda c: c.update(budgte=3), "budgte is not known; did you mean budget"),
        (lambda c: c["model"].update(zzzz=1), "model.zzzz is not known. Expected name, finger"),
        (lambda c: c["scheme"].update(group_size=0), "scheme.group_size: .* 1 or more or null"),
        (lambda c: c.update(budget="3.5"), 'budget: expected a number, 0 or more, got "3.5"'),
        (lambda c: c.update(budget=True), "budget: expected a number, 0 or more, got true"),
        (lambda c: c.update(budget=10**400), "budget: expected a number"),
        (lambda c: c.update(budget=4.5), "budget: expected 3 to 4 bits per weight"),
        (lambda c: c.update(widths=[4, 3]), "widths: expected .* in this order"),
        (lambda c: c.update(widths=[]), "widths: expected"),
        (lambda c: c.update(edited=1), "edited: expected true or false, got 1"),
        (lambda c: c.update(date="soon"), "date: expected a date and time"),
        (lambda c: c.update(layers=[]), "layers: expected at least one"),
        (lambda c: c["criterion"].update(n_inputs=3), "n_inputs: expected 2, as many as input_ids"),
        (lambda c: c["criterion"].update(settings={"a": [1]}), "settings: expected an ob"),
        (lambda c: c["layers"][1].pop("unit"), r"layers\[1\] \(l.0.key\).unit is missing"),
        (lambda c: c["layers"][1].update(n_weights=7), r"n_weights: expected 6, as the shape"),
        (lambda c: c["layers"][1].update(shape=[6]), r"shape: expected \[out_features, in_f"),
        (lambda c: c["layers"][1].update(width=4.0), r"width: expected a whole number, .* got 4.0"),
        (lambda c: c["layers"][1]["loss"].pop("3"), r"loss.3 is missing; expected a number"),
        (lambda c: c["layers"][1]["loss"].update({"8": 0}), r"loss.8 is not known"),
        (lambda c: c["layers"].append(c["layers"][0]), "l.0.query is there twice"),
    ],
)
def test_a_file_that_is_wrong_names_key_and_expectation(
    file: Path, edit: Callable[[dict[str, Any]], object], says: str
) -> None:
    change(file, edit, seal=True)
    with pytest.raises(DataError, match=says) as caught:
        read_allocation(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"edited": false,', '"edited": false', "line 7 column 3"),
        ('"budget": 3.5,', '"budget": 3.5, "budget": 3.5,', "'budget' occurs twice"),
        ('"budget": 3.5,', '"budget": NaN,', "expected finite numbers, got NaN"),
        ('"budget": 3.5,', '"budget": 1e999,', "expected finite numbers, got 1e999"),
    ],
)
def test_text_that_is_wrong_names_the_line(file: Path, old: str, new: str, says: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(DataError, match=says):
        read_allocation(file)


def test_what_is_no_file_is_said(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(DataError, match="expected an allocation in"):
            read_allocation(path)

"""allocation.json: what is written is read back, and what is wrong with a file is said plainly."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quantdrift.allocation.record import AllocatedLayer, Allocation, check_fits
from quantdrift.base.errors import DataError
from quantdrift.base.records import with_checksum
from support import allocations

LAYERS = (
    AllocatedLayer(name="l.0.query", shape=(2, 3), width=4, loss=(0.5, 0.0), unit=0),
    AllocatedLayer(name="l.0.key", shape=(2, 3), width=4, loss=(0.25, 0.0), unit=0),
    AllocatedLayer(name="l.0.dense", shape=(3, 4), width=3, loss=(0.1, 0.0), unit=1),
    AllocatedLayer(name="head", shape=(1, 4), width=16),
)
"""Two tied, one alone, one left out."""


def allocation(**changes: Any) -> Allocation:
    fields = {"model": "modèle", "budget": 3.5, "bound": 0.09, "n_others": 72, "others_bits": 72 * 32, "seed": 3}
    inputs = {"dataset": "cranfield", "data_digest": "beef", "input_ids": ("q1", "q2"), "quantizer": "gptq"}
    return allocations.allocation(LAYERS, **{**fields, **inputs, "date": "2026-01-02T03:04:05+00:00", **changes})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "new" / "allocation.json"
    allocation().write(path)
    return path


def change(path: Path, edit: Callable[[dict[str, Any]], object], *, seal: bool = False) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    edit(content)
    path.write_text(json.dumps(with_checksum(content) if seal else content), encoding="utf-8")


def test_bits_and_loss_follow_from_the_widths() -> None:
    made = allocation()
    assert made.bits_per_weight == (12 * 4 + 12 * 3) / 24 == 3.5
    assert made.linear_bits == (12 * 4 + 12 * 3 + 4 * 16) / 28
    assert (made.all_parameters_bits, made.loss) == ((12 * 4 + 12 * 3 + 4 * 16 + 72 * 32) / 100, 0.1)
    assert made.gap == pytest.approx(0.1)
    assert made.width_of == {"l.0.query": 4, "l.0.key": 4, "l.0.dense": 3, "head": 16}


def test_what_is_written_is_read_back_one_layer_a_line(file: Path) -> None:
    assert Allocation.read(file) == allocation()
    lines = file.read_text(encoding="utf-8").splitlines()
    on_lines = [[layer.name for layer in LAYERS if f'"{layer.name}"' in line] for line in lines if '"shape"' in line]
    assert on_lines == [["l.0.query"], ["l.0.key"], ["l.0.dense"], ["head"]]
    assert "modèle" in file.read_text(encoding="utf-8")


def test_widths_changed_by_hand_are_noticed_and_taken_where_the_file_says_so(file: Path) -> None:
    change(file, lambda c: (c["layers"][2].update(width=4), c["layers"][3].update(width=8)))
    with pytest.raises(DataError, match='"edited" to true'):
        Allocation.read(file)
    change(file, lambda c: c.update(edited=True))
    edited = Allocation.read(file)
    assert edited.edited
    assert edited.bits_per_weight == 4.0  # over the budget, as its owner wants it
    assert (edited.linear_bits, edited.loss) == ((24 * 4 + 4 * 8) / 28, 0.0)
    edited.write(file)
    assert Allocation.read(file) == edited


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda c: c.update(format="other"), "expected an allocation"),
        (lambda c: c.update(version=1), "version 1; this quantdrift reads version 2"),
        (lambda c: c.pop("budget"), "budget is missing"),
        (lambda c: c.update(budget=10**400), "whole numbers of 64 bits"),
        (lambda c: c.update(budget=4.5), "budget: expected 3 to 4 bits"),
        (lambda c: c["layers"][1].update(width=4.0), "layers.1.width: .* integer"),
        (lambda c: c["layers"][1].update(width=8), "l.0.key: expected one of the widths 3, 4, got 8"),
        (lambda c: c["layers"][1]["loss"].pop("3"), "l.0.key: expected a loss for each"),
        (lambda c: c["layers"][1]["loss"].update({"4": -1}), "layers.1.loss"),
        (lambda c: c["solver"].update(bound=-1), "is damaged"),
        (lambda c: c["others"].update(bits=-1), "is damaged"),
        (lambda c: c["layers"][0].update(shape=[0, 3]), "is damaged"),
        (lambda c: c["layers"][0].update(loss={"3": -0.5, "4": 0.0}), "is damaged"),
    ],
)
def test_a_wrong_file_names_the_key(file: Path, edit: Callable[[dict[str, Any]], object], says: str) -> None:
    change(file, edit, seal=True)
    with pytest.raises(DataError, match=says) as caught:
        Allocation.read(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_allocation_of_another_model_is_refused() -> None:
    names = [layer.name for layer in LAYERS]
    check_fits(allocation(), names[::-1], "0123abcd")
    for given, fingerprint, says in (
        (names[:3], "0123abcd", "differ in their layers: head"),
        ([*names, *"abcd"], "0123abcd", "layers: a, b, c, d"),
        (names, "other", "measured on other weights"),
    ):
        with pytest.raises(DataError, match=says):
            check_fits(allocation(), given, fingerprint)


@pytest.mark.parametrize(
    "edit",
    [
        lambda file: file["layers"][0].update(n_weights=-7),
        lambda file: file["layers"][0].update(n_weights="six"),
        lambda file: file["bits_per_weight"].update(allocated=-1, linear=0, all_parameters=None),
        lambda file: file["solver"].update(loss=0.2, gap=-1e9),
        lambda file: file["criterion"].update(n_inputs=3),
    ],
)
def test_numbers_that_follow_from_others_are_computed_and_not_read(
    edit: Callable[[dict[str, Any]], object], file: Path
) -> None:
    before = Allocation.read(file)
    change(file, edit, seal=True)
    assert Allocation.read(file).content() == before.content()

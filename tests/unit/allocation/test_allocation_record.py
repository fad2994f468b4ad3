"""What an allocation says, and whether it is one for the model at hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from quantdrift.allocation.record import check_fits, digest
from quantdrift.errors import DataError
from support.allocation_samples import ALLOCATION, LAYERS

# --- what it says --------------------------------------------------------------------------------


def test_bits_and_loss_follow_from_the_widths() -> None:
    assert ALLOCATION.bits_per_weight == (12 * 4 + 12 * 3) / 24 == 3.5
    assert ALLOCATION.linear_bits == (12 * 4 + 12 * 3 + 4 * 16) / 28
    assert ALLOCATION.all_parameters_bits == (12 * 4 + 12 * 3 + 4 * 16 + 72 * 32) / 100
    assert ALLOCATION.loss == 0.1
    assert ALLOCATION.gap == pytest.approx(0.1)
    assert ALLOCATION.width_of == {"l.0.query": 4, "l.0.key": 4, "l.0.dense": 3, "head": 16}


def test_the_digest_is_of_the_widths_and_names_alone() -> None:
    other = dataclasses.replace(ALLOCATION, layers=LAYERS[::-1], criterion="sqnr", seed=4)
    assert digest(other) == digest(ALLOCATION)
    wider = dataclasses.replace(LAYERS[3], width=8)
    renamed = dataclasses.replace(LAYERS[3], name="tail")
    digests = {
        digest(dataclasses.replace(ALLOCATION, layers=(*LAYERS[:3], layer))) for layer in (LAYERS[3], wider, renamed)
    }
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("number", "changes", "says"),
    [
        (0, {"width": 3}, "l.0.key is tied to l.0.query .unit 0., .* width of 3, not 4"),
        (2, {"width": 4}, "take 4.0 bits per weight; expected at most the budget of 3.5"),
        (2, {"width": 8}, "l.0.dense: expected one of the widths offered, 3 or 4, got 8"),
        (3, {"width": 9}, "head: expected a width of 2, 3, 4, 5, 6, 7, 8 or 16, got 9"),
        (3, {"name": "l.0.key"}, "layer l.0.key is there twice"),
        (2, {"loss": (0.1, 0.2)}, "l.0.dense: expected a loss .* not rising .*, got 0.1, 0.2"),
        (2, {"loss": (0.1,)}, "l.0.dense: expected a loss for each of 3 or 4"),
        (2, {"loss": (0.1, -0.1)}, "0 or more"),
        (2, {"loss": (float("nan"), 0.0)}, "0 or more"),
    ],
)
def test_layers_that_contradict_each_other_are_refused(number: int, changes: dict[str, Any], says: str) -> None:
    layers = list(LAYERS)
    layers[number] = dataclasses.replace(layers[number], **changes)
    with pytest.raises(DataError, match=says):
        dataclasses.replace(ALLOCATION, layers=tuple(layers))


# --- the model at hand ---------------------------------------------------------------------------

NAMES, COUNTS = [layer.name for layer in LAYERS], [layer.n_weights for layer in LAYERS]


def test_an_allocation_fits_the_model_it_was_made_for() -> None:
    check_fits(ALLOCATION, NAMES, COUNTS, "0123abcd")
    check_fits(ALLOCATION, NAMES[::-1], COUNTS[::-1], "0123abcd")
    check_fits(ALLOCATION, NAMES, COUNTS, "other", allow_other_weights=True)


@pytest.mark.parametrize(
    ("names", "counts", "fingerprint", "says"),
    [
        (NAMES[:3], COUNTS[:3], "0123abcd", "layers that this model has not: head"),
        ([*NAMES[:3], "heat"], COUNTS, "0123abcd", "not: head; the nearest there are heat"),
        ([*NAMES, *"abcd"], [*COUNTS, 1, 1, 1, 1], "0123abcd", "layers: a, b, c and 1 more"),
        (NAMES, [6, 6, 12, 8], "0123abcd", "4 weights in layer head, and this model 8"),
        (NAMES, COUNTS, "other", "measured on other weights .* allow_other_weights"),
    ],
)
def test_an_allocation_of_another_model_is_refused(
    names: list[str], counts: list[int], fingerprint: str, says: str
) -> None:
    with pytest.raises(DataError, match=says):
        check_fits(ALLOCATION, names, counts, fingerprint)

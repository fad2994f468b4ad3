"""What a scheme says of how widths are chosen, and that it is checked before anything is loaded."""

from __future__ import annotations

import pytest

from quantdrift.allocation.solver import DEFAULT_QUERIES, PreStepSettings, settings_of
from quantdrift.engine.quantizers.registry import methods_of
from quantdrift.errors import DataError, SpecError, UnsupportedError
from quantdrift.spec import parse_scheme


def test_without_a_word_it_is_128_queries_and_the_optimum_layer_by_layer() -> None:
    settings = settings_of(parse_scheme("W3.5+gap"))
    assert settings == PreStepSettings(n_queries=128, seed=0, solver="knapsack", fused=False)
    assert DEFAULT_QUERIES == 128


def test_every_setting_is_read() -> None:
    scheme = parse_scheme("W3.5-gptq+gap+queries=64+seed=7+solver=greedy+units=fused")
    expected = PreStepSettings(n_queries=64, seed=7, solver="greedy", fused=True)
    assert settings_of(scheme) == expected
    assert not settings_of(parse_scheme("W3.5+gap+units=layer")).fused


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("queries=0", "a whole number, 1 or more"),
        ("queries=many", "a whole number, 1 or more"),
        ("queries=1.5", "a whole number, 1 or more"),
        ("queries=-3", "a whole number, 1 or more"),
        ("seed=x", "a whole number, 0 or more"),
        ("solver=best", "one of knapsack, greedy"),
        ("units=qkv", "one of layer, fused"),
    ],
)
def test_what_a_setting_cannot_be_is_said_before_a_model_is_loaded(option: str, expected: str) -> None:
    """`methods_of` is what every command asks first."""
    scheme = parse_scheme(f"W3.5+gap+{option}")
    with pytest.raises(SpecError, match=expected) as caught:
        methods_of(scheme)
    value = option.partition("=")[2]
    assert caught.value.text[caught.value.start : caught.value.end] == value


def test_an_allocation_that_is_none_is_said_before_a_model_is_loaded() -> None:
    with pytest.raises(DataError, match=r"nowhere\.json, which cannot be read"):
        methods_of(parse_scheme("W3.5+gap+allocation=nowhere.json"))


@pytest.mark.parametrize("option", ["queries=64", "solver=greedy", "units=fused", "seed=3"])
def test_settings_of_a_choice_have_no_effect_on_widths_of_a_file(option: str) -> None:
    with pytest.raises(UnsupportedError, match=r"no effect .* its widths are those of a\.json"):
        methods_of(parse_scheme(f"W3.5+gap+allocation=a.json+{option}"))


def test_the_seed_of_a_calibration_is_not_that_of_a_choice() -> None:
    with pytest.raises(DataError, match="cannot be read"):  # the seed is not what is wrong
        methods_of(parse_scheme("W3.5-adaround+gap+allocation=nowhere.json+seed=3"))

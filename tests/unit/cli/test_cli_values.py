"""Lists and sizes that are typed as one word."""

from __future__ import annotations

import pytest

from quantdrift.cli.values import decimals, names, parse_group, refuse_scheme, whole_numbers
from quantdrift.errors import QuantDriftError


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gap", ("gap",)),
        ("gap,random", ("gap", "random")),
        (" gap , random ", ("gap", "random")),
        ("gap,gap", ("gap", "gap")),  # whoever takes them says that one is there twice
        ("gap,", ("gap", "")),
        ("", ("",)),
    ],
)
def test_names(text: str, found: tuple[str, ...]) -> None:
    assert names(text) == found


@pytest.mark.parametrize(
    ("text", "least", "found"),
    [
        ("0", 0, (0,)),
        ("2, 1,0", 0, (2, 1, 0)),
        ("16,128", 1, (16, 128)),
        ("007", 1, (7,)),
        ("999999999", 1, (999_999_999,)),
    ],
)
def test_whole_numbers(text: str, least: int, found: tuple[int, ...]) -> None:
    assert whole_numbers(text, "--seeds", least=least) == found


@pytest.mark.parametrize(
    "text", ["", ",", "1,", "1;2", "1 2", "-1", "+1", "1.0", "1e3", "x", "²", "٣", "0", "1000000000"]
)
def test_what_is_no_whole_number_is_refused_in_words(text: str) -> None:
    with pytest.raises(QuantDriftError) as said:
        whole_numbers(text, "--sizes", least=1)
    assert str(said.value) == (f"--sizes {text}: expected whole numbers, 1 or more, with commas between")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("3.5", (3.5,)),
        ("3.25, 3.5,3.75", (3.25, 3.5, 3.75)),
        ("4", (4.0,)),
        ("03.50", (3.5,)),
        ("3.123456", (3.123456,)),
    ],
)
def test_decimals(text: str, found: tuple[float, ...]) -> None:
    assert decimals(text, "--budgets") == found


@pytest.mark.parametrize(
    "text", ["", "3.5,", "3,5;4", "3.", ".5", "-3.5", "3.5.5", "inf", "nan", "1e1", "٣", "3.1234567"]
)
def test_what_is_no_decimal_is_refused_in_words(text: str) -> None:
    with pytest.raises(QuantDriftError) as said:
        decimals(text, "--budgets")
    assert str(said.value) == (f"--budgets {text}: expected numbers with commas between, e.g. 3.25,3.5")
    with pytest.raises(QuantDriftError, match=r"e\.g\. 10,25$"):
        decimals(text, "--percentile", example="10,25")


@pytest.mark.parametrize(("text", "found"), [("1", 1), ("64", 64), ("128", 128), ("999999999", 999_999_999)])
def test_a_group_is_a_number_of_input_weights(text: str, found: int) -> None:
    assert parse_group(text) == found


def test_a_group_can_be_the_whole_channel() -> None:
    assert parse_group("channel") is None


@pytest.mark.parametrize("text", ["", "0", "-64", "064", "6.4", "g64", "Channel", "64 ", "64\n", "²", "1000000000"])
def test_what_is_no_group_is_refused_in_words(text: str) -> None:
    with pytest.raises(QuantDriftError) as said:
        parse_group(text)
    assert str(said.value) == (
        f"--group {text}: expected the number of input weights that share a scale, e.g. 128, or channel"
    )


def test_a_scheme_behind_a_model_is_refused_with_what_to_type() -> None:
    refuse_scheme("minilm", "no")
    refuse_scheme("./folder/of@mine", "no")
    with pytest.raises(QuantDriftError, match=r"got minilm@W4: use quantdrift predict minilm"):
        refuse_scheme("minilm@W4", "use quantdrift predict {}")

"""The golden files: what is written reads back, and a figure that moved is told with its name."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden import as_text, differences

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=8), inner, max_size=8),
    max_leaves=40,
)


@given(VALUES)
def test_what_is_written_reads_back(value: Any) -> None:
    assert json.loads(as_text(value)) == value


OUTCOME = {
    "output": {"metrics": {"flip@1": {"value": 0.25, "n": 60}}, "items": ["a b", "c"]},
    "says": ["4 of 60 inputs (6.7 %, 2.7 to 16.4 %) moved by 4.9e-08", "open"],
}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"value": 0.25', '"value": 0.2501', []),
        ("4.9e-08", "7.1e-09", []),
        ("6.7 %", "6.8 %", []),  # a last digit
        ('"value": 0.25', '"value": 0.26', ["/output/metrics/flip@1/value: expected 0.25, found 0.26"]),
        ('"n": 60', '"n": 61', ["/output/metrics/flip@1/n: expected '60', found '61'"]),
        ("16.4 %", "16.6 %", ["/says[0]: expected 16.4, found 16.6 in '4 of 60"]),
        ("4 of 60", "5 of 60", ["/says[0]: expected '4 of 60"]),
        ('"a b", ', "", ["/output/items[0]: expected 'a b'", "/output/items[1]: expected 'c', found '(nothing)'"]),
        ('"flip@1"', '"flop@1"', ["/output/metrics/flip@1: only expected", "/output/metrics/flop@1: only found"]),
    ],
)
def test_what_moved_is_told_with_its_name(old: str, new: str, told: list[str]) -> None:
    found = json.loads(json.dumps(OUTCOME).replace(old, new))
    lines = sorted(differences(OUTCOME, found))
    assert len(lines) == len(told)
    assert all(line.startswith(start) for line, start in zip(lines, told, strict=True))

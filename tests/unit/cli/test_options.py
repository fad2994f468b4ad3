"""What is typed as one word, and what is refused before anything is loaded."""

import pytest

from quantdrift.base.errors import QuantDriftError
from quantdrift.cli.options import decimals
from support.command_line import cli


def test_numbers_with_commas_are_each_once() -> None:
    assert decimals("-3.25, 4,4", "--edges", "0,1") == (-3.25, 4.0)


@pytest.mark.parametrize("text", ["", "3.5,", "3,5;4", "3.", ".5", "3.5.5", "inf", "nan", "1e1", "٣", "1234567890"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(QuantDriftError, match=r"--edges .*e\.g\. 0,1$"):
        decimals(text, "--edges", "0,1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("minilm@W4", "--task", "PythonDocsRetrieval"), "unknown model 'minilm@W4'"),
        *((("minilm", "--group", text), "expected a granularity") for text in ("", "0", "064", "6.4", "²")),
        *((("minilm", "--widths", text), "whole numbers") for text in ("4", "4,4", "4,9")),
    ],
)
def test_what_predict_refuses(words: tuple[str, ...], said: str) -> None:
    code, out, err = cli("allocate", "--predict", *words)
    assert (code, out) == (2, "")
    assert said in err

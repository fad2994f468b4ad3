"""A marker that names no pair says what it takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from quantdrift_pytest.assertion import hold_marks


@pytest.mark.parametrize(
    ("mark", "given"),
    [
        (pytest.mark.drift(flip=0.2), "got flip"),
        (pytest.mark.drift("minilm@W4", "data/faq", flip=0.2), "got 'minilm@W4', 'data/faq', flip"),
    ],
)
def test_it_says_what_it_takes(mark: pytest.MarkDecorator, given: str) -> None:
    item: Any = SimpleNamespace(stash={})
    with pytest.raises(pytest.UsageError, match="takes the pair first") as caught:
        hold_marks(item, [mark.mark])
    assert str(caught.value).endswith(given)

"""A candidate in its model's place, and the record of one that is saved."""

from __future__ import annotations

import pytest

from quantdrift.errors import UnsupportedError
from quantdrift.models.saved import check_savable
from quantdrift.spec import parse_scheme


@pytest.mark.parametrize(
    ("scheme", "reason"), [("W4A8", "quantizes activations"), ("W16A8", "activations"), ("W4+query", "queries alone")]
)
def test_what_no_file_of_weights_can_carry_is_refused(scheme: str, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        check_savable(parse_scheme(scheme))

"""No damage goes unnoticed: what quantdrift wrote is then refused, or reads as it did."""

import json
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantdrift.base.errors import QuantDriftError
from support.written_samples import EVIDENCE, PROBE, RECORD, Written, write_all


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Written]:
    return write_all(tmp_path_factory.mktemp("written"))


@pytest.fixture
def place(written: dict[str, Written], name: str) -> Iterator[Written]:
    """A file that a test may damage; afterwards it is whole again."""
    whole = written[name].file.read_bytes()
    yield written[name]
    written[name].file.write_bytes(whole)


NAMES = (RECORD, EVIDENCE, PROBE, "check", "router", "baseline", "allocation")


@pytest.mark.parametrize("name", NAMES)
def test_a_bit_that_flips_is_noticed_or_changes_nothing(place: Written) -> None:
    whole, content = place.file.read_bytes(), place.content()

    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, 8 * len(whole) - 1))
    def flip(bit: int) -> None:
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        place.file.write_bytes(damaged)
        try:
            read = place.content()
        except QuantDriftError:
            return
        assert read == content

    flip()


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_cut_short_is_refused(place: Written) -> None:
    whole = place.file.read_bytes()
    for length in (0, 1, len(whole) // 2, len(whole) - 2):  # the last byte may be a line end
        place.file.write_bytes(whole[:length])
        with pytest.raises(QuantDriftError):
            place.content()


@pytest.mark.parametrize("name", [EVIDENCE, PROBE])
def test_a_file_of_another_run_is_refused(place: Written, name: str) -> None:
    other = (place.file.parent.with_name("other") / name).read_bytes()
    if name == PROBE:  # the other run has the same one
        other += b"\0"
    place.file.write_bytes(other)
    with pytest.raises(QuantDriftError, match="comes from another run"):
        place.content()


@pytest.mark.parametrize("name", [n for n in NAMES if n not in {EVIDENCE, PROBE}])
def test_every_value_is_sealed(place: Written) -> None:
    """Also those that only tell why, such as the mean in a baseline."""
    content = json.loads(place.file.read_bytes())
    for key in content:
        place.file.write_text(json.dumps({**content, key: "changed"}), encoding="utf-8")
        with pytest.raises(QuantDriftError):
            place.content()

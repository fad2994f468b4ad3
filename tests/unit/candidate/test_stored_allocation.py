"""A spec that names a file: `MODEL@allocation.json`, and what it does to a pair."""

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from quantdrift.allocation.record import Allocation
from quantdrift.base.errors import DataError, SpecError
from quantdrift.builtin.rtn.work import quantize_rtn
from quantdrift.candidate.calibration.candidate import summary
from quantdrift.candidate.pair import QuantizedPair
from quantdrift.models.weights import weights_fingerprint
from quantdrift.scheme import Scheme
from quantdrift.spec.grammar import parse
from support import allocations

WIDTHS = {"a": 4, "b": 3, "c": 16, "d": 6}
"""Two that were chosen, one that is not quantized, and one kept at a width that is not offered."""


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(OrderedDict((name, nn.Linear(8, 8, bias=False)) for name in WIDTHS))


def allocation(**changes: Any) -> Allocation:
    fields = {"fingerprint": weights_fingerprint([model()]), "group_size": 8, "quantizer": "rtn", "budget": 3.5}
    return allocations.allocation(WIDTHS, shape=(8, 8), **{**fields, "input_ids": ("q1", "q2"), **changes})


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    allocation().write(Path("a.json"))
    return Path("a.json")


@pytest.mark.parametrize(
    ("changes", "short", "full"),
    [
        ({}, "a.json", "W3.5-g8-rtn+gap+allocation=a.json"),
        ({}, "a.json-gptq", "W3.5-g8-gptq+gap+allocation=a.json"),
        ({"group_size": None}, "a.json+query", "W3.5-channel-rtn+query+gap+allocation=a.json"),
        ({"budget": 4.0, "quantizer": "hqq"}, "a.json", "W4-g8-hqq+gap+allocation=a.json+widths=3,4"),
    ],
)
def test_a_file_is_short_for_its_scheme(changes: dict[str, Any], short: str, full: str, file: Path) -> None:
    allocation(**changes).write(file)
    spec = parse(f"org/tiny@{short}")
    assert (str(spec), parse(str(spec))) == (f"org/tiny@{full}", spec)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nowhere.json", r"nowhere\.json, which cannot be read"),
        ("my file.json", "without spaces, .* rename it"),
        ("a.json-gtpq", "unknown part 'gtpq'.* gptq"),
        ("a.json+allocation=b.json", "second allocation"),
    ],
)
def test_what_does_not_go_with_a_file_is_refused(text: str, said: str, file: Path) -> None:
    with pytest.raises(SpecError, match=said):
        parse(f"tiny@{text}")


def test_layers_get_their_widths_kept_ones_too() -> None:
    """16 is left alone; 6 bits are not among the widths to choose from, and still possible."""
    network = model()
    pair = QuantizedPair([network], Scheme(weight_bits=3.5, group_size=8, criterion="gap"))
    pair.choose(list(WIDTHS.values()), by=allocation())
    originals = {name: layer.weight.clone() for name, layer in network.named_children()}
    with pair.candidate():
        for name, layer in network.named_children():
            expected = originals[name]
            if WIDTHS[name] != 16:
                expected = quantize_rtn(expected, bits=WIDTHS[name], group_size=8).dequantize(expected.dtype)
            assert torch.equal(layer.weight, expected), name


def test_a_pair_of_a_file_has_its_widths_from_the_start_and_says_so(file: Path) -> None:
    pair = QuantizedPair([model()], parse("tiny@a.json").scheme)
    assert not pair.needs_widths
    assert pair.bits().n_quantized == 3 * 64
    record = pair.describe()["allocation"]
    assert (record, record["widths"]) == (summary(allocation()), WIDTHS)
    assert (record["bits_per_weight"], record["calibration_inputs"]) == (3.5, 2)
    json.dumps(record)


@pytest.mark.parametrize(
    ("scheme", "said"),
    [("W3.25-g8+gap", r"\(.*3.5, 8\), and .* says \(.*3.25, 8\)"), ("W3.5-g8+sqnr", r"\('gap', .* says \('sqnr', .*")],
)
def test_a_scheme_that_says_otherwise_than_the_file_is_refused(scheme: str, said: str, file: Path) -> None:
    with pytest.raises(DataError, match=f"{said}; write MODEL@FILE.json"):
        QuantizedPair([model()], parse(f"tiny@{scheme}+allocation=a.json").scheme)

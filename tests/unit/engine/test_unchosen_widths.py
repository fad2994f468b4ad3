"""Schemes that choose widths, where there is nothing to choose them on."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
from torch import nn

from quantdrift.engine.pair import QuantizedPair
from quantdrift.engine.refusals import refuse_for_reranking
from quantdrift.errors import UnsupportedError
from quantdrift.spec import chooses, parse_scheme, refuse_unchosen
from quantdrift_lm_eval.arguments import read_spec

STORED = "W3.5+gap+allocation=a.json"


def pair_of(scheme: str) -> QuantizedPair:
    return QuantizedPair([nn.Linear(8, 8, bias=False)], parse_scheme(scheme))


@pytest.mark.parametrize(
    ("scheme", "wanted"),
    [
        ("W4", False),
        ("W4A8-gptq+query", False),
        ("W3.5+gap", True),
        ("W4+depth+widths=3,4,5", True),  # a whole number of bits is an average, too
        (STORED, False),
    ],
)
def test_a_scheme_chooses_unless_it_has_no_criterion_or_names_a_file(scheme: str, wanted: bool) -> None:
    assert chooses(parse_scheme(scheme)) is wanted


def test_a_pair_is_refused_until_its_widths_are_chosen_for_all_data() -> None:
    pair = pair_of("W3-channel+gap+widths=2,3,4")
    message = (
        "the criterion gap chooses the layers' widths on a search over embeddings, and nothing is "
        "searched here. Choose widths with quantdrift allocate and name the file: a pair of a.json"
    )
    with pytest.raises(UnsupportedError) as error:
        refuse_unchosen(pair, "nothing is searched here", named="a pair of a.json")
    assert str(error.value) == message
    pair.choose([3], for_all_data=False)  # for other data than these
    with pytest.raises(UnsupportedError, match="nothing is searched here"):
        refuse_unchosen(pair, "nothing is searched here", named="")
    pair.choose([3])
    refuse_unchosen(pair, "nothing is searched here", named="")
    refuse_unchosen(pair_of("W4-channel"), "nothing is searched here", named="")


def test_beir_names_a_pair_of_its_own() -> None:
    pytest.importorskip("beir")
    from quantdrift_beir import pairs  # noqa: PLC0415 -- only where beir is

    pair = pairs.QuantizedPair(SimpleNamespace(layer=nn.Linear(8, 8)), "W3.5-channel+gap")
    with pytest.raises(UnsupportedError, match=r'file: QuantizedPair\(model, "allocation\.json"\)$'):
        pairs.refuse_unchosen(pair, "why")


def test_rerankers_and_language_models_take_stored_widths_and_choose_none() -> None:
    refuse_for_reranking(parse_scheme(STORED))
    assert str(read_spec("org/name", STORED).scheme) == str(parse_scheme(STORED))
    with pytest.raises(UnsupportedError, match="a reranker has neither"):
        refuse_for_reranking(parse_scheme("W3.5+gap"))
    with pytest.raises(UnsupportedError, match="lm-eval has neither"):
        read_spec("org/name", "W3.5+gap")


def test_asking_does_not_load_torch() -> None:
    code = "import sys, quantdrift.spec, quantdrift.patching; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

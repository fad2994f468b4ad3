"""The words that name two models, by hand."""

from __future__ import annotations

import dataclasses
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quantdrift.errors import SpecError
from quantdrift.spec import Spec, Versus, parse, parse_pair
from support.places import ROOT

PAGE = ROOT / "docs" / "checkpoints.md"


@pytest.mark.parametrize(
    ("text", "reference", "candidate"),
    [
        ("minilm vs ./minilm-gptq", "minilm", "./minilm-gptq"),
        ("  minilm \t vs   org/model@v2 ", "minilm", "org/model@v2"),
        ("./my model vs ./my other model", "./my model", "./my other model"),
        ("Qwen3-0.6B vs org/repo:q4_k_m.gguf", "Qwen3-0.6B", "org/repo:q4_k_m.gguf"),
        ("vsm vs ./canvs", "vsm", "./canvs"),
        ("minilm vs ./W4", "minilm", "./W4"),
    ],
)
def test_two_models_are_split_at_the_word(text: str, reference: str, candidate: str) -> None:
    found = parse_pair(text)
    assert found == Versus(reference=reference, candidate=candidate)
    assert str(found) == f"{reference} vs {candidate}"
    assert parse_pair(str(found)) == found


def test_a_spec_without_the_word_is_a_spec() -> None:
    assert parse_pair(" minilm@W4 ") == parse("minilm@W4")
    assert isinstance(parse_pair("canvs@W4"), Spec)
    with pytest.raises(SpecError, match="missing '@'"):
        parse_pair("minilm")


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        (" vs ./x", 1, "missing reference at character 2: expected MODEL vs MODEL"),
        ("minilm vs", 9, "missing candidate at character 10"),
        ("vs", 0, "missing reference"),
        ("a vs b vs c", 6, "second ' vs ' at character 7: expected two models"),
        ("a vs vs b", 5, "second 'vs '"),
        ("minilm@W4 vs ./x", 6, "unexpected '@W4' .* a reference as it is stored"),
        ("minilm vs org/m@W4-g64", 15, "unexpected '@W4-g64' .* a candidate as it is stored"),
        ("a vs b\n/c", 6, r"unexpected '\\n' .* a candidate on one line"),
    ],
)
def test_errors_point_at_what_is_wrong(text: str, at: int, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        parse_pair(text)
    assert caught.value.start == at
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("text", ["minilm vs ./x", "minilm vs ./x@W4", "vs ./x@W4"])
def test_where_one_model_is_expected_the_word_is_an_error_that_names_the_command(text: str) -> None:
    with pytest.raises(SpecError, match=r"unexpected .*two models are compared by quantdrift run"):
        parse(text)


@pytest.mark.parametrize(
    "fields",
    [
        {"reference": ""},
        {"candidate": ""},
        {"reference": "a "},
        {"reference": " a"},
        {"candidate": " b"},
        {"candidate": "b "},
        {"reference": "a vs b"},
        {"reference": "a@W3"},
        {"reference": "vs"},
        {"candidate": Path("b")},
    ],
)
def test_what_could_not_be_read_back_cannot_be_built(fields: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        Versus(**{"reference": "a", "candidate": "b", **fields})


def test_it_is_frozen_and_can_be_pickled() -> None:
    found = Versus(reference="a", candidate="b")
    assert pickle.loads(pickle.dumps(found)) == found
    assert found.model == "a"
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.candidate = "c"  # type: ignore[misc] # that it cannot be done is the point


def test_import_is_light() -> None:
    code = "import sys, quantdrift.spec; print(*{'torch', 'numpy', 'scipy'} & set(sys.modules))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert output.stdout.strip() == b""


def test_the_page_for_users_shows_strings_that_can_be_read() -> None:
    shown = re.findall(r'quantdrift run "([^"]+)"', PAGE.read_text(encoding="utf-8"))
    assert len(shown) >= 4
    assert all(isinstance(parse_pair(text), Versus) for text in shown)

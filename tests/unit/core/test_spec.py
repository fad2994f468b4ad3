"""Spec strings by hand: what each part means, how it is spelled back, and where errors point."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quantdrift.errors import SpecError, UnknownNameError
from quantdrift.spec import CRITERIA, OPTION_KEYS, QUANTIZERS, Scheme, Spec, parse, parse_scheme
from support.places import ROOT

PAGE = ROOT / "docs" / "spec-strings.md"


def test_the_shortest_spec_takes_every_default() -> None:
    spec = parse("minilm@W4")
    assert spec == Spec(
        model="minilm",
        scheme=Scheme(
            weight_bits=4.0,
            activation_bits=None,
            group_size=128,
            quantizer="rtn",
            query_only=False,
            criterion=None,
            options=(),
        ),
    )
    assert spec.scheme == Scheme(weight_bits=4)
    assert str(spec) == "minilm@W4-g128-rtn"


def test_a_spec_with_everything() -> None:
    scheme = parse("minilm@W3.5A8-gptq_ao-g64+seed=3+gap_exact+calib=64+query").scheme
    assert scheme.weight_bits == 3.5
    assert scheme.activation_bits == 8
    assert scheme.group_size == 64
    assert scheme.quantizer == "gptq_ao"
    assert scheme.query_only
    assert scheme.criterion == "gap_exact"
    assert scheme.options == (("calib", "64"), ("seed", "3"))
    assert str(scheme) == "W3.5A8-g64-gptq_ao+query+gap_exact+calib=64+seed=3"


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("W4", "W4-g128-rtn"),
        ("W4.0", "W4-g128-rtn"),
        ("W3.50+gap", "W3.5-g128-rtn+gap"),
        ("W3.25-awq+sqnr", "W3.25-g128-awq+sqnr"),
        ("W2-channel", "W2-channel-rtn"),
        ("W8-hqq-g1", "W8-g1-hqq"),
        ("W4-g999999999", "W4-g999999999-rtn"),
        ("W4A4", "W4A4-g128-rtn"),
        ("W16A8", "W16A8-g128-rtn"),
        ("W16.0A8-channel", "W16A8-channel-rtn"),
        ("W4+gap", "W4-g128-rtn+gap"),  # a criterion for a whole width decides nothing, yet is none
        ("W4+gap+query", "W4-g128-rtn+query+gap"),
        ("W4+calib=docs/a-b.c=d.json", "W4-g128-rtn+calib=docs/a-b.c=d.json"),
        ("W4+calib==", "W4-g128-rtn+calib=="),
        ("W4+grid=library+backend=gptqmodel", "W4-g128-rtn+backend=gptqmodel+grid=library"),
        ("\t W4-rtn\n", "W4-g128-rtn"),
    ],
)
def test_canonical_form_of_a_scheme(text: str, canonical: str) -> None:
    scheme = parse_scheme(text)
    assert str(scheme) == canonical
    assert parse_scheme(canonical) == scheme


@pytest.mark.parametrize("name", QUANTIZERS)
def test_every_quantizer(name: str) -> None:
    assert parse_scheme(f"W4-{name}").quantizer == name


@pytest.mark.parametrize("name", CRITERIA)
def test_every_criterion(name: str) -> None:
    assert parse_scheme(f"W3.5+{name}").criterion == name


@pytest.mark.parametrize("key", OPTION_KEYS)
def test_every_option_key(key: str) -> None:
    assert parse_scheme(f"W4+{key}=x").option(key) == "x"


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("BAAI/bge-small-en-v1.5@W4", "BAAI/bge-small-en-v1.5"),
        ("org/model@v2@W4", "org/model@v2"),
        ("m@W4@W3", "m@W4"),
        ("@m@W3", "@m"),
        (r"C:\models\mine@W4", r"C:\models\mine"),
        ("./my folder/model+a@W4", "./my folder/model+a"),
        ("~/モデル@W4", "~/モデル"),
        ("  minilm@W4\n", "minilm"),
    ],
)
def test_the_last_at_ends_the_model(text: str, model: str) -> None:
    spec = parse(text)
    assert spec.model == model
    assert parse(str(spec)) == spec


def test_granularity_and_mixed_width() -> None:
    assert parse_scheme("W4").granularity == "g128"
    assert parse_scheme("W4-channel").granularity == "channel"
    assert parse_scheme("W4-channel").group_size is None
    assert not parse_scheme("W4+gap").is_mixed
    assert parse_scheme("W3.5+gap").is_mixed


def test_option_looks_up_a_key_and_refuses_an_unknown_one() -> None:
    scheme = parse_scheme("W4+seed=3")
    assert scheme.option("seed") == "3"
    assert scheme.option("seed", "0") == "3"
    assert scheme.option("grid") is None
    assert scheme.option("grid", "paper") == "paper"
    with pytest.raises(UnknownNameError, match="did you mean seed"):
        scheme.option("sede")


# In the tables below "[" and "]" stand around the characters at fault; they are taken out before
# the text is parsed. "[]" means that something is missing there.
BAD_SPECS = [
    ("minilm[]", "missing '@' at character 7: expected MODEL@SCHEME, e.g. minilm@W4-rtn"),
    ("[]", "'': missing '@' at character 1"),
    ("[]   ", "'   ': missing '@' at character 1"),
    ("[]@W4", "missing model at character 1: expected MODEL@SCHEME"),
    ("  []@W4", "missing model at character 3"),
    ("minilm@[]", "missing scheme at character 8: expected MODEL@SCHEME"),
    ("minilm@[] ", "missing scheme at character 8"),
    ("minilm@W4@[]", "missing scheme at character 11"),
    ("minilm[ ]@W4", "unexpected ' ' at character 7: expected a model on one line, without spaces"),
    ("mini[\n]lm@W4", r"'mini\\nlm@W4': unexpected '\\n' at character 5"),
    ("mini[\x00]lm@W4", r"unexpected '\\x00' at character 5"),
    ("mini[\ud800]lm@W4", r"unexpected '\\ud800' at character 5"),
    ("minilm@[ ]W4", "unexpected ' ' at character 8: expected a scheme without spaces"),
    ("minilm@W4-[gtpq]", "unknown part 'gtpq' at character 11: .*; did you mean gptq\\?$"),
    ("  minilm@W4-[gtpq]  ", "unknown part 'gtpq' at character 13"),
    ("minilm@W4+calib=a@[b]", "unknown bits 'b' at character 19"),
]

BITS = "expected W and a number of bits first, e.g. W4, W3.5 or W4A8"
NUMBER = "expected a plain number from 2 to 8, e.g. 4 or 3.5, or 16 with activation bits \\(W16A8\\)"
SIZE = "expected a whole number from 1 to 999999999 without leading zeros"
PART = "expected a granularity \\(channel, g128, \\.\\.\\.\\) or a quantizer \\(rtn, .*, adaround\\)"
KEYS = "allocation, backend, calib, grid, head, queries, seed, solver, units, widths"
KEY = f"expected KEY=VALUE with KEY one of {KEYS}"
OPTION = "expected query, a criterion \\(gap, .*, random\\) or KEY=VALUE with KEY one of"

BAD_SCHEMES = [
    # bits
    ("[gptq]", f"unknown bits 'gptq' at character 1: {BITS}$"),
    ("[]-gptq", f"missing bits at character 1: {BITS}"),
    ("[]+gap", "missing bits at character 1"),
    ("[4]", f"unknown bits '4' at character 1: {BITS}; did you mean W4\\?"),
    ("[4A8]-rtn", "unknown bits '4A8' .* did you mean W4A8"),
    ("[9]", f"{BITS}$"),  # W9 would be an error in turn
    ("[int4]", f"{BITS}$"),
    ("[w]4", "lower-case 'w' at character 1: expected W and A in upper case; did you mean W4\\?"),
    ("[w]3.5a8-rtn", "lower-case 'w' at character 1: .*; did you mean W3.5A8\\?"),
    ("W4[a]8", "lower-case 'a' at character 3: .*; did you mean W4A8\\?"),
    ("W16[a]8", "lower-case 'a' .* did you mean W16A8"),
    ("W4[rtn]", "unexpected 'rtn' at character 3: .*; did you mean W4-rtn\\?"),
    ("w3.5a8[GPTQ_ao]+gap", "did you mean W3.5A8-gptq_ao\\?"),
    ("W4[_g64]-rtn", "did you mean W4-g64\\?"),
    ("W[]", f"missing weight bits at character 2: {NUMBER}"),
    ("W[]A8", "missing weight bits at character 2"),
    ("W[]-4", "missing weight bits at character 2"),
    ("W[]+4", "missing weight bits at character 2"),
    ("W[4e0]", f"malformed weight bits '4e0' at character 2: {NUMBER}"),
    ("W[inf]", "malformed weight bits 'inf'"),
    ("W[nan]", "malformed weight bits 'nan'"),
    ("W[04]", "malformed weight bits '04'"),
    ("W[4.]", "malformed weight bits '4.'"),
    ("W[.5]", "malformed weight bits '.5'"),
    ("W[4_0]", "malformed weight bits '4_0'"),
    ("W[0x4]", "malformed weight bits '0x4'"),
    ("W[٤]", "malformed weight bits '٤'"),
    ("W[1]", f"out-of-range weight bits '1' at character 2: {NUMBER}"),
    ("W[1.99]+gap", "out-of-range weight bits '1.99'"),
    ("W[8.5]+gap", "out-of-range weight bits '8.5'"),
    ("W[9]", "out-of-range weight bits '9'"),
    ("W[16.5]A8", "out-of-range weight bits '16.5'"),
    ("W[32]A8", "out-of-range weight bits '32'"),
    ("W[" + "9" * 500 + "]", "out-of-range weight bits '9999"),
    ("[W16]", "nothing would be quantized by 'W16' at character 1: .* activation bits too"),
    ("[W16.0]-gptq", "nothing would be quantized by 'W16.0'"),
    ("W4A[]", "missing activation bits at character 4: expected a whole number from 4 to 8"),
    ("W4A[3]", "unsupported activation bits '3' at character 4"),
    ("W4A[16]", "unsupported activation bits '16'"),
    ("W4A[8.0]", "unsupported activation bits '8.0'"),
    ("W4A[08]", "unsupported activation bits '08'"),
    ("W4A[A8]", "unsupported activation bits 'A8'"),
    ("[W3.5]", "'W3.5' at character 1: expected a criterion .* get 3 and which 4 .* W3.5\\+gap$"),
    ("[W3.25]A8-gptq+query", "no criterion for the width 'W3.25' .* e.g. W3.25\\+gap$"),
    # parts
    ("W4-[]-rtn", f"missing part at character 4: {PART}$"),
    ("W4-rtn-[]", "missing part at character 8"),
    ("W4-[]", "missing part at character 4"),
    ("W4-[]+gap", "missing part at character 4"),
    ("W4-[float]", f"unknown part 'float' at character 4: {PART}$"),
    ("W4-[GPTQ]", f"unknown part 'GPTQ' at character 4: {PART}; did you mean gptq\\?$"),
    ("W4-[Channel]", "unknown part 'Channel' .* did you mean channel\\?$"),
    ("W4-[G64]", "unknown part 'G64' .* did you mean g64\\?$"),
    ("W4-[64]", "unknown part '64' .* did you mean g64\\?$"),
    ("W4-[064]", f"{PART}$"),
    ("W4-g[]", f"missing group size at character 5: {SIZE}"),
    ("W4-g[]+1", "missing group size at character 5"),
    ("W4-g[]-1", "missing group size at character 5"),
    ("W4-g[0]", f"malformed group size '0' at character 5: {SIZE}"),
    ("W4-g[064]", "malformed group size '064'"),
    ("W4-g[1.5]", "malformed group size '1.5'"),
    ("W4-g[12x]", "malformed group size '12x'"),
    ("W4-g[٤]", "malformed group size '٤'"),
    ("W4-g[1000000000]", "malformed group size '1000000000'"),
    ("W4-g[" + "1" * 5000 + "]", "malformed group size '1111"),
    ("W4-g64-[channel]", "second granularity 'channel' at character 8: expected at most one"),
    ("W4-g64-rtn-[g64]", "second granularity 'g64' at character 12"),
    ("W4-rtn-[gptq]", "second quantizer 'gptq' at character 8"),
    ("W4-rtn-[rtn]", "second quantizer 'rtn' at character 8"),
    ("W4-[gap]", "unknown part 'gap' .* did you mean \\+gap"),
    ("W4-[query]", "unknown part 'query' .* did you mean \\+query\\?$"),
    ("W4-[seed=3]", "unknown part 'seed=3' .* did you mean \\+seed=\\?$"),
    # options
    ("W4+[]", f"missing option at character 4: {OPTION}"),
    ("W4+[]+gap", "missing option at character 4"),
    ("W4+gap+[]", "missing option at character 8"),
    ("W4+[qeury]", f"unknown option 'qeury' at character 4: {OPTION} .*; did you mean query\\?$"),
    ("W4+[Query]", "unknown option 'Query' .* did you mean query\\?$"),
    ("W4+[GAP]", "unknown option 'GAP' .* did you mean gap\\?$"),
    ("W4+[fisher]", f"unknown option 'fisher' .* {KEY.partition(' with ')[2]}$"),
    ("W4+[gptq]", "unknown option 'gptq' .* did you mean -gptq\\?$"),
    ("W4+[query=1]", "unknown option 'query=1' .* did you mean query\\?$"),
    ("W4+query[-rtn]", "misplaced part '-rtn' at character 9: .* before the first '\\+'"),
    ("W4-g64+gap[-rtn]+seed=3", "misplaced part '-rtn' at character 11"),
    ("W4+query+[query]", "second query 'query' at character 10"),
    ("W4+gap+[gap]", "second criterion 'gap' at character 8"),
    ("W4+gap+[depth]", "second criterion 'depth' at character 8"),
    ("W4+seed=1+[seed=1]", "second seed 'seed=1' at character 11"),
    ("W4+[sede]=3", f"unknown key 'sede' at character 4: {KEY}; did you mean seed\\?$"),
    ("W4+[Seed]=3", "unknown key 'Seed' .* did you mean seed\\?$"),
    ("W4+[]=3", f"missing key at character 4: {KEY}$"),
    ("W4+seed=[]", "missing value of seed at character 9: expected seed=VALUE"),
    ("W4+seed[]", "missing value of seed at character 8: expected seed=VALUE"),
    ("W4+seed=[]+gap", "missing value of seed at character 9"),
    ("W4+calib=a[@]b", "unexpected '@' at character 11"),
    ("W4+calib=a+[b.json]", "unknown option 'b.json'"),
    # spaces
    ("W4-rtn[ ]extra", "unexpected ' ' at character 7: expected a scheme without spaces"),
    ("W4[  ]- rtn", "unexpected '  ' at character 3"),
    ("W4+calib=my[ ]file", "unexpected ' '"),
    ("W4[\n]-rtn", r"unexpected '\\n' at character 3"),
    ("W4-rtn[\x00]", r"unexpected '\\x00' at character 7"),
]


def unmarked(marked: str) -> tuple[str, int, int]:
    start, end = marked.index("["), marked.index("]") - 1
    return marked.replace("[", "", 1).replace("]", "", 1), start, end


def check(error: SpecError, marked: str, message: str) -> None:
    text, start, end = unmarked(marked)
    assert (error.text, error.start, error.end) == (text, start, end)
    assert re.search(message, str(error))
    assert f" at character {start + 1}: expected " in str(error)
    assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize(("marked", "message"), BAD_SPECS)
def test_errors_in_a_spec(marked: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(unmarked(marked)[0])
    check(caught.value, marked, message)


@pytest.mark.parametrize(("marked", "message"), BAD_SCHEMES)
def test_errors_in_a_scheme(marked: str, message: str) -> None:
    text, start, end = unmarked(marked)
    with pytest.raises(SpecError) as caught:
        parse_scheme(text)
    check(caught.value, marked, message)
    with pytest.raises(SpecError) as caught:
        parse(f"org/m@1@{text}")  # the same, further right
    if "@" not in text:
        assert (caught.value.start, caught.value.end) == (start + 8, end + 8)


def test_the_whole_message_and_its_caret() -> None:
    with pytest.raises(SpecError) as caught:
        parse("minilm@W4-gtpq")
    assert str(caught.value) == (
        "minilm@W4-gtpq: unknown part 'gtpq' at character 11: expected a granularity (channel, "
        "g128, ...) or a quantizer (rtn, gptq, gptq_ao, awq, hqq, adaround); did you mean gptq?"
    )
    assert caught.value.caret() == "minilm@W4-gtpq\n          ^^^^"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"weight_bits": 9}, "out-of-range weight bits '9' at character 2"),
        ({"weight_bits": -4}, "missing weight bits"),
        ({"weight_bits": float("nan")}, "malformed weight bits 'nan'"),
        ({"weight_bits": float("inf")}, "malformed weight bits 'inf'"),
        ({"weight_bits": 1e22}, "malformed weight bits '1e'"),
        ({"weight_bits": True}, "malformed weight bits 'True'"),
        ({"weight_bits": "4"}, "weight_bits given as '4' .* expected 4.0"),
        ({"weight_bits": None}, "malformed weight bits 'None'"),
        ({"weight_bits": 16}, "nothing would be quantized by 'W16'"),
        ({"weight_bits": 3.5}, "no criterion for the width 'W3.5'"),
        ({"activation_bits": 9}, "unsupported activation bits '9'"),
        ({"activation_bits": 8.0}, "unsupported activation bits '8.0'"),
        ({"activation_bits": "8"}, "activation_bits given as '8'"),
        ({"group_size": 0}, "malformed group size '0'"),
        ({"group_size": -1}, "missing group size"),
        ({"group_size": 128.0}, "malformed group size '128.0'"),
        ({"group_size": True}, "unknown part 'gTrue'"),
        ({"group_size": 10**5000}, "expected a value for each attribute of Scheme: .*digits"),
        ({"quantizer": "gtpq"}, "unknown part 'gtpq' at character 9: .* did you mean gptq"),
        ({"quantizer": ""}, "missing part"),
        ({"quantizer": "rtn+query"}, "quantizer given as 'rtn\\+query' .* expected 'rtn'"),
        ({"quantizer": None}, "unknown part 'None'"),
        ({"query_only": "yes"}, "query_only given as 'yes' .* expected True"),
        ({"query_only": None}, "query_only given as None .* expected False"),
        ({"criterion": "gpa"}, "unknown option 'gpa'"),
        ({"criterion": ""}, "missing option"),
        ({"criterion": "query"}, "query_only given as False"),
        ({"criterion": "seed=3"}, "criterion given as 'seed=3'"),
        ({"options": (("sede", "3"),)}, "unknown key 'sede'"),
        ({"options": (("seed", ""),)}, "missing value of seed"),
        ({"options": (("seed", 3),)}, "options given as"),
        ({"options": (("seed", "1"), ("seed", "2"))}, "second seed 'seed=2'"),
        ({"options": (("calib", "a@b"),)}, "unexpected '@'"),
        ({"options": (("calib", "a+query"),)}, "query_only given as False"),
        ({"options": (("calib", "a "),)}, "unexpected ' '"),
        ({"options": (("calib=a", "b"),)}, "options given as"),
        ({"options": ("seed",)}, "expected a value for each attribute of Scheme: too many"),
        ({"options": None}, "expected a value for each attribute of Scheme: .*not iterable"),
        ({"options": (("seed", "1"), ("seed", 2))}, "expected a value for each attribute of Scheme"),
    ],
)
def test_a_scheme_built_from_wrong_values(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        Scheme(**{"weight_bits": 4, **fields})
    error = caught.value
    assert 0 <= error.start <= error.end <= len(error.text)
    assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("", "missing model at character 1"),
        (" minilm", "unexpected ' ' at character 1"),
        ("minilm\u3000", r"unexpected '\\u3000' at character 7"),
        ("  ", "unexpected '  ' at character 1"),
        ("mini\nlm", r"unexpected '\\n' at character 5"),
        (Path("minilm"), r"expected str and Scheme, got \w+Path and Scheme"),
    ],
)
def test_a_spec_built_from_a_wrong_model(model: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Spec(model=model, scheme=Scheme(weight_bits=4))


def test_a_spec_needs_a_scheme_object() -> None:
    scheme: Any = "W4"
    with pytest.raises(SpecError, match="expected str and Scheme, got str and str"):
        Spec(model="minilm", scheme=scheme)


def test_options_in_any_order_or_as_a_mapping_are_normalised() -> None:
    expected = parse_scheme("W4+calib=64+seed=3")
    assert Scheme(weight_bits=4, options=(("seed", "3"), ("calib", "64"))) == expected
    mapping: Any = {"seed": "3", "calib": "64"}
    assert Scheme(weight_bits=4, options=mapping) == expected
    assert hash(Scheme(weight_bits=4, options=mapping)) == hash(expected)
    assert mapping == {"seed": "3", "calib": "64"}


def test_whole_bits_become_a_float() -> None:
    assert isinstance(Scheme(weight_bits=4).weight_bits, float)


def test_specs_are_frozen_and_survive_copy_pickle_and_replace() -> None:
    spec = parse("minilm@W3.5-gptq+gap+seed=3")
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert copy.deepcopy(spec) == spec
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.scheme.weight_bits = 4.0  # type: ignore[misc] # that it cannot be done is the point
    assert str(dataclasses.replace(spec.scheme, weight_bits=3)) == "W3-g128-gptq+gap+seed=3"
    with pytest.raises(SpecError, match="no criterion"):
        dataclasses.replace(spec.scheme, criterion=None)


def test_import_is_light() -> None:
    code = "import sys, quantdrift.spec; print(*{'torch', 'numpy', 'scipy'} & set(sys.modules))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert output.stdout.strip() == ""


def test_the_page_for_users_tells_the_truth() -> None:
    """Its rows `SPEC` | `canonical form`, and its blocks of a spec, carets and a message."""
    page = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+@[^`]+)` \| `([^`]+@[^`]+)` \|", page, re.MULTILINE)
    assert len(rows) >= 6
    for text, canonical in rows:
        assert str(parse(text)) == canonical
    blocks = re.findall(r"^(\S+)\n( *\^+)\n(.+)$", page, re.MULTILINE)
    assert len(blocks) >= 3
    for text, carets, message in blocks:
        with pytest.raises(SpecError) as caught:
            parse(text)
        assert caught.value.caret() == f"{text}\n{carets}"
        assert str(caught.value) == message
    for name in (*QUANTIZERS, *CRITERIA, *(f"{key}=" for key in OPTION_KEYS)):
        assert f"`{name}" in page

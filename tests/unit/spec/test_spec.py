"""Spec strings by hand: what each part means, how it is spelled back, and where errors point."""

import re
from pathlib import Path

import pytest

from quantdrift.base.errors import SpecError, UnsupportedError
from quantdrift.candidate.refusals import refuse_settings
from quantdrift.scheme import Scheme
from quantdrift.spec import grammar
from quantdrift.spec.grammar import Spec, Versus

DOCS = Path(__file__).parents[3] / "docs"


def test_the_shortest_spec_takes_every_default_and_another_has_everything() -> None:
    assert grammar.parse("minilm@W4") == Spec(
        model="minilm", scheme=Scheme(weight_bits=4.0, group_size=128, quantizer="rtn")
    )
    assert str(grammar.parse("minilm@W4")) == "minilm@W4-g128-rtn"
    scheme = grammar.parse("minilm@W3.5A8-gptq_ao-g64+seed=3+gap_exact+calib=64+query").scheme
    assert scheme == Scheme(
        weight_bits=3.5,
        activation_bits=8,
        group_size=64,
        quantizer="gptq_ao",
        query_only=True,
        criterion="gap_exact",
        options=(("calib", "64"), ("seed", "3")),
    )
    assert (scheme.granularity, scheme.widths) == ("g64", (3, 4))
    assert (scheme.option("seed"), scheme.option("grid"), scheme.option("grid", "paper")) == ("3", None, "paper")
    assert str(grammar.at_width(scheme, 4)) == "W4A8-g64-gptq_ao+query+calib=64+seed=3"


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("W4.0", "W4-g128-rtn"),
        ("W3.50+gap", "W3.5-g128-rtn+gap"),
        ("W8-hqq-g1", "W8-g1-hqq"),
        ("W4-g999999999", "W4-g999999999-rtn"),
        ("W16.0A8-channel", "W16A8-channel-rtn"),
        ("W4A8+seed=1+act=token", "W4A8-g128-rtn+act=token+seed=1"),
        ("W16A8+act=tensor", "W16A8-g128-rtn"),  # the default
        ("W4+gap+query", "W4-g128-rtn+query+gap"),  # a criterion for a whole width decides nothing, yet is none
        ("W4+calib=docs/a-b.c=d.jsonl", "W4-g128-rtn+calib=docs/a-b.c=d.jsonl"),
        ("W4+head==", "W4-g128-rtn+head=="),
        ("fp+table=8", "fp+table=8"),
        ("W3.5+table=4+gap", "W3.5-g128-rtn+gap+table=4"),
        ("\t W4-rtn\n", "W4-g128-rtn"),
    ],
)
def test_canonical_form_of_a_scheme(text: str, canonical: str) -> None:
    scheme = grammar.parse_scheme(text)
    assert (str(scheme), grammar.parse_scheme(canonical)) == (canonical, scheme)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("MiniLM@W4", "minilm@W4-g128-rtn"),
        ("mean:BGE-m3@W4", "mean:bge-m3@W4-g128-rtn"),
        ("./MiniLM@W4", "./MiniLM@W4-g128-rtn"),
        ("qwen3-0.6b vs MINILM", "Qwen3-0.6B vs minilm"),
    ],
)
def test_a_short_name_has_one_case(text: str, canonical: str) -> None:
    pair = grammar.parse_pair(text)
    assert (str(pair), grammar.parse_pair(canonical)) == (canonical, pair)


@pytest.mark.parametrize(
    ("text", "widths"),
    [("W4", (4,)), ("W3+gap+widths=2,8,4,2", (2, 4, 8)), ("W3+gap", None), ("W3+gap+widths=4,8", None),
     ("W3+gap+widths=3,3", None)],
)  # fmt: skip
def test_widths_that_a_criterion_chooses_from(text: str, widths: tuple[int, ...] | None) -> None:
    if widths is not None:
        assert grammar.parse_scheme(text).widths == widths
        return
    with pytest.raises(SpecError, match=r"expected .*2,3,4,8"):
        _ = grammar.parse_scheme(text).widths


# In the table below "[" and "]" stand around the characters at fault; they are taken out before
# the text is parsed. "[]" means that something is missing there.
PART, OPTION = "unknown part .* expected a granularity .*rtn", "unknown option .* expected query, a criterion .*seed"
BAD_SPECS = [
    ("minilm[]", "missing '@' .* expected MODEL@SCHEME"),
    ("  []@W4", "missing model"),
    ("minilm@[] ", "missing bits"),
    ("minilm[ ]@W4", "one model on one line, without spaces"),
    ("mini[\n]lm@W4", r"'mini\\nlm@W4': unexpected '\\n'"),
    ("mini[\ud800]lm@W4", "unexpected"),
    ("minilm@[ ]W4", "a scheme without spaces"),
    ("  minilm@W4-[gtpq]  ", "unknown part 'gtpq' at character 13: .*; did you mean gptq\\?$"),
    ("minilm@W4+calib=a@[b]", "unknown bits 'b'"),
    ("[openai:http://h/v1#m@W4]", 'two models, .*"REFERENCE vs openai:http://h/v1#m"'),
    # bits
    *((f"m@[{bits}]", "unknown bits .* expected W and 2 to 8 bits.*W16A8") for bits in
      ("gptq", "9", "int4", "W", "W4e0", "W04", "W4.", "W٤", "W1", "W8.5", "W9", "W16", "W" + "9" * 500, "W4A3")),
    *((f"m@[{bits}]", f"unknown bits .*; did you mean {meant}\\?$") for bits, meant in
      {"4": "W4", "w3.5a8": "W3.5A8", "W4rtn": "W4-rtn"}.items()),
    ("m@[W3.25]A8-gptq+query", "no criterion for the width 'W3.25' .* get 3 and which 4 .* W3.25\\+gap$"),
    # parts and options
    ("m@W4-[]-rtn", "missing part"),
    *((f"m@W4-[{part}]", PART) for part in ("float", "g0", "g064", "g1.5", "g٤", "g1000000000", "query")),
    ("m@W4-[GPTQ]", f"{PART}.*; did you mean gptq\\?$"),
    ("m@W4-g64-[channel]", "second granularity 'channel'"),
    ("m@W4+[]+gap", "missing option"),
    *((f"m@W4+[{option}]", OPTION) for option in ("fisher", "b.json", "=3", "query-rtn")),
    *((f"m@W4+[{option}]", f"{OPTION}.*; did you mean {meant}\\?$") for option, meant in
      {"qeury": "query", "Seed=3": "seed", "rescoring=4": "rescore"}.items()),
    # values without their key
    *((f"m@W4+[{option}]", f"{OPTION}.*; did you mean {re.escape(meant)}\\?$") for option, meant in
      {"HNSW": "+index=HNSW32", "hnsw32": "+index=HNSW32", "IVF64,PQ": "+index=IVF64,PQ16", "int8": "+emb=int8",
       "efSearch=64": "+search=efSearch=64", "greedy": "+solver=greedy",
       "bf16": "+dtype=bf16 or +emb=bf16"}.items()),
    ("m@W4+seed=1+[seed=1]", "second seed"),
    ("m@W4+seed=[]+gap", "missing value of seed"),
    ("m@W4+seed[]", "missing value of seed"),
    *((f"m@W3+gap+{key}=[{value}]", f"unusable value of {key}") for key, value in
      (("queries", "0"), ("calib", "x.csv"), ("grid", "mse"), ("seed", "x"),
       ("solver", "best"), ("units", "qkv"), ("widths", "1,4"))),
    *((f"m@{bits}+gap+[act={act}]", f"no activations for 'act={act}' .*: W4A8\\+act={act}; or leave it out$")
      for bits in ("W4", "W4-gptq") for act in ("token", "tensor")),
    ("m@[fp+emb=int8+act=token]", "act in .* nothing that quantizes layers beside fp"),
    ("m@W4+table=[2]", "unusable value of table '2' .* 8 or 4"),
    ("m@W4A8+act=[row]", "unusable value of act .* tensor .* or token"),
    # two models
    (" []vs ./x", "missing reference .* expected MODEL vs MODEL"),
    ("minilm vs[]", "missing candidate"),
    ("a vs b[ vs ]c", "unexpected ' vs '"),
    ("minilm[@W4] vs ./x", "a reference as it is stored"),
    # models on servers
    *((f"minilm vs [{name}]", "unusable server .* expected openai:URL#MODEL") for name in
      ("openai:http://h/v1", "openai:http://h/v1#", "openai:ftp://h/v1#m", "openai:#m", "openai:http://#m",
       "openai:http://h:x/v1#m", "openai:http://h/v1?key=3#m", "openai:http://h/v1#my model", "http://h/v1#m")),
]  # fmt: skip


@pytest.mark.parametrize(("marked", "message"), BAD_SPECS)
def test_errors_point_at_what_is_wrong(marked: str, message: str) -> None:
    start, end = marked.index("["), marked.index("]") - 1
    text = marked.replace("[", "", 1).replace("]", "", 1)
    with pytest.raises(SpecError, match=message) as caught:
        grammar.parse_pair(text)
    error = caught.value
    assert (error.text, error.start, error.end) == (text, start, end)
    assert f" at character {start + 1}: expected " in str(error)
    assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "reference", "candidate"),
    [
        ("  minilm \t vs   org/model@v2 ", "minilm", "org/model@v2"),
        ("vsm vs ./canvs", "vsm", "./canvs"),
        (
            "minilm vs OpenAI:http://localhost:8000/#org/model:0.6b#x",
            "minilm",
            "openai:http://localhost:8000/v1#org/model:0.6b#x",
        ),
        (" openai:http://a#m   vs  openai:https://b:9/v1#m@v2 ", "openai:http://a/v1#m", "openai:https://b:9/v1#m@v2"),
    ],
)
def test_two_models_are_split_at_the_word(text: str, reference: str, candidate: str) -> None:
    pair = grammar.parse_pair(text)
    assert pair == Versus(reference=reference, candidate=candidate)
    assert (str(pair), grammar.parse_pair(str(pair))) == (f"{reference} vs {candidate}", pair)
    assert pair.model == reference
    assert pair.on_server == (grammar.is_endpoint(reference) or grammar.is_endpoint(candidate))


@pytest.mark.parametrize(
    ("written", "url", "asked"),
    [
        ("http://localhost:8000/", "http://localhost:8000/v1", "/v1/embeddings"),
        ("HTTP://LocalHost:8000/v1/embeddings/", "http://localhost:8000/v1", "/v1/embeddings"),
        ("http://localhost:8000/api/v2", "http://localhost:8000/api/v2", "/api/v2/embeddings"),
        ("http://localhost:8000/embeddings", "http://localhost:8000/embeddings", "/embeddings"),
        ("http://h:80/v1", "http://h/v1", "/v1/embeddings"),
        ("https://h:80/v1", "https://h:80/v1", "/v1/embeddings"),
        ("http://[::1]:11434", "http://[::1]:11434/v1", "/v1/embeddings"),
    ],
)
def test_a_url_has_one_form(written: str, url: str, asked: str) -> None:
    endpoint = grammar.read_endpoint(f"openai:{written}#m")
    assert endpoint.url == url
    assert endpoint.embeddings.endswith(asked)
    assert grammar.read_endpoint(str(endpoint)) == endpoint


@pytest.mark.parametrize("name", ["me:secret@", "secret@"])
def test_what_is_secret_in_a_url_is_refused_and_not_shown_again(name: str) -> None:
    with pytest.raises(SpecError, match="password") as caught:
        grammar.parse_pair(f"minilm vs openai:http://{name}h/v1#m")
    assert "secret" not in str(caught.value) + caught.value.caret()


def test_the_pages_for_users_tell_the_truth() -> None:
    """Rows `SPEC` | `canonical form`, blocks of a spec, carets and a message, and commands."""
    page = (DOCS / "reference" / "spec-strings.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+@[^`]+)` \| `([^`]+@[^`]+)` \|", page, re.MULTILINE)
    assert len(rows) >= 6
    for text, canonical in rows:
        assert str(grammar.parse(text)) == canonical
    blocks = re.findall(r"^(\S+)\n( *\^+)\n(.+)$", page, re.MULTILINE)
    assert len(blocks) >= 3
    for text, carets, message in blocks:
        with pytest.raises(SpecError) as caught:
            grammar.parse(text)
        assert (caught.value.caret(), str(caught.value)) == (f"{text}\n{carets}", message)
    for name in ("checkpoints.md", "servers.md"):
        shown = re.findall(r'quantdrift run "([^"]+)"', (DOCS / "guides" / name).read_text(encoding="utf-8"))
        assert len(shown) >= 3
        assert all(isinstance(grammar.parse_pair(text), Versus) for text in shown)


# --- what a scheme needs, and its parts -----------------------------------------------------------


def test_a_scale_for_each_token_needs_no_inputs_but_a_quantizer_does() -> None:
    needs = {
        text: (grammar.calibrates(grammar.parse_scheme(text)), grammar.draws(grammar.parse_scheme(text)))
        for text in ("W4A8", "W16A8-gptq", "W4A8+act=token", "W16A8-gptq+act=token", "W4A8-gptq+act=token")
    }
    assert [*needs.values()] == [(True, True)] * 2 + [(False, False)] * 2 + [(True, True)]
    assert grammar.draws(grammar.parse_scheme("W3.5A8+gap+act=token"))  # queries are drawn


@pytest.mark.parametrize(
    ("text", "kept", "only"),
    [
        ("W4A8+act=token+emb=int8", {"weights", "embeddings"}, "W4-g128-rtn+emb=int8"),
        ("W4A8+act=token+emb=int8", {"activations"}, "W16A8-g128-rtn+act=token"),
        ("W4A8-gptq+act=token+calib=8+seed=1", {"activations"}, "W16A8-g128-rtn+act=token"),
        ("W4A8-gptq+act=token+calib=8+seed=1", {"weights"}, "W4-g128-gptq+calib=8+seed=1"),
        ("W4A8+calib=8+seed=1+index=HNSW8", {"weights"}, "W4-g128-rtn"),
        ("W4A8+calib=8+seed=1+index=HNSW8", {"weights", "index"}, "W4-g128-rtn+index=HNSW8+seed=1"),
        ("W4A8+calib=8+seed=1+index=HNSW8", {"activations"}, "W16A8-g128-rtn+calib=8+seed=1"),
        ("W4-gptq+tuned+seed=1+emb=int8", {"weights"}, "W4-g128-gptq+seed=1+tuned=36"),
        ("W4+tuned+seed=1+emb=int8", {"embeddings"}, "fp+emb=int8"),
        ("W3.5A8+depth+act=token+seed=1", {"weights", "activations"}, "W3.5A8-g128-rtn+depth+act=token+seed=1"),
    ],
)
def test_stages_alone_keep_the_options_that_they_take(text: str, kept: set[str], only: str) -> None:
    scheme = grammar.only(grammar.parse_scheme(text), kept)
    assert str(scheme) == only
    assert scheme is not None
    refuse_settings(scheme)


def test_settings_of_a_calibration_are_refused_where_there_is_none() -> None:
    refuse_settings(grammar.parse_scheme("W4A8-gptq+act=token+calib=8+seed=1"))
    with pytest.raises(UnsupportedError, match=r"\+calib= .*W4A8-g128-rtn\+act=token"):
        refuse_settings(grammar.parse_scheme("W4A8+act=token+calib=8"))

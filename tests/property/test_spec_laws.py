"""Laws of spec strings: the round trip, the fixed point, and no surprise on any text."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from hypothesis import example, given
from hypothesis import strategies as st

from quantdrift.base.errors import SpecError
from quantdrift.kinds.quantizer import QUANTIZERS
from quantdrift.scheme import Scheme
from quantdrift.spec.grammar import CRITERIA, Spec, known_options, parse, parse_scheme

Made = TypeVar("Made")

# A value: no "+" and "@", and nothing that is not shown; of some options the grammar knows it.
VALUES = st.one_of(
    st.text("abcXYZ0123456789-./=_:", min_size=1, max_size=8),
    st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="+@"), min_size=1, max_size=4),
)
FREE = dict.fromkeys(("allocation", "head"), VALUES)
NUMBERS = dict.fromkeys(("queries", "seed"), st.integers(1, 10**8).map(str))
CHOICES = {
    "backend": ["gptqmodel"],
    "calib": ["64", "a=b.txt"],
    "solver": ["knapsack", "greedy"],
    "units": ["layer", "fused"],
    "widths": ["2,3", "8,2,4"],
}
OPTIONS = st.fixed_dictionaries({}, optional={**FREE, **NUMBERS, **{k: st.sampled_from(v) for k, v in CHOICES.items()}})
MODELS = st.one_of(
    st.sampled_from(["minilm", "BAAI/bge-m3", "org/m@v2", "C:\\m", "./a b", "a+gap-rtn@W4", "@"]),
    st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=10).filter(
        lambda text: text == text.strip()
    ),
)
# Texts near the grammar find more than texts from all of Unicode.
SHARDS = st.sampled_from(
    [
        *("@", "-", "+", "=", "W", "A", "w", "a", "g", "4", "16", "3.5", "W4", "A8", "0", ".", "e1"),
        *("g64", "channel", "query", "x", " ", "\n", "\x85", "\u2028", "\x00", "\ud800", "٤", ".json"),
        *QUANTIZERS,
        *CRITERIA,
        *known_options(),
    ]
)
NEAR_SPECS = st.lists(SHARDS, max_size=9).map("".join)


@st.composite
def written_specs(draw: st.DrawFn) -> tuple[str, Spec]:
    """A spec as a user may write it, and the object that it means."""
    quantizer = draw(st.sampled_from([*QUANTIZERS]))
    entry = QUANTIZERS[quantizer]
    criterion = draw(st.none() if entry.widths else st.none() | st.sampled_from(CRITERIA))
    activation_bits = draw(st.none() | st.sampled_from(entry.input_widths))
    whole = st.sampled_from([*(entry.widths or range(2, 9)), *([16] if activation_bits else [])]).map(float)
    weight_bits = draw(whole if criterion is None else whole | st.floats(2, 8))
    number = draw(st.sampled_from([str(weight_bits), str(weight_bits).removesuffix(".0")]))
    any_size = st.none() | st.just(128) | st.integers(1, 999_999_999)
    group_size = draw(st.sampled_from(entry.groups) if entry.groups else any_size)
    usual_size = entry.groups[0] if entry.groups else 128
    query_only = draw(st.booleans())
    ranges = [{"act": value} for value in entry.ranges if value != "block"] if activation_bits else []
    pairs = draw(OPTIONS) | draw(st.sampled_from([{}, *ranges]))

    scheme = Scheme(
        weight_bits=weight_bits,
        activation_bits=activation_bits,
        group_size=group_size,
        quantizer=quantizer,
        query_only=query_only,
        criterion=criterion,
        options=tuple(pairs.items()),
    )
    # a default may be left out; the rest stands in any order
    given = (scheme.granularity, group_size == usual_size), (quantizer, quantizer == "rtn")
    parts = [word for word, default in given if not default or draw(st.booleans())]
    options = [*["query"] * query_only, *[criterion] * bool(criterion), *(f"{k}={v}" for k, v in pairs.items())]
    bits = f"W{number}" + ("" if activation_bits is None else f"A{activation_bits}")
    words = "+".join(["-".join([bits, *draw(st.permutations(parts))]), *draw(st.permutations(options))])
    model = draw(MODELS)
    return f"{model}@{words}", Spec(model=model, scheme=scheme)


@given(written_specs(), st.sampled_from(["", " ", "\t", "\n"]))
def test_any_order_means_the_same_and_the_canonical_form_is_fixed(written: tuple[str, Spec], space: str) -> None:
    text, spec = written
    assert (parse(space + text + space), parse(str(spec)), str(parse(str(spec)))) == (spec, spec, str(spec))
    assert (parse_scheme(str(spec.scheme)), str(spec)) == (spec.scheme, f"{spec.model}@{spec.scheme}")


def attempt(make: Callable[[], Made]) -> Made | SpecError:
    """What is made, or the SpecError; any other exception goes through, and fails the test."""
    try:
        return make()
    except SpecError as error:
        return error


def assert_no_surprise(text: str) -> None:
    """Text parses to an object with a round trip, or the error points into the text."""
    for read in (parse, parse_scheme):
        made = attempt(partial(read, text))
        if isinstance(made, SpecError):
            assert 0 <= made.start <= made.end <= len(made.text)
            assert len(str(made).splitlines()) == 1
            str(made).encode()  # can be printed and stored
            assert made.text == text
            assert f" at character {made.start + 1}: expected " in str(made)
        else:
            assert (read(str(made)), str(read(str(made)))) == (made, str(made))


@given(st.text(max_size=40) | st.tuples(st.sampled_from(["m@W4-", "m@W3.5+gap"]), NEAR_SPECS).map("".join))
@example("m@W" + "4" * 5000)
@example("m@W4-\ud800.json")
@example("m@W4-g" + "4" * 5000)
def test_any_text_parses_or_is_a_spec_error(text: str) -> None:
    assert_no_surprise(text)


@given(written_specs(), SHARDS | st.characters() | st.just(""), st.data())
def test_a_mutated_spec_parses_or_is_a_spec_error(written: tuple[str, Spec], shard: str, data: st.DataObject) -> None:
    text, _ = written
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 3)))
    assert_no_surprise(text[:start] + shard + text[end:])

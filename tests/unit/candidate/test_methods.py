"""Which method a scheme gets, from which library, and what is refused before anything is loaded."""

from functools import partial

import pytest

from quantdrift.base import extras
from quantdrift.base.errors import MissingExtraError, SpecError, UnsupportedError
from quantdrift.builtin.adaround.work import AdaRound
from quantdrift.builtin.awq.work import Awq
from quantdrift.builtin.gptq.work import Gptq
from quantdrift.builtin.hqq.work import Hqq
from quantdrift.builtin.rtn.work import RoundToNearest
from quantdrift.candidate import libraries
from quantdrift.candidate.pair import methods_of
from quantdrift.candidate.refusals import check_pair
from quantdrift.spec.grammar import parse, parse_scheme
from support.versus_samples import DATASET


def method_of(scheme: str) -> object:
    (method,) = methods_of(parse_scheme(scheme)).values()
    return method


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Modules that count as installed; a test may change it."""
    modules = {"gptqmodel", "awq", "hqq"}
    monkeypatch.setattr(extras, "find_spec", lambda module: module if module in modules else None)
    return modules


@pytest.mark.parametrize(
    ("scheme", "method"),
    [
        ("W4", RoundToNearest(bits=4, group_size=128)),
        ("W16A8", None),
        ("W4-gptq", Gptq(bits=4, group_size=128)),
        ("W3-channel-gptq_ao", Gptq(bits=3, group_size=None, act_order=True)),
        ("W8A8-gptq+backend=gptqmodel+grid=library+calib=64", Gptq(bits=8, group_size=128, grid="library")),
        ("W2-awq", Awq(bits=2, group_size=128, package=libraries.GPTQMODEL)),
        ("W2-awq+backend=autoawq", Awq(bits=2, group_size=128, package=libraries.AUTOAWQ)),
        ("W6-g32-hqq", Hqq(bits=6, group_size=32)),
        ("W3-g64-adaround+calib=64", AdaRound(bits=3, group_size=64)),
    ],
)
def test_a_scheme_gives_the_method_its_settings(installed: set[str], scheme: str, method: object) -> None:
    assert method_of(scheme) == method


@pytest.mark.parametrize(
    ("scheme", "package", "extra"),
    [
        ("W4-g128-gptq", "gptqmodel", "gptq"),
        ("W4-awq", "gptqmodel", "gptq"),
        ("W4-awq+backend=autoawq", "autoawq", "autoawq"),
        ("W4-g128-hqq", "hqq", "hqq"),
    ],
)
def test_a_missing_library_names_its_extra(installed: set[str], scheme: str, package: str, extra: str) -> None:
    installed.clear()
    early = partial(check_pair, parse(f"minilm@{scheme}"), DATASET)  # before anything is loaded
    for refuse in (early, partial(method_of, scheme)):
        with pytest.raises(MissingExtraError) as caught:
            refuse()
        assert (caught.value.package, caught.value.extra) == (package, extra)


@pytest.mark.parametrize("backend", ["auto-gptq", "optimum"])
def test_a_backend_that_went_is_told_with_the_one_that_makes_its_codes(backend: str) -> None:
    with pytest.raises(SpecError, match=r"gptqmodel \(auto-gptq"):
        parse_scheme(f"W4-gptq+backend={backend}")


@pytest.mark.parametrize(
    ("scheme", "fact"),
    [
        ("W4+widths=3,4", r"add a criterion \(\+gap\)"),
        ("W4+calib=64", r"\+calib= has no effect on W4"),
        ("W4-hqq+grid=library", r"\+grid= has no effect on .*, which takes attention, batch, .*head, "),
        ("W4-gptq+backend=autoawq", r"autoawq does no gptq; expected \+backend=gptqmodel"),
        ("W7-hqq", "2, 3, 4, 5, 6, 8 bits, not to 7"),
        *((f"W3.5+gap+allocation=a.json+{setting}", "no effect") for setting in ("queries=64", "seed=3")),
    ],
)
def test_what_a_scheme_cannot_do_is_refused(installed: set[str], scheme: str, fact: str) -> None:
    with pytest.raises(UnsupportedError, match=fact):
        method_of(scheme)

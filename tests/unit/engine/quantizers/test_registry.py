"""Which method a scheme gets, from which library, and what is refused before anything is loaded."""

import pytest

from quantdrift.base.errors import MissingExtraError, UnsupportedError
from quantdrift.engine.quantizers.adaround import AdaRound
from quantdrift.engine.quantizers.awq import Awq
from quantdrift.engine.quantizers.gptq import Gptq
from quantdrift.engine.quantizers.hqq import Hqq
from quantdrift.engine.quantizers.libraries import Library
from quantdrift.engine.quantizers.registry import methods_of
from quantdrift.engine.quantizers.rtn import RoundToNearest
from quantdrift.spec.grammar import parse_scheme

EVERY = {"gptqmodel", "auto-gptq", "autoawq", "hqq", "optimum"}
BY_OPTIMUM = "+backend=optimum+grid=library"


def method_of(scheme: str) -> object:
    (method,) = methods_of(parse_scheme(scheme)).values()
    return method


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Backends that count as installed; a test may change it."""
    backends = set(EVERY)
    monkeypatch.setattr(Library, "is_installed", lambda library: library.backend in backends)
    return backends


@pytest.mark.parametrize(
    ("scheme", "method"),
    [
        ("W4", RoundToNearest(bits=4, group_size=128)),
        ("W16A8", None),
        ("W4-gptq", Gptq(bits=4, group_size=128)),
        ("W3-channel-gptq_ao", Gptq(bits=3, group_size=None, act_order=True)),
        ("W8-gptq+backend=auto-gptq", Gptq(bits=8, group_size=128, backend="auto-gptq")),
        ("W2-awq", Awq(bits=2, group_size=128)),
        ("W6-g32-hqq", Hqq(bits=6, group_size=32)),
        ("W3-g64-adaround+calib=64", AdaRound(bits=3, group_size=64)),
        (
            f"W3-channel-gptq_ao{BY_OPTIMUM}",
            Gptq(bits=3, group_size=None, act_order=True, backend="optimum", grid="library"),
        ),
        (f"W8A8-g64-gptq+calib=64{BY_OPTIMUM}", Gptq(bits=8, group_size=64, backend="optimum", grid="library")),
    ],
)
def test_a_scheme_gives_the_method_its_settings(installed: set[str], scheme: str, method: object) -> None:
    assert method_of(scheme) == method


@pytest.mark.parametrize(
    ("scheme", "missing", "package", "extra"),
    [
        ("W4-g128-gptq", EVERY, "gptqmodel", "gptq"),
        ("W4-g128-gptq_ao+backend=auto-gptq", EVERY, "auto-gptq", "auto-gptq"),
        ("W4-g128-awq", EVERY, "autoawq", "awq"),
        ("W4-g128-hqq", EVERY, "hqq", "hqq"),
        (f"W4-g128-gptq{BY_OPTIMUM}", {"optimum"}, "optimum", "optimum"),
        (f"W4-g128-gptq{BY_OPTIMUM}", {"gptqmodel"}, "gptqmodel", "gptq"),  # what it rounds by
    ],
)
def test_a_missing_library_names_its_extra(
    installed: set[str], scheme: str, missing: set[str], package: str, extra: str
) -> None:
    installed -= missing
    with pytest.raises(MissingExtraError) as caught:
        method_of(scheme)
    assert (caught.value.package, caught.value.extra) == (package, extra)


@pytest.mark.parametrize(
    ("scheme", "fact"),
    [
        ("W4+widths=3,4", r"add a criterion \(\+gap\)"),
        ("W4+calib=64", r"\+calib= has no effect on W4"),
        ("W4-hqq+grid=library", r"\+grid= has no effect on .*, which takes attention, batch, .*head, "),
        ("W7-hqq", "2, 3, 4, 5, 6, 8 bits, not to 7"),
        ("W4-gptq+backend=optimum", r"\+grid=library"),
        (f"W5-gptq{BY_OPTIMUM}", "2, 3, 4, 8 bits, not to 5"),
        (f"W3.5-gptq+gap{BY_OPTIMUM}", "a whole model to one width"),
    ],
)
def test_what_a_scheme_cannot_do_is_refused(installed: set[str], scheme: str, fact: str) -> None:
    with pytest.raises(UnsupportedError, match=fact):
        method_of(scheme)

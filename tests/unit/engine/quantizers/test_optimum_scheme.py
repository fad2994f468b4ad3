"""`+backend=optimum`: what a scheme gives it, and what it refuses before anything is loaded."""

from __future__ import annotations

import pytest

from quantdrift.engine.quantizers.libraries import Library
from quantdrift.engine.quantizers.optimum_gptq import OptimumGptq
from quantdrift.engine.quantizers.registry import layer_quantizer
from quantdrift.errors import MissingExtraError, UnsupportedError
from quantdrift.spec import parse_scheme


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Backends that count as installed."""
    backends = {"optimum", "gptqmodel"}
    monkeypatch.setattr(Library, "is_installed", lambda library: library.backend in backends)
    return backends


@pytest.mark.parametrize(
    ("scheme", "method"),
    [
        ("W4-gptq", OptimumGptq(bits=4, group_size=128)),
        ("W3-channel-gptq_ao", OptimumGptq(bits=3, group_size=None, act_order=True)),
        ("W8A8-g64-gptq+calib=64", OptimumGptq(bits=8, group_size=64)),
    ],
)
def test_a_scheme_gives_optimum_its_settings(installed: set[str], scheme: str, method: OptimumGptq) -> None:
    assert layer_quantizer(parse_scheme(f"{scheme}+backend=optimum+grid=library")) == method


@pytest.mark.parametrize("backend", ["optimum", "gptqmodel"])
def test_optimum_and_what_it_rounds_by_come_with_one_extra(installed: set[str], backend: str) -> None:
    installed.remove(backend)
    with pytest.raises(MissingExtraError) as caught:
        layer_quantizer(parse_scheme("W4-gptq+backend=optimum+grid=library"))
    assert (caught.value.package, caught.value.extra) == (backend, "optimum")


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        (
            "W4-gptq+backend=optimum",
            r"asks for the paper's grid, and optimum has a grid of its own; add \+grid=library",
        ),
        ("W4-gptq+backend=optimum+grid=paper", r"a grid of its own, got \+grid=paper; use \+grid="),
        ("W5-gptq+backend=optimum+grid=library", "optimum quantizes to 2, 3, 4, 8 bits, not to 5"),
    ],
)
def test_what_optimum_does_not_do_is_refused(installed: set[str], scheme: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        layer_quantizer(parse_scheme(scheme))

"""Which library a scheme gets, and that a library changes nothing in the process around it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from quantdrift.engine.quantizers import gptq
from quantdrift.engine.quantizers.awq import Awq
from quantdrift.engine.quantizers.base import Moments
from quantdrift.engine.quantizers.gptq import Gptq, GptqProblem
from quantdrift.engine.quantizers.hqq import HQQ, Hqq
from quantdrift.engine.quantizers.libraries import AUTO_GPTQ, AUTOAWQ, GPTQMODEL, Library
from quantdrift.engine.quantizers.registry import layer_quantizer
from quantdrift.errors import MissingExtraError, UnsupportedError
from quantdrift.spec import parse_scheme

LIBRARIES = (GPTQMODEL, AUTO_GPTQ, AUTOAWQ, HQQ)
EVERY = {library.backend for library in LIBRARIES}
ALL_INSTALLED = all(library.is_installed() for library in LIBRARIES)


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Backends that count as installed; a test fills it."""
    installed: set[str] = set()
    monkeypatch.setattr(Library, "is_installed", lambda library: library.backend in installed)
    return installed


@pytest.mark.parametrize(
    ("scheme", "method"),
    [
        ("W4-gptq", Gptq(bits=4, group_size=128)),
        ("W3-channel-gptq_ao", Gptq(bits=3, group_size=None, act_order=True)),
        ("W8-gptq+backend=auto-gptq", Gptq(bits=8, group_size=128, backend="auto-gptq")),
        ("W4-g64-gptq+grid=library", Gptq(bits=4, group_size=64, grid="library")),
        ("W4-gptq+grid=paper", Gptq(bits=4, group_size=128)),
        ("W2-awq", Awq(bits=2, group_size=128)),
        ("W2-awq+backend=autoawq+grid=library", Awq(bits=2, group_size=128, grid="library")),
        ("W6-g32-hqq+backend=hqq", Hqq(bits=6, group_size=32)),
    ],
)
def test_a_scheme_gives_the_method_its_settings(only: set[str], scheme: str, method: object) -> None:
    only |= EVERY
    assert layer_quantizer(parse_scheme(scheme)) == method


def test_auto_gptq_stands_in_where_gptqmodel_is_not_installed(only: set[str]) -> None:
    only.add("auto-gptq")
    assert layer_quantizer(parse_scheme("W4-gptq")) == Gptq(bits=4, group_size=128, backend="auto-gptq")


@pytest.mark.parametrize(
    ("scheme", "package", "extra"),
    [
        ("W4-g128-gptq", "gptqmodel", "gptq"),
        ("W4-g128-gptq_ao+backend=auto-gptq", "auto-gptq", "auto-gptq"),
        ("W4-g128-awq", "autoawq", "awq"),
        ("W4-g128-hqq", "hqq", "hqq"),
    ],
)
def test_a_missing_library_names_its_extra(only: set[str], scheme: str, package: str, extra: str) -> None:
    with pytest.raises(MissingExtraError) as caught:
        layer_quantizer(parse_scheme(scheme))
    assert (caught.value.package, caught.value.extra) == (package, extra)
    assert str(caught.value).startswith(f"{scheme} needs the package {package!r}")


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        (
            "W4-gptq+backend=gptqmodl",
            r"gptq takes \+backend=gptqmodel or \+backend=auto-gptq or \+backend=optimum, "
            r"got \+backend=gptqmodl; did you mean \+backend=gptqmodel\?",
        ),
        ("W4-awq+backend=llm", r"awq takes \+backend=autoawq, got \+backend=llm$"),
        ("W4-hqq+backend=axis0", r"hqq takes \+backend=hqq, got \+backend=axis0$"),
        ("W4-awq+grid=mse", r"awq takes \+grid=paper or \+grid=library, got \+grid=mse$"),
        ("W7-hqq", "hqq quantizes to 2, 3, 4, 5, 6, 8 bits, not to 7; use one of these or rtn"),
    ],
)
def test_what_no_library_does_is_refused(only: set[str], scheme: str, message: str) -> None:
    only |= EVERY
    with pytest.raises(UnsupportedError, match=message):
        layer_quantizer(parse_scheme(scheme))


@pytest.mark.skipif(not ALL_INSTALLED, reason="a quantization library is not installed")
def test_a_method_says_what_made_its_codes() -> None:
    methods = [
        Gptq(bits=4, group_size=None),
        Gptq(bits=4, group_size=None, backend="auto-gptq", grid="library"),
        Awq(bits=4, group_size=None),
        Hqq(bits=4, group_size=None),
    ]
    described = [method.describe() for method in methods]
    assert all(one["version"][0].isdigit() for one in described)
    assert [(one["backend"], one["grid"]) for one in described] == [
        ("gptqmodel", "symmetric absmax"),
        ("auto-gptq", "symmetric, the library's"),
        ("autoawq", "symmetric absmax"),
        ("hqq", "min-max with a fitted zero point"),
    ]


def test_every_group_starts_with_a_block() -> None:
    """Else its grid is fitted to weights that lack the updates of the block's earlier columns."""
    for group_size, wanted in [(None, 128), (128, 128), (384, 128), (64, 64), (96, 96), (200, 200)]:
        problem = GptqProblem(
            weight=torch.zeros(1, 1),
            hessian=torch.eye(1),
            bits=4,
            group_size=group_size,
            act_order=False,
            paper_grid=True,
            n_tokens=1,
        )
        assert problem.block_size() == wanted


def test_a_library_off_its_grid_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a version that puts more after the rounding."""
    monkeypatch.setattr(
        gptq, "_LIBRARIES", {"gptqmodel": (GPTQMODEL, lambda problem: (problem.weight, torch.ones(1, 1)))}
    )
    method = Gptq(bits=4, group_size=None)
    x = Moments(second=torch.eye(2), mean_abs=torch.ones(2), absmax=1.0, n_tokens=1)
    assert method.quantize(torch.tensor([[7.0, -8]]), x).codes.tolist() == [[7, -8]]
    for off in (0.5, 8, -9, torch.nan):
        with pytest.raises(UnsupportedError, match="on a grid of 4 bits from gptqmodel, got some"):
            method.quantize(torch.tensor([[7.0, off]]), x)


ALONE = """
import logging, os, warnings
import torch
from quantdrift.engine.quantizers import libraries

def state():
    flags = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    variables = {name: os.environ.get(name) for name in libraries.ENVIRONMENT}
    log = logging.root.level, list(logging.root.handlers), logging.root.manager.disable
    own = [one for one in warnings.filters if one[2] is DeprecationWarning]
    return flags, variables, log, own, torch.cuda.synchronize

before = state()
libraries.import_gptqmodel(), libraries.import_auto_gptq(), libraries.import_autoawq()
if (after := state()) != before:
    print(before, after)
"""


@pytest.mark.skipif(not ALL_INSTALLED, reason="a quantization library is not installed")
def test_libraries_write_nothing_and_leave_the_process_as_it_was() -> None:
    """No banner, no farewell; caches, log level, TF32 and warning filters are the user's."""
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False, timeout=300)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)

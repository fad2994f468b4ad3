"""GPTQ, AWQ, HQQ and AdaRound: what every library is kept from doing to a layer, and to the process around it."""

import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from itertools import product

import pytest
import torch

from quantdrift.base.errors import DataError, UnsupportedError
from quantdrift.builtin.adaround.work import AdaRound
from quantdrift.builtin.awq import work as awq
from quantdrift.builtin.awq.work import Awq
from quantdrift.builtin.gptq.work import Gptq
from quantdrift.builtin.hqq.work import BITS, Hqq
from support import paper_quantizers as paper
from support.quantizer_samples import LIBRARIES, moments_by_hand, moments_of, weights

INSTALLED = all(find_spec(package.module) for package in LIBRARIES.values())
pytestmark = pytest.mark.skipif(not INSTALLED, reason="a quantization library is not installed")

CALIBRATED = [
    Gptq(bits=4, group_size=None),
    *(Awq(bits=4, group_size=None, package=LIBRARIES[name]) for name in ("gptqmodel", "autoawq")),
]
calibrated = pytest.mark.parametrize("method", CALIBRATED, ids=["gptq", "awq", "awq by autoawq"])


@calibrated
@pytest.mark.parametrize("group_size", [None, 3])
def test_an_input_that_was_always_zero_keeps_its_weights(method: Gptq | Awq, group_size: int | None) -> None:
    """gptqmodel would set them to 0; AWQ's scaling of 0 would too."""
    inputs, weight = paper.outlying_inputs(0, 400, 6), weights(0, 4, 6)
    inputs[:, 2] = 0
    made = replace(method, bits=8, group_size=group_size).quantize(weight, moments_of(inputs))
    torch.testing.assert_close(made.dequantize(torch.float32)[:, 2], weight[:, 2], atol=0.002, rtol=0)


def test_a_library_that_answers_otherwise_than_the_method_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(awq._SEARCHES, "gptqmodel", lambda _, magnitude, *__: magnitude**0.33)
    with pytest.raises(UnsupportedError, match=r"20 powers .*gptqmodel"):
        CALIBRATED[1].quantize(weights(0, 4, 8), moments_of(paper.outlying_inputs(0, 400, 8)))


ALONE = """
import logging, os, warnings
import torch
from quantdrift.candidate import libraries

def state():
    flags = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    names = ("HF_HOME", "HF_HUB_CACHE", "CUDA_DEVICE_ORDER", "PYTORCH_ALLOC_CONF", "TRANSFORMERS_CACHE")
    variables = {name: os.environ.get(name) for name in names}
    log = logging.root.level, list(logging.root.handlers), logging.root.manager.disable
    own = [one for one in warnings.filters if one[2] is DeprecationWarning]
    return flags, variables, log, own, torch.cuda.synchronize

before = state()
libraries.import_gptqmodel(), libraries.import_autoawq()
if (after := state()) != before:
    print(before, after)
"""


@pytest.mark.slow
def test_libraries_write_nothing_and_leave_the_process_as_it_was() -> None:
    """No banner, no farewell; caches, log level, TF32 and warning filters are the user's."""
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False, timeout=300)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


# --- HQQ ---------------------------------------------------------------------------------------------


def test_hqq_is_what_the_library_dequantizes() -> None:
    from hqq.core.quantize import Quantizer  # noqa: PLC0415 -- it may not be installed

    assert [bits for bits in sorted(Quantizer.SUPPORTED_BITS) if bits >= 2] == list(BITS)
    weight = weights(0, 4, 128)
    for bits, group_size in product(BITS, (32, None)):
        codes, meta = Quantizer.quantize(
            weight, nbits=bits, group_size=group_size or 128, axis=1, bitpack=False, device="cpu"
        )
        made = Hqq(bits=bits, group_size=group_size).quantize(weight).dequantize(torch.float32)
        torch.testing.assert_close(made, Quantizer.dequantize(codes, meta), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("bits", [2, 8])
def test_hqq_does_not_care_for_the_size_of_weights(bits: int) -> None:
    """The library's clamps would leave the small ones a few levels, or one."""
    weight = weights(0, 4, 128)
    quantized = Hqq(bits=bits, group_size=64).quantize(weight)
    small = Hqq(bits=bits, group_size=64).quantize(weight * 2.0**-12)
    assert torch.equal(small.codes, quantized.codes)
    assert torch.equal(small.scale, quantized.scale * 2.0**-12)


# --- moments that are none ---------------------------------------------------------------------------


def test_the_damping_of_a_moment_that_is_not_positive_is_raised_and_told() -> None:
    """Eigenvalues 2.05 and -0.05: a tenth of the diagonal makes them positive, a hundredth not."""
    method = Gptq(bits=4, group_size=None)
    weight, second = torch.tensor([[7, 2.6]]), torch.tensor([[1, 1.05], [1.05, 1]])
    assert dict(method.quantize(weight, moments_by_hand(second)).notes) == {"damping": 0.1}
    assert dict(method.quantize(weight, moments_by_hand(torch.eye(2))).notes) == {}


def test_a_layer_without_finite_moments_is_refused() -> None:
    with pytest.raises(DataError, match="adaround needs"):
        AdaRound(bits=4, group_size=None).quantize(
            torch.ones(2, 2), moments_by_hand(torch.tensor([[1, torch.nan]] * 2))
        )

"""GPTQ, AWQ and HQQ: what every library is kept from doing to a layer, and to the process around it."""

import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch

from quantdrift.base.errors import UnsupportedError
from quantdrift.builtin.awq import work as awq
from quantdrift.builtin.awq.work import Awq
from quantdrift.builtin.gptq.work import Gptq
from support import paper_quantizers as paper
from support.quantizer_samples import LIBRARIES, moments_of, weights

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

"""What is changed on a model is taken back, also where it stops in the middle: attributes, modules, weights."""

import resource
import tempfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from quantdrift.base.errors import DiskError
from quantdrift.models.layers import find_linears
from quantdrift.models.weights import dismiss, put_aside, restoring, saved_weights


def model() -> nn.Module:
    made = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    made.config = SimpleNamespace(use_cache=True)  # type: ignore[assignment]  # as in transformers
    return made.eval()


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_attributes_hooks_modules_and_settings_come_back(error: type[BaseException] | None) -> None:
    changed, seen = model(), []
    first = changed[0]
    first.register_forward_hook(lambda *_: seen.append("mine"))
    with nullcontext() if error is None else pytest.raises(error), restoring(changed):
        changed.train()
        changed.is_quantized = True  # type: ignore[assignment]  # what quantizers of transformers set
        changed.config.use_cache = False
        changed.config.quantization_config = {"bits": 4}
        first.register_forward_hook(lambda *_: seen.append("theirs"))
        first.target_device = "cpu"  # type: ignore[assignment]  # what gptqmodel sets
        changed[0] = nn.Identity()
        del changed[1].eps
        if error is not None:
            raise error
    assert changed[0] is first
    changed(torch.zeros(1, 2))
    assert seen == ["mine"]
    assert not any(module.training for module in changed.modules())
    assert not hasattr(changed, "is_quantized")
    assert not hasattr(first, "target_device")
    assert (vars(changed.config), changed[1].eps) == ({"use_cache": True}, 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_weights_come_back_from_a_file(dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 7, bias=False)).to(dtype).requires_grad_(False)
    model[1].weight = nn.Parameter(torch.randn(5, 7, dtype=dtype).t(), requires_grad=False)  # rows lie apart
    before = [parameter.clone() for parameter in model.parameters()]
    with saved_weights(find_linears([model])):
        assert not list(tmp_path.iterdir())
        for layer in model:
            layer.weight.zero_()
    assert all(map(torch.equal, before, model.parameters()))


def test_a_disk_without_room_is_told_before_a_weight_is_changed() -> None:
    layers = find_linears([nn.Linear(300, 10)])
    most, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(DiskError, match=r"3,000 weights .*TMPDIR"):
            saved_weights(layers).__enter__()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))


def test_what_is_put_aside_is_in_memory_while_it_is_read_and_the_same_afterwards() -> None:
    codes = torch.arange(2**22, dtype=torch.int32).to(torch.int8).view(2048, 2048)
    before, put = mapped_bytes(), put_aside(codes)
    assert mapped_bytes() - before < 2**20
    assert torch.equal(put, codes)
    assert mapped_bytes() - before > 0.9 * 2**22  # other pages come and go
    dismiss(put)
    dismiss(codes)
    assert mapped_bytes() - before < 2**20
    assert torch.equal(put, codes)


def mapped_bytes() -> int:
    """Pages of files that are in the memory of this process."""
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("the memory of files is read from Linux's /proc")
    rows = dict(row.split(":") for row in status.read_text().splitlines())
    return 1024 * sum(int(rows[part].split()[0]) for part in ("RssFile", "RssShmem"))

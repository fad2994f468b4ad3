"""A calibrated candidate: what it needs, what it keeps, the ranges of its inputs, and that the reference comes back."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quantdrift.base.errors import DataError, UnsupportedError
from quantdrift.base.progress import Silent
from quantdrift.builtin.adaround.work import AdaRound
from quantdrift.candidate.calibration import candidate
from quantdrift.candidate.calibration.inputs import fake_quantize
from quantdrift.candidate.calibration.sample import Sample
from quantdrift.candidate.pair import QuantizedPair
from quantdrift.models.weights import weights_fingerprint
from quantdrift.runs.words import candidate_lines

SCHEME = "W3-g8-adaround"


class World:
    """A small model, calibration batches, and a count of the passes."""

    def __init__(self, model: nn.Module | None = None, *batches: Tensor) -> None:
        torch.manual_seed(0)
        self.model = model or nn.Sequential(nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 6), nn.Linear(6, 4))
        self.batches = batches or [torch.randn(16, 12) for _ in range(3)]
        self.passes, self.before = 0, weights_fingerprint([self.model])

    def sample(self, key: str | None = "texts") -> Sample:
        works: list[Callable[[], object]] = [lambda batch=batch: self.run(batch) for batch in self.batches]
        return Sample(batches=works, key=None if key is None else {"texts": key}, record={"source": "corpus"})

    def run(self, batch: Tensor) -> Tensor:
        self.passes += 1
        output: Tensor = self.model(batch)
        return output

    def pair(self, root: Path | None, scheme: str = SCHEME, key: str = "texts") -> QuantizedPair:
        pair = QuantizedPair([self.model], scheme)
        pair.prepare(self.sample(key), root=root, progress=Silent())
        return pair

    def candidate(self, pair: QuantizedPair) -> str:
        with pair.candidate():
            return pair.candidate_fingerprint()

    def ranges(self, pair: QuantizedPair) -> list[float]:
        return [layer["input_absmax"] for layer in pair.describe()["layers"]]


@pytest.fixture
def world() -> World:
    return World()


def test_calibrating_leaves_the_reference_in_place(world: World) -> None:
    pair = world.pair(None)
    assert weights_fingerprint([world.model]) == world.before
    assert world.candidate(pair) != world.before
    assert weights_fingerprint([world.model]) == world.before
    assert world.passes == len(world.batches)  # one pass serves all layers


@pytest.mark.parametrize("change", ["sample", "weights"])
def test_what_decides_a_layer_is_in_its_key(world: World, tmp_path: Path, change: str) -> None:
    world.pair(tmp_path)
    if change == "weights":
        with torch.no_grad():
            world.model[0].weight[0, 0] += 0.5
    other = world.pair(tmp_path, key="others" if change == "sample" else "texts")
    assert other.describe()["layers_kept_from_before"] == 0


def test_an_interrupted_calibration_goes_on(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = world.candidate(world.pair(None))
    quantize, made = AdaRound.quantize, []

    def interrupted(self: AdaRound, weight: Tensor, moments: object) -> object:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(weight.shape)
        return quantize(self, weight, moments)  # type: ignore[arg-type]  # passed through

    with monkeypatch.context() as patch:
        patch.setattr(AdaRound, "quantize", interrupted)
        with pytest.raises(KeyboardInterrupt):
            world.pair(tmp_path)
    assert weights_fingerprint([world.model]) == world.before
    resumed = world.pair(tmp_path)
    assert (resumed.describe()["layers_kept_from_before"], world.candidate(resumed)) == (2, whole)


def test_a_model_that_runs_elsewhere_is_refused(world: World) -> None:
    """Hooks see nothing of it, so everything would be rounded to nearest under another name."""

    def elsewhere() -> None:
        thread = threading.Thread(target=world.model, args=(world.batches[0],))
        thread.start()
        thread.join()

    pair = QuantizedPair([world.model], SCHEME)
    with pytest.raises(UnsupportedError, match="calibration input"):
        pair.prepare(Sample(batches=[elsewhere], key=None, record={}), root=None, progress=Silent())
    assert weights_fingerprint([world.model]) == world.before


def test_every_layer_has_the_range_of_its_own_input() -> None:
    torch.manual_seed(0)
    batches = [torch.randn(8, 6), 3 * torch.randn(8, 6)]
    world = World(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)), *batches)
    model, pair = world.model, world.pair(None, "W16A8")
    largest = max(float(batch.abs().max()) for batch in batches)
    hidden = max(float(model[1](model[0](batch)).abs().max()) for batch in batches)
    x = 5 * torch.randn(20, 6)  # beyond the range too
    first = model[1](model[0](fake_quantize(x, absmax=largest, bits=8)))
    wanted, exact = model[2](fake_quantize(first, absmax=hidden, bits=8)), model(x)
    with pair.candidate():
        outputs = model(x)
    assert torch.allclose(outputs, wanted, atol=1e-6)
    assert not torch.allclose(outputs, exact)
    assert torch.equal(model(x), exact)  # nothing stays behind


class Twice(nn.Module):
    """The second call of its layer gets, by name, five times what the first one got."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.layer(x)
        return self.last(self.layer(input=5 * x))  # type: ignore[no-any-return]


def test_ranges_are_right_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer may be on the disk then with the range of its first call; the last one is not."""
    world = World(Twice(), torch.randn(8, 4))
    in_order = candidate.quantize_in_order

    def killed(*args: Any, **kwargs: Any) -> None:
        in_order(*args, **kwargs)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(candidate, "quantize_in_order", killed)
        with pytest.raises(KeyboardInterrupt):
            world.pair(tmp_path, "W4A8-g4")
    whole = world.pair(None, "W4A8-g4")
    for passes, kept in ((1, 1), (0, 2)):  # the first resumes, the second reads
        before = world.passes
        again = world.pair(tmp_path, "W4A8-g4")
        assert (again.describe()["layers_kept_from_before"], world.passes - before) == (kept, passes)
        assert world.ranges(again) == world.ranges(whole)
        assert world.candidate(again) == world.candidate(whole)


def test_an_endless_input_has_no_range(tmp_path: Path) -> None:
    world = World(nn.Linear(4, 3), torch.tensor([[1.0, float("inf"), 0, 0]]))
    for _ in range(2):  # also where the layers are kept
        with pytest.raises(DataError, match="not finite"):
            world.pair(tmp_path, "W16A8")


# --- a scale for each token -----------------------------------------------------------------------


def test_a_scale_for_each_token_needs_no_calibration(world: World) -> None:
    pair, x = QuantizedPair(world.model, "W16A8+act=token"), 5 * torch.randn(20, 12)
    assert not pair.needs_calibration
    exact, rounded = world.model(x), x
    for module in world.model:
        step = rounded.abs().amax(1, keepdim=True) / 127
        rounded = module((rounded / step).round() * step if isinstance(module, nn.Linear) else rounded)
    with pair.candidate():
        outputs, digest = world.model(x), pair.candidate_fingerprint()
    torch.testing.assert_close(outputs, rounded)
    assert not torch.equal(outputs, exact)
    assert torch.equal(world.model(x), exact)  # nothing stays behind
    assert digest not in {world.before, world.candidate(world.pair(None, "W16A8"))}  # they key embeddings


class Tower(nn.Module):
    """A tower like CLIP's: torch's attention reads the weight of its output projection and does not call it."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.attention, self.unused = nn.Linear(4, 8), nn.MultiheadAttention(8, 2), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.into(x)
        return self.attention(hidden, hidden, hidden)[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("act", ["token", "tensor"])
@pytest.mark.parametrize("seen", ["probe", "candidate"])  # embeddings may be kept, and then the candidate does not run
def test_layers_that_are_never_called_are_named(act: str, seen: str) -> None:
    world = World(Tower(), torch.randn(6, 4))
    pair = QuantizedPair(world.model, f"W4A8-g4+act={act}")
    pair.prepare(world.sample(), root=None, progress=Silent())
    with pair.observed() if seen == "probe" else pair.candidate():
        world.run(torch.randn(6, 4))
    made = {"activations": pair.describe()["activations"]}
    missing = ["attention.in_proj_weight", "unused"]  # without a batch, torch multiplies by a part at a time
    figures = {"bits": 8, "scale": act, "layers_covered": 2, "layers": 4, "not_covered": missing}
    assert made["activations"] == figures
    (line,) = (line for line in candidate_lines({"quantization": made}) if line.startswith("inputs of"))
    assert all(name in line for name in ("2 of 4 linear layers", act.replace("tensor", "per layer"), *missing))


@pytest.mark.parametrize("scheme", ["W16A8", "W16A8+act=token"])
def test_texts_of_unequal_length_in_torchs_own_encoder(scheme: str) -> None:
    """Without quantization it packs them into a nested tensor, which cannot be rounded."""
    block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0)
    model, x = nn.TransformerEncoder(block, 2).eval(), torch.randn(2, 3, 8)
    padding = torch.tensor([[False, False, False], [False, True, True]])
    pair = QuantizedPair(model, scheme)
    run = torch.no_grad()(lambda: model(x, src_key_padding_mask=padding)[0])
    pair.prepare(Sample(batches=[run], key=None, record={}), root=None, progress=Silent())
    exact = run()
    with pair.observed():
        run()
    with pair.candidate():
        outputs = run()
    assert 0 < (outputs - exact).abs().max() < 0.2
    assert pair.describe()["activations"]["layers_covered"] == 8

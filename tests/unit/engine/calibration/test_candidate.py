"""A calibrated candidate: what it needs, what it keeps, the ranges of its inputs, and that the reference comes back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from quantdrift.engine.calibration.candidate import LayerStore
from quantdrift.engine.calibration.inputs import fake_quantize
from quantdrift.engine.calibration.sample import Sample
from quantdrift.engine.pair import QuantizedPair
from quantdrift.engine.quantizers.adaround import AdaRound
from quantdrift.engine.weights import weights_fingerprint
from quantdrift.errors import DataError, RunError, UnsupportedError
from quantdrift.progress import Progress, Silent

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

    def pair(
        self, root: Path | None, scheme: str = SCHEME, key: str = "texts", progress: Progress | None = None
    ) -> QuantizedPair:
        pair = QuantizedPair([self.model], scheme)
        pair.prepare(self.sample(key), root=root, progress=progress or Silent())
        return pair

    def candidate(self, pair: QuantizedPair) -> str:
        with pair.candidate():
            return pair.candidate_fingerprint()

    def ranges(self, pair: QuantizedPair) -> list[float]:
        return [layer["input_absmax"] for layer in pair.describe()["layers"]]


class Steps:
    """Progress that notes the steps it is told."""

    def __init__(self) -> None:
        self.told: list[int] = []

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        yield self.told.append
        assert sum(self.told) == total


@pytest.fixture
def world() -> World:
    return World()


def test_calibrating_leaves_the_reference_in_place(world: World) -> None:
    pair = world.pair(None)
    assert weights_fingerprint([world.model]) == world.before
    assert world.candidate(pair) != world.before
    assert weights_fingerprint([world.model]) == world.before
    assert world.passes == len(world.batches)  # one pass serves all layers


def test_a_candidate_without_calibration_is_refused(world: World) -> None:
    pair = QuantizedPair([world.model], SCHEME)
    assert pair.needs_calibration
    with pytest.raises(UnsupportedError, match="is calibrated on documents"), pair.candidate():
        pytest.fail("there is no candidate")


def test_a_data_free_scheme_runs_nothing(world: World) -> None:
    pair = world.pair(None, scheme="W3-g8")
    assert not pair.needs_calibration
    assert world.passes == 0
    assert world.candidate(pair) != world.before


# --- what is kept ---------------------------------------------------------------------------------


def test_finished_layers_are_kept(world: World, tmp_path: Path) -> None:
    first, passes = world.candidate(world.pair(tmp_path)), world.passes
    again = world.pair(tmp_path)
    assert world.candidate(again) == first
    assert world.passes == passes
    assert again.describe()["layers_kept_from_before"] == 3


@pytest.mark.parametrize("change", ["sample", "bits", "weights"])
def test_what_decides_a_layer_is_in_its_key(world: World, tmp_path: Path, change: str) -> None:
    world.pair(tmp_path)
    if change == "weights":
        with torch.no_grad():
            world.model[0].weight[0, 0] += 0.5
    scheme = "W4-g8-adaround" if change == "bits" else SCHEME
    other = world.pair(tmp_path, scheme=scheme, key="others" if change == "sample" else "texts")
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
    steps = Steps()
    resumed = world.pair(tmp_path, progress=steps)
    assert steps.told == [2, 1]  # the bar starts at what is there, not at 0
    assert resumed.describe()["layers_kept_from_before"] == 2
    assert world.candidate(resumed) == whole


def test_a_damaged_file_is_made_again(world: World, tmp_path: Path) -> None:
    first = world.candidate(world.pair(tmp_path))
    files = sorted(tmp_path.rglob("*.safetensors"))
    files[1].write_bytes(files[1].read_bytes()[:50])
    again = world.pair(tmp_path)
    assert again.describe()["layers_kept_from_before"] == 2
    assert world.candidate(again) == first


def test_a_folder_that_cannot_be_written_is_named(world: World, tmp_path: Path) -> None:
    (tmp_path / "codes").write_text("a file where a folder is to be")
    with pytest.raises(RunError, match="quantized layers cannot be kept in"):
        world.pair(tmp_path)
    assert weights_fingerprint([world.model]) == world.before


def test_the_same_sample_is_not_run_twice_by_one_pair(world: World) -> None:
    pair, passes = world.pair(None), len(world.batches)
    pair.prepare(world.sample(), root=None, progress=Silent())
    assert world.passes == passes
    pair.prepare(replace(world.sample(), key=None), root=None, progress=Silent())
    assert world.passes == 2 * passes  # inputs that cannot be told apart are run again
    with torch.no_grad():
        world.model[0].weight.mul_(10)
    pair.prepare(world.sample(), root=None, progress=Silent())
    assert world.passes == 3 * passes  # and so are other weights
    with pair.candidate():
        assert float(world.model[0].weight.abs().max()) > 2


# --- what is refused and recorded -----------------------------------------------------------------


def test_a_model_that_runs_elsewhere_is_refused(world: World) -> None:
    """Hooks see nothing of it, so everything would be rounded to nearest under another name."""

    def elsewhere() -> None:
        thread = threading.Thread(target=world.model, args=(world.batches[0],))
        thread.start()
        thread.join()

    pair = QuantizedPair([world.model], SCHEME)
    with pytest.raises(UnsupportedError, match="no calibration input was seen at any layer"):
        pair.prepare(Sample(batches=[elsewhere], key=None, record={}), root=None, progress=Silent())
    assert weights_fingerprint([world.model]) == world.before


def test_a_run_records_how_the_candidate_was_made(world: World) -> None:
    said = world.pair(None).describe()
    assert (said["quantizer"], said["backend"]) == ("adaround", "quantdrift")
    assert said["calibration"] == {"source": "corpus"}
    assert [(layer["name"], layer["n_tokens"]) for layer in said["layers"]] == [("0", 48), ("2", 48), ("3", 48)]
    assert all(0 < layer["output_error"] < 0.2 and layer["soft"] == 0 for layer in said["layers"])
    assert said["fallbacks"] == {}
    assert said["seconds"] >= said["seconds_in_method"] > 0


def test_tied_layers_are_calibrated_once() -> None:
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    second.weight = first.weight
    world = World(nn.Sequential(first, nn.ReLU(), second), torch.randn(20, 8))
    pair = world.pair(None, "W3-channel-adaround")
    (layer,) = pair.describe()["layers"]
    assert layer["n_tokens"] == 20  # of its first call
    with pair.candidate():
        assert second.weight is first.weight


# --- quantized activations ------------------------------------------------------------------------


def two_layers(*batches: Tensor) -> World:
    torch.manual_seed(0)
    return World(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)), *batches)


def test_every_layer_has_the_range_of_its_own_input() -> None:
    torch.manual_seed(0)
    batches = [torch.randn(8, 6), 3 * torch.randn(8, 6)]
    world = two_layers(*batches)
    model, pair = world.model, world.pair(None, "W16A8")
    largest = max(float(batch.abs().max()) for batch in batches)
    hidden = max(float(model[1](model[0](batch)).abs().max()) for batch in batches)
    x = 5 * torch.randn(20, 6)  # beyond the range too
    first = model[1](model[0](fake_quantize(x, absmax=largest, bits=8)))
    wanted, exact = model[2](fake_quantize(first, absmax=hidden, bits=8)), model(x)
    with pair.candidate():
        found = model(x)
    assert torch.allclose(found, wanted, atol=1e-6)
    assert not torch.allclose(found, exact)
    assert torch.equal(model(x), exact)  # nothing stays behind


def test_ranges_are_those_of_the_quantized_model() -> None:
    """With W2 the second layer's input is not what it is at full precision."""
    batch = torch.randn(50, 6, generator=torch.Generator().manual_seed(1))
    world = two_layers(batch)
    ranges = world.ranges(world.pair(None, "W2A8-channel-rtn"))
    exact = float(world.model[1](world.model[0](batch)).abs().max())
    with QuantizedPair([world.model], "W2-channel-rtn").candidate():
        low = float(world.model[1](world.model[0](batch)).abs().max())
    assert ranges[1] == pytest.approx(low, rel=1e-5)
    assert abs(low - exact) > 1e-3


def test_a_run_says_which_layers_are_not_covered() -> None:
    """Attention uses its weights without a call of a module, so no input of them can be replaced."""
    world = World(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), torch.randn(2, 3, 8))
    said = world.pair(None, "W8A8-channel").describe()["activations"]
    assert (said["bits"], said["layers"], said["layers_covered"]) == (8, 4, 2)
    assert set(said["not_covered"]) == {"self_attn.in_proj_weight", "self_attn.out_proj"}


def test_the_candidates_fingerprint_depends_on_the_ranges() -> None:
    batch = torch.randn(8, 6)
    made = [("W16A8", 1), ("W16A8", 2), ("W16A4", 1)]
    worlds = [(two_layers(factor * batch), scheme) for scheme, factor in made]
    assert len({world.candidate(world.pair(None, scheme)) for world, scheme in worlds}) == 3


class Twice(nn.Module):
    """The second call of its layer gets, by name, five times what the first one got."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.layer(x)
        return self.last(self.layer(input=5 * x))  # type: ignore[no-any-return]


def test_a_layer_called_again_has_the_range_of_all_its_calls() -> None:
    batch = torch.randn(8, 4)
    world = World(Twice(), batch)
    pair, largest = world.pair(None, "W16A4"), 5 * float(batch.abs().max())
    assert world.ranges(pair)[0] == pytest.approx(largest)
    with pair.candidate():
        found = world.model(batch)
    hidden = world.model.layer(fake_quantize(5 * batch, absmax=largest, bits=4))
    wanted = world.model.last(fake_quantize(hidden, absmax=world.ranges(pair)[1], bits=4))
    assert torch.allclose(found, wanted, atol=1e-6)


def test_ranges_are_right_after_a_kill_when_all_layers_were_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every layer is on the disk then, with the range of its first call."""
    world = World(Twice(), torch.randn(8, 4))

    def killed(self: LayerStore, ranges: list[float]) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LayerStore, "write_ranges", killed)
        with pytest.raises(KeyboardInterrupt):
            world.pair(tmp_path, "W4A8-g4")
    whole = world.pair(None, "W4A8-g4")
    for passes in (1, 0):  # the first resumes, the second reads
        before = world.passes
        again = world.pair(tmp_path, "W4A8-g4")
        assert again.describe()["layers_kept_from_before"] == 2
        assert world.passes - before == passes
        assert world.ranges(again) == world.ranges(whole)
        assert world.candidate(again) == world.candidate(whole)


def test_an_endless_input_has_no_range(tmp_path: Path) -> None:
    world = World(nn.Linear(4, 3), torch.tensor([[1.0, float("inf"), 0, 0]]))
    for _ in range(2):  # also where the layers are kept
        with pytest.raises(DataError, match="is not finite on the calibration data"):
            world.pair(tmp_path, "W16A8")

"""A pair that is calibrated: what it needs, what it keeps, and that the reference comes back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from quantdrift.engine.calibration.sample import Sample
from quantdrift.engine.pair import QuantizedPair
from quantdrift.engine.quantizers.adaround import AdaRound
from quantdrift.engine.weights import weights_fingerprint
from quantdrift.errors import RunError, UnsupportedError
from quantdrift.progress import Progress, Silent
from quantdrift.spec import parse_scheme

SCHEME = "W3-g8-adaround"


class World:
    """A small model, calibration batches, and a count of the passes."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 6), nn.Linear(6, 4))
        self.batches = [torch.randn(16, 12) for _ in range(3)]
        self.passes = 0
        self.before = weights_fingerprint([self.model])

    def sample(self, key: str = "texts") -> Sample:
        works: list[Callable[[], object]] = [lambda batch=batch: self.run(batch) for batch in self.batches]
        return Sample(batches=works, key={"texts": key}, record={"source": "corpus"})

    def run(self, batch: Tensor) -> Tensor:
        self.passes += 1
        output: Tensor = self.model(batch)
        return output

    def pair(
        self, root: Path | None, scheme: str = SCHEME, key: str = "texts", progress: Progress | None = None
    ) -> QuantizedPair:
        pair = QuantizedPair([self.model], parse_scheme(scheme))
        pair.prepare(self.sample(key), root=root, progress=progress or Silent())
        return pair

    def candidate(self, pair: QuantizedPair) -> str:
        with pair.candidate():
            return weights_fingerprint([self.model])


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
    pair = QuantizedPair([world.model], parse_scheme(SCHEME))
    assert pair.needs_calibration
    with pytest.raises(UnsupportedError, match="is calibrated on documents"), pair.candidate():
        pytest.fail("there is no candidate")


def test_a_data_free_scheme_runs_nothing(world: World) -> None:
    pair = world.pair(None, scheme="W3-g8")
    assert not pair.needs_calibration
    assert world.passes == 0
    assert world.candidate(pair) != world.before


def test_finished_layers_are_kept(world: World, tmp_path: Path) -> None:
    first = world.candidate(world.pair(tmp_path))
    passes = world.passes
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
    pair = world.pair(None)
    passes = world.passes
    pair.prepare(world.sample(), root=None, progress=Silent())
    assert world.passes == passes
    pair.prepare(replace(world.sample(), key=None), root=None, progress=Silent())
    assert world.passes == 2 * passes  # inputs that cannot be told apart are run again


def test_changed_weights_are_calibrated_again(world: World) -> None:
    pair = world.pair(None)
    with torch.no_grad():
        world.model[0].weight.mul_(10)
    pair.prepare(world.sample(), root=None, progress=Silent())
    assert world.passes == 2 * len(world.batches)
    with pair.candidate():
        assert float(world.model[0].weight.abs().max()) > 2


def test_a_model_that_runs_elsewhere_is_refused(world: World) -> None:
    """Hooks see nothing of it, so everything would be rounded to nearest under another name."""

    def elsewhere() -> None:
        thread = threading.Thread(target=world.model, args=(world.batches[0],))
        thread.start()
        thread.join()

    pair = QuantizedPair([world.model], parse_scheme(SCHEME))
    sample = Sample(batches=[elsewhere], key=None, record={})
    with pytest.raises(UnsupportedError, match="no calibration input was seen at any layer"):
        pair.prepare(sample, root=None, progress=Silent())
    assert weights_fingerprint([world.model]) == world.before


def test_a_run_records_how_the_candidate_was_made(world: World) -> None:
    said = world.pair(None).describe()
    assert said["quantizer"] == "adaround"
    assert said["backend"] == "quantdrift"
    assert said["calibration"] == {"source": "corpus"}
    assert [layer["name"] for layer in said["layers"]] == ["0", "2", "3"]
    assert [layer["n_tokens"] for layer in said["layers"]] == [48] * 3
    assert all(0 < layer["output_error"] < 0.2 for layer in said["layers"])
    assert all(layer["soft"] == 0 for layer in said["layers"])
    assert said["fallbacks"] == {}
    assert said["seconds"] >= said["seconds_in_method"] > 0


def test_tied_layers_are_calibrated_once() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    second.weight = first.weight
    model = nn.Sequential(first, nn.ReLU(), second)
    pair = QuantizedPair([model], parse_scheme("W3-channel-adaround"))
    batch = torch.randn(20, 8)
    sample = Sample(batches=[lambda: model(batch)], key=None, record={})
    pair.prepare(sample, root=None, progress=Silent())
    (layer,) = pair.describe()["layers"]
    assert layer["n_tokens"] == 20  # of its first call
    with pair.candidate():
        assert second.weight is first.weight

"""Passes that wait for each other, and what is seen of a layer's input."""

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from quantdrift.builtin.rtn.work import RoundToNearest
from quantdrift.candidate.calibration.in_order import ForwardPass, LayerCandidate, in_lockstep, quantize_in_order
from quantdrift.models.layers import find_linears
from support.quantizer_samples import Watching


def wait(place: int, value: float = 0.0) -> None:
    current = threading.current_thread()
    assert isinstance(current, ForwardPass)
    current.wait_at(place, (torch.tensor(value), None))


def test_those_at_the_lowest_place_go_on_one_after_another() -> None:
    said: list[str] = []

    def work(name: str, *places: int) -> None:
        for place in places:
            said.append(f"{name}{place}")
            wait(place, ord(name))
        said.append(f"{name} ends")

    def make(place: int, here: list[ForwardPass]) -> None:
        said.append(f"make {place} of {''.join(chr(int(waiting.value[0])) for waiting in here if waiting.value)}")

    in_lockstep([lambda: work("a", 0, 2), lambda: work("b", 0, 1), lambda: work("c", 2)], make)
    assert said == [
        *("a0", "b0", "c2", "make 0 of ab", "a2", "b1"),
        *("make 1 of b", "b ends", "make 2 of ac", "a ends", "c ends"),
    ]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_comes_out_and_the_others_are_ended(error: type[BaseException]) -> None:
    before, ended = threading.active_count(), []

    def waits() -> None:
        try:
            wait(0)
        except Exception:  # what code on the way may hold
            pytest.fail("an abandoned pass is not to be caught")
        finally:
            ended.append("waits")

    def fails() -> None:
        raise error("no such token")

    with pytest.raises(error, match="no such token"):
        in_lockstep([waits, fails, waits], lambda *_: None)
    assert ended == ["waits"]  # the third has not begun
    assert threading.active_count() == before


def calibrate(model: nn.Module, *works: Callable[[], object]) -> tuple[Watching, dict[str, LayerCandidate]]:
    """The method, with the moments in calling order, and what became of every layer."""
    method, layers, made = Watching(bits=8, group_size=None), find_linears([model]), dict[str, LayerCandidate]()
    quantize_in_order(
        [model],
        layers,
        works,
        quantizers=[method] * len(layers),
        fallbacks=[RoundToNearest(bits=8, group_size=None)] * len(layers),
        kept={},
        done=lambda _, layer: made.__setitem__(layer.name, layer),
    )
    return method, made


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        output: Tensor = self.layer(x)
        return output


class Towers(nn.Module):
    """A tower that is given a mask, and one that is not but has inputs of the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.image = Tower(), Tower()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.text(x, attention_mask=mask) + self.image(x)  # type: ignore[no-any-return]


def test_a_mask_counts_for_the_module_that_is_given_it() -> None:
    model, mask = Towers(), torch.tensor([[1, 1, 0], [1, 0, 0]])
    method, _ = calibrate(model, lambda: model(torch.randn(2, 3, 2), mask))
    assert [moments.n_tokens for moments in method.seen] == [3, 6]

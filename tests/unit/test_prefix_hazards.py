"""What models do beside returning something, and that remembering what they return bears it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from prefix_samples import DIM, seeded, setting_of
from torch import Tensor, nn

from quantdrift.allocation.criteria.gap_exact import exact_shifts


def expect_same(build: Callable[[], nn.Module], *, notes: int = 0, **how: Any) -> None:
    """What is remembered changes no result, and as many reasons to run all are given."""
    model = seeded(build)
    found: list[str] = []
    ours = exact_shifts(setting_of(model, **how), notes=found)
    naive = exact_shifts(setting_of(model, **how), cached=False)
    assert ours.tobytes() == naive.tobytes()
    assert (naive != 0).any()
    assert len(found) == notes, found


class AddedInPlace(nn.Module):
    """What a layer put out is written over, by a module and by an operator."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(4))
        self.relu, self.same = nn.ReLU(inplace=True), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        a, b, c, d = self.layers
        h = a(x)
        h += x
        y = self.relu(b(h))
        z = self.same(h)
        z += 1
        h = h + c(y)
        h[:, ::2].mul_(y[:, ::2])
        result: Tensor = d(h) + h
        return result


def test_what_is_written_over_in_place_is_remembered_as_it_was() -> None:
    expect_same(AddedInPlace)


class Store(nn.Module):
    """Writes into memory of another module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.norm = nn.LayerNorm(DIM)

    def forward(self, x: Tensor, cache: Tensor) -> Tensor:
        cache[0, : len(x)] = self.inner(x)
        result: Tensor = self.norm(self.outer(x))
        return result


class WithStore(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.store, self.last = Store(), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        cache = x.new_zeros(1, 5, DIM)
        y = self.last(self.store(x, cache))
        result: Tensor = y + cache[0, : len(x)]
        return result


def test_a_call_that_writes_into_what_it_was_given_is_run() -> None:
    expect_same(WithStore)


class Listed(nn.Module):
    """Modules that leave more than they return, where no operation shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []
        self.first, self.second = self.Noting(self.seen), nn.Linear(DIM, DIM)

    class Noting(nn.Module):
        def __init__(self, seen: list[Tensor]) -> None:
            super().__init__()
            self.linear, self.seen = nn.Linear(DIM, DIM), seen

        def forward(self, x: Tensor) -> Tensor:
            self.seen.append(x.sum(dim=1, keepdim=True))
            result: Tensor = self.linear(x)
            return result

    def forward(self, x: Tensor) -> Tensor:
        self.seen.clear()
        result: Tensor = self.second(self.first(x))
        return result * (1 + len(self.seen))


def test_hidden_state_is_noticed_and_everything_is_run() -> None:
    expect_same(Listed, notes=1)


class LookedIntoUnseen(nn.Module):
    """Takes numbers out of a result of long ago, past all operations."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        early = x = self.layers[0](x)
        for layer in self.layers[1:]:
            x = layer(x)
        return x * torch.from_numpy(early.numpy().copy())


def test_what_was_thought_not_to_be_needed_is_nan_and_noticed() -> None:
    expect_same(LookedIntoUnseen, notes=1)


class WrittenUnseen(nn.Module):
    """Clears a result at the end, past all operations, once it has run many times."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.n = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(6)), 0

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        early = x = self.layers[0](x)
        for layer in self.layers[1:]:
            x = layer(x)
        x = x + early
        if self.n > 12:
            early.numpy()[:] = 0
        return x


def test_what_changes_later_is_noticed_in_the_end_and_all_is_run_again() -> None:
    expect_same(WrittenUnseen, notes=1)


class Filled(nn.Module):
    """Modules that fill up one dict, as those of sentence-transformers do."""

    class Part(nn.Module):
        def __init__(self, key: str) -> None:
            super().__init__()
            self.linear, self.key = nn.Linear(DIM, DIM), key

        def forward(self, features: dict[str, Any]) -> dict[str, Any]:
            features.update({"x": self.linear(features["x"]), self.key: (features["x"], None)})
            return features

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(self.Part(key) for key in "abc")

    def forward(self, x: Tensor) -> Tensor:
        features = {"x": x}
        for part in self.parts:
            features = part(features)
        result: Tensor = features["x"] + features["a"][0] + features["b"][0] + features["c"][0]
        return result


def test_a_dict_that_modules_fill_up_is_remembered_as_each_left_it() -> None:
    expect_same(Filled)


class Shared(nn.Module):
    """One block called three times, and two layers that share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.tied, self.last = (nn.Linear(DIM, DIM) for _ in range(3))
        self.again = nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh())
        self.tied.weight = self.first.weight
        self.attention = nn.MultiheadAttention(DIM, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(3):
            x = self.again(x)
        x = x + self.attention(x[None], x[None], x[None], need_weights=False)[0][0]
        result: Tensor = self.last(self.tied(x))
        return result


def test_modules_called_again_tied_weights_and_attention() -> None:
    expect_same(Shared)


def test_a_layer_in_another_thread_is_found_out() -> None:
    def build() -> nn.Module:
        class Threaded(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(DIM, DIM)

            def forward(self, x: Tensor) -> Tensor:
                found: list[Tensor] = []
                linear, errors = self.linear, list[Exception]()

                def work() -> None:
                    try:
                        with torch.inference_mode():
                            found.append(linear(x))
                    except Exception as error:
                        errors.append(error)

                thread = threading.Thread(target=work)
                thread.start()
                thread.join()
                if errors:
                    raise errors[0]
                return found[0]

        return Threaded()

    expect_same(build, notes=1)


def test_calls_in_another_order_from_run_to_run_are_found_out() -> None:
    class Turning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.last = (nn.Linear(DIM, DIM) for _ in range(3))
            self.turn = False

        def forward(self, x: Tensor) -> Tensor:
            self.turn = not self.turn
            order = (self.one, self.two) if self.turn else (self.two, self.one)
            parts = {part: part(x) for part in order}
            result: Tensor = self.last(parts[self.one] - parts[self.two])
            return result

    expect_same(Turning, notes=1)

"""Runs that leave out what comes before a layer: what they leave out, and what they may not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from prefix_samples import DIM, Blocks, Counted, inputs, runs_of, seeded, setting_of
from torch import Tensor, nn

from quantdrift.allocation.criteria.gap_exact import exact_shifts
from quantdrift.allocation.prefix.batch import Prefix
from quantdrift.allocation.prefix.batches import Opening
from quantdrift.allocation.prefix.calls import Interception
from quantdrift.allocation.prefix.chunks import chunks_of
from quantdrift.allocation.prefix.watch import observe
from quantdrift.models.layers import find_linears


def opened(
    model: nn.Module,
    x: Tensor,
    *,
    call: Callable[[Tensor], Tensor] | None = None,
    room: int = 1 << 30,
) -> tuple[Prefix, dict[str, int]]:
    """A batch that ran once, and when each layer is first used in it."""
    modules, layers = Interception([model]), find_linears([model])
    run = runs_of(call or model, [x])[0]
    plan = observe(modules, layers, run)
    prefix = Prefix(modules, run, plan, room=room, poison={})
    assert prefix.first()[1] == plan.signature
    return prefix, {layers[number].name: time for number, time in plan.first_use.items()}


@pytest.mark.parametrize("room", [0, 1 << 30])
def test_only_what_comes_after_the_layer_is_run(room: int) -> None:
    """In its own block too: b is beside a, and c takes both."""
    model = seeded(Blocks)
    prefix, times = opened(model, inputs(), room=room)
    reference = prefix.outputs()
    for place, layer in enumerate(f"{block}.{part}" for block in "01" for part in "abc"):
        prefix.move(times[f"blocks.{layer}"])
        model.counts.clear()
        assert prefix.outputs().tobytes() == reference.tobytes()
        left = [f"{block}.{part}" for block in "01" for part in "abc"][place:]
        assert model.counts == Counter(left)


def test_one_pass_in_all_is_spent_on_remembering() -> None:
    """With no room to remember ahead, each layer moved to runs what lies between."""
    model = seeded(Blocks)
    prefix, times = opened(model, inputs(), room=0)
    model.counts.clear()
    for time in sorted(times.values()):
        prefix.move(time)
    # 0.a is remembered from the first run, and nothing comes after 1.c
    assert model.counts == Counter(["0.b", "0.c", "1.a", "1.b"])


def test_what_is_remembered_moves_along() -> None:
    """At 1.c the outputs of 1.a and 1.b are looked into, and 0 by the sum around the block."""
    prefix, times = opened(seeded(Blocks), inputs(3))
    row = 3 * DIM * 4
    held = {}
    for name in ("0.a", "0.b", "0.c", "1.a", "1.c"):
        prefix.move(times[f"blocks.{name}"])
        held[name] = prefix.held
    prefix.move(times["blocks.1.c"])
    assert prefix.held == 3 * row
    assert prefix.peak == 3 * row


def test_what_nobody_may_look_into_is_nan() -> None:
    model = seeded(Blocks)
    prefix, times = opened(model, inputs())
    prefix.move(times["blocks.1.a"])
    seen: list[Tensor] = []
    model.blocks[1].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model.blocks[0].register_forward_hook(lambda _, args, output: seen.append(output))
    prefix.outputs()
    assert not seen[0].isnan().any()
    seen.clear()
    prefix.move(times["blocks.1.a"])
    third = seeded(lambda: nn.Sequential(*(Blocks() for _ in range(3))))
    prefix, times = opened(third, inputs())
    third[1].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    prefix.move(times["2.blocks.0.a"])
    prefix.outputs()
    assert seen[0].isnan().all()


def test_a_call_of_forward_itself_is_seen() -> None:
    """No hook is."""
    model = seeded(Blocks)

    def past_the_hooks(x: Tensor) -> Tensor:
        result: Tensor = model.forward(x)
        return result

    prefix, times = opened(model, inputs(), call=past_the_hooks)
    prefix.move(times["blocks.1.c"])
    model.counts.clear()
    prefix.outputs()
    assert model.counts == {"1.c": 1}


def test_memory_for_little_goes_through_batches_one_after_the_other() -> None:
    model = seeded(Blocks)
    setting = setting_of(model, [inputs(3, seed) for seed in range(3)])
    naive = exact_shifts(setting, cached=False)
    for memory in (0, 500, 1 << 30):
        assert exact_shifts(setting, memory=memory).tobytes() == naive.tobytes()


def test_a_batch_that_does_not_use_a_layer_is_not_run_for_it() -> None:
    """Two towers: the first batch goes to one, the second to the other."""
    counts: Counter[str] = Counter()
    towers = seeded(lambda: nn.ModuleList(Counted(counts, name) for name in "ab"))
    setting = setting_of(towers, [inputs(2), inputs(3)], call=lambda x: towers[len(x) - 2](x))
    shifts = exact_shifts(setting)
    assert (shifts[0, 0, 2:] == 0).all()
    assert (shifts[1, 0, :2] == 0).all()
    assert exact_shifts(setting, cached=False).tobytes() == shifts.tobytes()
    opening = Opening(Interception([towers]), setting.layers, room=0)
    runs = [opening.open(batch) for batch in setting.problem.batches]
    counts.clear()
    chunks = chunks_of(runs, setting, 0)
    found = [places for chunk in chunks for places, _ in chunk.outputs([(0, 0), (1, 0)], list)]
    assert found == [(0, 0), (1, 0)]
    assert counts == {"a": 2, "b": 2}  # once rounded, and once to see that all is still right


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_the_model_is_as_it_was_after_an_interrupt(error: type[BaseException]) -> None:
    model = seeded(Blocks)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    own = model.blocks[0].forward
    model.blocks[0].forward = own  # what hooks of other libraries do
    setting = setting_of(model)
    naive = exact_shifts(setting, cached=False)
    n_calls = 0

    def interrupt(module: nn.Module, args: Any) -> None:
        nonlocal n_calls
        n_calls += 1
        if not torch.equal(module.weight, before["blocks.1.c.weight"]):
            raise error

    hook = model.blocks[1].c.register_forward_pre_hook(interrupt)
    with pytest.raises(error):
        exact_shifts(setting)
    hook.remove()
    assert n_calls
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    having = [module for module in model.modules() if "forward" in module.__dict__]
    assert having == [model.blocks[0]]
    assert model.blocks[0].__dict__["forward"] is own
    assert np.array_equal(exact_shifts(setting), naive)

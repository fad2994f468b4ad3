"""What is random in a model's answers: which are drawn, and where both arms draw the same from."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

GENERATE = "generate_until"
"""The one kind of requests whose answers can be drawn."""


def is_drawn(kind: str, arguments: Sequence[Any]) -> bool:
    """Whether the answer to a request is drawn anew every time it is asked.

    As lm-eval reads the settings: where `do_sample` is not set, a temperature above 0 draws.

    Args:
        kind: of the request, the name of lm-eval's method.
        arguments: of the request; the second are the settings of generation.
    """
    if kind != GENERATE:
        return False
    settings = arguments[1]
    asked = settings.get("do_sample")
    return float(settings.get("temperature") or 0) > 0 if asked is None else bool(asked)


def remembered() -> Callable[[], None]:
    """What puts every random generator back to where it is now."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []

    def put_back() -> None:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)

    return put_back

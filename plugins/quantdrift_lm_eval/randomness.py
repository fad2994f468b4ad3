"""Everything random that a model may draw from while it answers: both arms draw the same."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import torch

__all__ = ["remembered"]


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
